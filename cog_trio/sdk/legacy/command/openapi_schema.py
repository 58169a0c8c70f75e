"""`python -m cog.command.openapi_schema`: prints the OpenAPI document of the model in the current folder.

The model is imported in this process, as older releases did; ``cog-trio schema`` does it in a worker. What the model
prints meanwhile goes to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from ..config import Config


def main() -> int:
    """Print the document; 0, or 1 with the reason on stderr."""
    from cog_trio.sdk import _loader as loader
    from cog_trio.sdk.schema import describe_signature, document

    try:
        config = Config()
        predict, train = config.predictor_predict_ref, config.predictor_train_ref
        if predict is None and train is None:
            raise ValueError("no model: set COG_PREDICT_TYPE_STUB, or run: in ./cog.yaml, to file.py:Name")
        found = []
        with _stdout_is_stderr():
            for target in (
                None if predict is None else loader.predict_ref(predict),
                None if train is None else loader.train_ref(train),
            ):
                signature = (
                    None
                    if target is None
                    else describe_signature(target.function, owner=target.owner, name=target.name)
                )
                found.append(signature)
        print(json.dumps(document(*found), indent=2))
    except (Exception, SystemExit):  # noqa: BLE001 - whatever a model's import does, the reason goes to stderr
        traceback.print_exc()
        return 1
    return 0


@contextmanager
def _stdout_is_stderr() -> Iterator[None]:
    """What the model prints, or a program that it starts, must not stand in the document."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


if __name__ == "__main__":
    sys.path.insert(0, "")
    sys.exit(main())
