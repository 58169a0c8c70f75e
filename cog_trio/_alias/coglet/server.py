"""`coglet.server`: how Cog's own entry point starts its runtime; here it starts ours."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

active = False


def serve(
    predictor_ref: str | None = None,
    host: str = "0.0.0.0",
    port: int = 5000,
    await_explicit_shutdown: bool = False,
    is_train: bool = False,
    output_temp_dir_base: str | None = None,
    upload_url: str | None = None,
) -> None:
    """Serve a model over HTTP; returns when the server has been told to stop.

    Raises:
      SystemExit: if it could not start, with the exit code of ``python -m cog_trio.server.http``.
    """
    from cog_trio.server.http import main

    flags = [f"--host={host}", f"--port={port}"]
    if await_explicit_shutdown:
        flags.append("--await-explicit-shutdown")
    if is_train:
        flags.append("--x-mode=train")
    if upload_url:
        flags.append(f"--upload-url={upload_url}")
    if predictor_ref is not None:
        os.environ["COG_TRAIN_TYPE_STUB" if is_train else "COG_PREDICT_TYPE_STUB"] = predictor_ref
    before = sys.argv
    sys.argv = ["coglet", *flags]
    try:
        main()
    except SystemExit as exit:
        if exit.code not in (None, 0):
            raise
    finally:
        sys.argv = before


def _run_worker() -> NoReturn:
    raise RuntimeError("cog-trio starts its own workers: python -m cog_trio.worker, by cog_trio.orchestrator.spawn")
