"""docs/design/names.md: every path of ours on it is there, and no name of the owner's document is missing."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = (ROOT / "docs" / "design" / "names.md").read_text()
PATHS: Final = sorted(set(re.findall(r"`(cog_trio(?:\.\w+)*)`", PAGE)))
FILES: Final = sorted(set(re.findall(r"`((?:tests|scenarios)/[\w/.]+)`", PAGE)))
LEFT: Final = "\n".join(line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| "))

NAMED: Final = """
Axum PyO3 ABI3 tini coglet ENTRYPOINT CMD
service orchestrator bridge permit transport prediction webhook health input_validation
lib.rs predictor.rs worker_bridge.rs log_writer.rs routes.rs server.rs PredictHandler init_tracing ContextVar
PredictionService PredictionEntry DashMap RwLock Arc watch::channel CancellationToken cancel_on_stream_drop
PredictionSlot PermitPool PermitInUse PermitIdle PermitPoisoned PredictionHandle sync_guard SyncPredictionGuard
Prediction set_processing set_succeeded append_log PredictionStatus Starting Processing Succeeded Failed Canceled
is_terminal CreatePredictionError::AtCapacity InputValidator
Health Unknown Ready Busy SetupFailed Defunct HealthResponse UNHEALTHY HealthSnapshot is_ready is_busy
SetupResult started_at completed_at SetupStatus
ControlRequest Init predictor_ref num_slots is_async transport_info is_train Cancel Healthcheck Shutdown
Log WorkerLog Idle Cancelled Fatal DroppedLogs HealthcheckResult ShuttingDown
SlotRequest::Predict input_file output_dir context Output OutputChunk FileOutput FileOutputKind FileType Oversized
Metric MetricMode Done SlotOutcome::Poisoned LengthDelimitedCodec MAX_INLINE_IPC_SIZE rehydrate_input upload_file
run_event_loop setup() run() predict() atexit record_metric current_scope().context cog.Path
PORT COG_LOG_LEVEL COG_MAX_CONCURRENCY COG_SETUP_TIMEOUT COG_THROTTLE_RESPONSE_INTERVAL LOG_FORMAT RUST_LOG
COG_PREDICT_TYPE_STUB COG_TRAIN_TYPE_STUB
crates/coglet/ crates/coglet-python/ _run_worker() Drop SCREAMING_SNAKE_CASE available_slots Location
respawn isolation Rust slots 409 respond-async head-of-line EnvFilter argparse RAII teardown() cleanup() __del__
service.rs orchestrator.rs protocol.rs permit/mod.rs prediction.rs health.rs input_validation.rs webhook.rs
standard_generator.go run(**kwargs) timing.preprocess
healthcheck*.txtar cancel_*_prediction.txtar coglet_large_input.txtar coglet_large_output.txtar
setup_timeout_serial.txtar sequential_state_leak.txtar input_validation_before_start.txtar sse_*
"""


@pytest.mark.covers("D48")
@pytest.mark.parametrize("path", PATHS)
def test_D48_path_of_ours_can_be_imported(path: str) -> None:
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if error.name is None or not path.startswith(error.name):
                raise
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return
    raise AssertionError(f"{path} is nothing")


@pytest.mark.covers("D48")
@pytest.mark.parametrize("file", FILES)
def test_D48_file_of_ours_exists(file: str) -> None:
    assert (ROOT / file).is_file()


@pytest.mark.covers("D48")
@pytest.mark.parametrize("name", NAMED.split())
def test_D48_name_of_the_document_is_on_the_page(name: str) -> None:
    assert name in LEFT
