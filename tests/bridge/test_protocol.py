"""One snapshot a wire message: a changed name, tag or default is a changed protocol."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cog_trio.bridge.codec import control_requests, control_responses, slot_requests, slot_responses
from cog_trio.bridge.protocol import (
    PROTOCOL_VERSION,
    Cancel,
    Described,
    Done,
    DroppedLogs,
    DumpState,
    Failed,
    Fatal,
    Fetching,
    FileKind,
    FileOutput,
    FileOutputKind,
    Healthcheck,
    HealthcheckResult,
    HealthcheckStatus,
    Idle,
    Init,
    Input,
    Inputs,
    Kind,
    Log,
    LogLevel,
    LogLine,
    LogSource,
    Metric,
    MetricMode,
    Mode,
    OutputBatch,
    OutputChunk,
    Predict,
    PredictionId,
    ProtocolVersion,
    Ready,
    RunCancelled,
    RunFailed,
    Shutdown,
    ShuttingDown,
    SlotId,
    WorkerLog,
)

RAW = msgspec.Raw
SLOT, ID, RUN = SlotId(0), PredictionId("p1"), 7
IDLE = Idle(SLOT, ID, RUN)

SNAPSHOTS: list[tuple[Any, msgspec.Struct, str]] = [
    (
        control_requests,
        Init(predict_ref="predict.py:Runner", max_concurrency=2),
        '{"type":"init","predict_ref":"predict.py:Runner","train_ref":null,"max_concurrency":2,"describe":false,'
        '"concurrency_from":"max_concurrency",'
        '"protocol_version":2}',
    ),
    (control_requests, Cancel(SLOT, ID, RUN), '{"type":"cancel","slot":0,"id":"p1","run":7}'),
    (control_requests, Healthcheck("hc_1"), '{"type":"healthcheck","id":"hc_1"}'),
    (control_requests, DumpState(), '{"type":"dump_state"}'),
    (control_requests, Shutdown(), '{"type":"shutdown"}'),
    (
        control_responses,
        Described(
            schema=RAW(b'{"openapi":"3.0.2"}'),
            inputs=Inputs("Input", (Input("x", "int", required=True),)),
            kind=Kind.SYNC,
            concurrency=1,
            has_healthcheck=False,
            streaming=True,
            versions={"python": "3.11.7"},
            pid=42,
        ),
        '{"type":"described","schema":{"openapi":"3.0.2"},"inputs":{"component":"Input","fields":[{"name":"x",'
        '"kind":"int","many":false,"required":true,"nullable":false,"inject_null":false}],"extra":false},'
        '"kind":"sync","concurrency":1,"has_healthcheck":false,"streaming":true,"versions":{"python":"3.11.7"},'
        '"pid":42}',
    ),
    (
        control_responses,
        Described(
            schema=RAW(b"{}"),
            inputs=None,
            kind=Kind.ASYNC,
            concurrency=1,
            has_healthcheck=False,
            streaming=False,
            versions={},
            pid=42,
            train_inputs=Inputs("TrainingInput"),
            no_training="why",
        ),
        '{"type":"described","schema":{},"inputs":null,"kind":"async","concurrency":1,"has_healthcheck":false,'
        '"streaming":false,"versions":{},"pid":42,"train_inputs":{"component":"TrainingInput","fields":[],'
        '"extra":false},"no_training":"why"}',
    ),
    (control_responses, Ready((SlotId(0), SlotId(1))), '{"type":"ready","slots":[0,1]}'),
    (control_responses, Ready((SLOT,), RAW(b"{}")), '{"type":"ready","slots":[0],"schema":{}}'),
    (control_responses, Log(LogSource.STDOUT, "a\n"), '{"type":"log","source":"stdout","data":"a\\n"}'),
    (control_responses, Log(LogSource.STDERR, "a", ID), '{"type":"log","source":"stderr","data":"a","id":"p1"}'),
    (
        control_responses,
        WorkerLog("cog_trio.worker", LogLevel.WARNING, "m"),
        '{"type":"worker_log","target":"cog_trio.worker","level":"warning","message":"m"}',
    ),
    (control_responses, Failed("no"), '{"type":"failed","error":"no"}'),
    (control_responses, Failed("no", SLOT, ID, RUN), '{"type":"failed","error":"no","slot":0,"id":"p1","run":7}'),
    (control_responses, Fatal("why"), '{"type":"fatal","reason":"why"}'),
    (control_responses, DroppedLogs(3, 5000), '{"type":"dropped_logs","count":3,"interval_millis":5000}'),
    (
        control_responses,
        HealthcheckResult("hc_1", HealthcheckStatus.HEALTHY),
        '{"type":"healthcheck_result","id":"hc_1","status":"healthy"}',
    ),
    (
        control_responses,
        HealthcheckResult("hc_1", HealthcheckStatus.UNHEALTHY, "e"),
        '{"type":"healthcheck_result","id":"hc_1","status":"unhealthy","error":"e"}',
    ),
    (control_responses, ShuttingDown(), '{"type":"shutting_down"}'),
    (
        slot_requests,
        Predict(SLOT, ID, RUN, "/tmp/d", input=RAW(b'{"x":1}'), context={"a": "b"}),
        '{"type":"predict","slot":0,"id":"p1","run":7,"output_dir":"/tmp/d","input":{"x":1},"context":{"a":"b"}}',
    ),
    (
        slot_requests,
        Predict(SLOT, ID, RUN, "/tmp/d", input_file="/tmp/d/spill.json"),
        '{"type":"predict","slot":0,"id":"p1","run":7,"output_dir":"/tmp/d","input_file":"/tmp/d/spill.json"}',
    ),
    (
        slot_requests,
        Predict(SLOT, ID, RUN, "/tmp/d", input=RAW(b"{}"), mode=Mode.TRAIN),
        '{"type":"predict","slot":0,"id":"p1","run":7,"output_dir":"/tmp/d","input":{},"mode":"train"}',
    ),
    (slot_responses, ProtocolVersion(PROTOCOL_VERSION), '{"type":"protocol_version","version":2}'),
    (slot_responses, LogLine(LogSource.STDERR, "x"), '{"type":"log_line","source":"stderr","data":"x"}'),
    (slot_responses, Fetching(10), '{"type":"fetching","done":10}'),
    (slot_responses, Fetching(10, 20), '{"type":"fetching","done":10,"total":20}'),
    (slot_responses, OutputChunk(RAW(b'"a"'), 0), '{"type":"output_chunk","output":"a","index":0}'),
    (
        slot_responses,
        OutputBatch(3, 2, RAW(b'["a",1]')),
        '{"type":"output_batch","index":3,"count":2,"outputs":["a",1]}',
    ),
    (
        slot_responses,
        FileOutput("/tmp/a.png", FileKind(FileOutputKind.FILE), 0),
        '{"type":"file_output","filename":"/tmp/a.png","kind":{"type":"file_type"},"index":0}',
    ),
    (
        slot_responses,
        FileOutput("/tmp/a.json", FileKind(FileOutputKind.OVERSIZED), 1, "application/json"),
        '{"type":"file_output","filename":"/tmp/a.json","kind":{"type":"oversized"},"index":1,'
        '"mime_type":"application/json"}',
    ),
    (
        slot_responses,
        OutputChunk(RAW(b'{"a":null}'), 0, 1),
        '{"type":"output_chunk","output":{"a":null},"index":0,"files":1}',
    ),
    (
        slot_responses,
        FileOutput("/tmp/a.json", FileKind(FileOutputKind.OVERSIZED), 1, files=2),
        '{"type":"file_output","filename":"/tmp/a.json","kind":{"type":"oversized"},"index":1,"files":2}',
    ),
    (
        slot_responses,
        FileOutput("/tmp/a.png", FileKind(FileOutputKind.FILE), 0, place=5),
        '{"type":"file_output","filename":"/tmp/a.png","kind":{"type":"file_type"},"index":0,"place":5}',
    ),
    *(
        (
            slot_responses,
            Metric("t.a", RAW(b"1"), mode),
            f'{{"type":"metric","name":"t.a","value":1,"mode":"{mode.value}"}}',
        )
        for mode in MetricMode
    ),
    (
        slot_responses,
        Done(IDLE, predict_time=0.5),
        '{"type":"done","idle":{"slot":0,"id":"p1","run":7},"predict_time":0.5}',
    ),
    (
        slot_responses,
        Done(IDLE, True, 0.5, is_stream=True),
        '{"type":"done","idle":{"slot":0,"id":"p1","run":7},"folder":true,"predict_time":0.5,"is_stream":true}',
    ),
    (
        slot_responses,
        Done(IDLE, predict_time=0.5, output=RAW(b'{"a":1}')),
        '{"type":"done","idle":{"slot":0,"id":"p1","run":7},"predict_time":0.5,"output":{"a":1}}',
    ),
    (
        slot_responses,
        RunFailed(IDLE, error="ValueError: boom"),
        '{"type":"failed","idle":{"slot":0,"id":"p1","run":7},"error":"ValueError: boom"}',
    ),
    (slot_responses, RunCancelled(IDLE), '{"type":"cancelled","idle":{"slot":0,"id":"p1","run":7}}'),
]


@pytest.mark.parametrize(
    ("decoder", "message", "wire"), SNAPSHOTS, ids=[f"{n}-{type(s[1]).__name__}" for n, s in enumerate(SNAPSHOTS)]
)
def test_snapshot(decoder: Any, message: msgspec.Struct, wire: str) -> None:
    assert msgspec.json.encode(message).decode() == wire
    assert decoder.decode(wire.encode()) == message


def test_every_message_has_a_snapshot() -> None:
    import typing

    from cog_trio.bridge import protocol

    shown = {type(message) for _, message, _ in SNAPSHOTS}
    for union in (protocol.ControlRequest, protocol.ControlResponse, protocol.SlotRequest, protocol.SlotResponse):
        assert set(typing.get_args(union) or [union]) <= shown


def test_metric_modes_are_spelled_as_the_reference_spells_them() -> None:
    assert [mode.value for mode in MetricMode] == ["replace", "increment", "append"]
