"""Every operation of docs/reference/openapi.yaml against a live server, with inputs that Schemathesis thinks of.

The server is READY, its model is sound, and ``/shutdown`` is left out. So there is no reason for any 5xx: also not
for the 503 that the document names for a server that starts or drains, and the check for server errors stays as strict
as it is. What else is checked: the status is one that the document names for this operation, the body has the type and
the schema that it names for this status (so every error is JSON of a known form), wrong requests are refused and right
ones are not, methods that a path does not have get 405 with the right ``allow``, what was created is there, without the
token there is nothing but the probes. In the end the log tells of no fault, and the server still runs predictions.

What the tool can't know is told in RULES. ``make test`` draws the same requests each time; ``make fuzz`` draws new
ones, for as long as it is told, and prints the seed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from cog_trio.testing import ServeModel, Server
from scenarios.faults.document import complete, pointed

MODEL: Final = Path(__file__).parent.parent / "models" / "fuzzed.py"
SECONDS: Final = int(os.environ.get("COG_TRIO_FUZZ", "0"))  # 0: the short form
SEED: Final = os.environ.get("COG_TRIO_FUZZ_SEED", "")
OPERATIONS: Final = 16  # all but /shutdown and /predictions/ws, which without an upgrade is one of the others
LIMIT: Final = SECONDS + 180  # seconds for all of it
TOKEN: Final = "secret"
RULES: Final = """
[checks]
# A slot may be taken, a run be of the other family, an id be gone: of all that the document speaks.
positive_data_acceptance = { expected-statuses = ["2xx", "404", "406", "409"] }

[[operations]]
include-method = "PUT"
# The id in the body must be that in the path, which no schema can say.
checks.positive_data_acceptance = { expected-statuses = ["2xx", "404", "406", "409", "422"] }

[[operations]]
include-operation-id = ["listPredictions", "listTrainings"]
# A cursor is one that the list has given, which no schema can say.
checks.positive_data_acceptance = { expected-statuses = ["2xx", "422"] }

[[operations]]
include-path-regex = "/cancel$"
# What has ended can't be cancelled.
checks.ensure_resource_availability = { enabled = false }
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the fuzzer of this version draws other requests")
@pytest.mark.timeout(LIMIT + 20)
async def test_fuzzed_requests_get_what_the_document_says(serve_model: ServeModel, tmp_path: Path) -> None:
    """Given a model with inputs of every kind and a train function, when every operation is asked in every way that
    the document has and in many that it forbids, then each answer is one that it names, and nothing has gone wrong."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "fuzzed.py").write_text(MODEL.read_text())
    (folder / "cog.yaml").write_text("run: fuzzed.py:Runner\ntrain: fuzzed.py:train\n")
    flags = ("--auth-token", TOKEN, "--input-hosts", "example.invalid", "--webhook-grace", "0")
    with trio.fail_after(LIMIT):
        async with serve_model(folder, *flags) as server:
            server.client.headers["authorization"] = f"Bearer {TOKEN}"
            model = (await server.client.get("/openapi.json")).json()
            (tmp_path / "openapi.json").write_text(json.dumps(pointed(complete(model))))
            (tmp_path / "rules.toml").write_text(RULES)
            code, told = await _fuzz(server, tmp_path)
            assert code == 0, told
            assert (await server.predict({"text": "still here"})).json()["output"] == ["0 of still here"]
            faults = [line for line in server.log if "exception" in line or line.get("level") == "ERROR"]
    assert not [line for line in faults if line.get("target") != "cog_trio.webhook"]  # those lead nowhere
    print(told)  # with -s: phases, cases, seed
    assert _count(r"Tested: (\d+)", told) == OPERATIONS
    assert _count(r"(\d+) generated", told) > 500


async def _fuzz(server: Server, folder: Path) -> tuple[int, str]:
    """Run the tool to its end: its exit code, and what it says."""
    short = ("--phases", "coverage,fuzzing,stateful", "--max-examples", "2", "--generation-deterministic")
    length = ("--max-time", str(SECONDS)) if SECONDS else short
    seed = ("--seed", SEED) if SEED else ()
    done: subprocess.CompletedProcess[bytes] = await trio.run_process(
        [
            *(str(Path(sys.executable).parent / "schemathesis"), "--config-file", "rules.toml", "run", "openapi.json"),
            *(
                "--header",
                f"Authorization: Bearer {TOKEN}",
                "--url",
                server.url,
                "--exclude-path",
                "/shutdown",
                "--request-timeout",
                "20",
            ),
            *("--suppress-health-check", "all", "--warnings", "off", "--no-color", *length, *seed),
        ],
        cwd=folder,
        check=False,
        capture_stdout=True,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def _count(pattern: str, text: str) -> int:
    found: Any = re.search(pattern, text)
    assert found is not None, text
    return int(found[1])
