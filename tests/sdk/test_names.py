"""The names that models import: what is there, what it costs, what it says."""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Any

import pydantic
import pytest
from packaging.version import Version

import cog_trio.sdk as cog
from cog_trio import _version
from cog_trio._alias import install
from cog_trio.sdk import _deprecated

MODULES = {
    "types": "Path File URLPath URLFile Secret ConcatenateIterator AsyncConcatenateIterator Item get_filename "
    "FILENAME_ILLEGAL_CHARS FILENAME_MAX_LENGTH Input ExperimentalFeatureWarning Weights PYDANTIC_V2 CogConfig "
    "CogBuildConfig CogConcurrencyConfig get_filename_from_urlopen",
    "predictor": "BaseRunner BasePredictor load_predictor_from_ref has_setup_weights extract_setup_weights get_predict "
    "get_train get_healthcheck get_weights_type get_predictor",
    "input": "Input FieldInfo",
    "model": "BaseModel",
    "mode": "Mode",
    "suppress_output": "suppress_output",
    "coder": "Coder",
    "errors": "CogError ConfigDoesNotExist PredictorNotSet",
    "exceptions": "CancelationException",
    "server.exceptions": "CancelationException FatalWorkerException InvalidStateException",
    "server.errors": "CogServerError FileUploadError RunnerBusyError UnknownPredictionError CogRuntimeError "
    "CogTimeoutError",
    "server.scope": "Scope current_scope emit_metric scope evolve_scope",
    "server.http": "Mode",
    "schema": "Status WebhookEvent PredictionRequest PredictionResponse TrainingRequest TrainingResponse",
    "base_predictor": "BasePredictor",
    "base_input": "BaseInput",
    "response": "PredictionResponse",
    "files": "upload_file put_file_to_signed_endpoint guess_filename ensure_trailing_slash",
    "json": "make_encodeable upload_files",
    "mimetypes_ext": "install_mime_extensions",
    "logging": "setup_logging",
    "ext": "",
    "config": "Config",
    "wait": "wait_for_env",
    "command.openapi_schema": "main",
}


@pytest.mark.covers("sdk:W23")
@pytest.mark.parametrize("name", MODULES)
def test_W23_modules(name: str) -> None:
    install()  # older modules stand elsewhere, and are found by Cog's names
    module = importlib.import_module(f"cog.{name}")
    for attribute in MODULES[name].split():
        assert getattr(module, attribute) is not None


def test_all() -> None:
    for name in cog.__all__:
        assert getattr(cog, name) is not None
    assert cog.Predictor is cog.BasePredictor
    with pytest.raises(AttributeError):
        cog.no_such_name  # noqa: B018


def test_trio_is_there_and_hides_no_package() -> None:
    """``from cog import *`` in a model that has imported trio leaves it the package."""
    space: dict[str, Any] = {}
    exec("import trio\nfrom cog_trio.sdk import *", space)
    assert space["trio"].open_nursery is not None
    assert cog.trio.__module__ == "cog"


def test_version() -> None:
    assert Version(cog.__version__) >= Version("0.23.1")
    assert version("cog-trio") == _version.__version__


@pytest.mark.process
def test_a_bare_import_is_light() -> None:
    heavy = ["trio", "httpx", "msgspec", "pydantic", "asyncio", "http.client", "yaml", "cog_trio.sdk.schema"]
    code = f"import cog_trio.sdk, sys; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_deprecated_names_speak_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_deprecated, "_told", set())
    for _ in range(3):
        assert cog.emit_metric is not None
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert issubclass(cog.ExperimentalFeatureWarning, FutureWarning)
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_cancelation_is_no_exception() -> None:
    assert issubclass(cog.CancelationException, BaseException)
    assert not issubclass(cog.CancelationException, Exception)


def test_input_facts() -> None:
    given: Any = cog.Input(default=None)
    absent: Any = cog.Input()
    assert given == absent
    assert given.default is absent.default is None
    assert (given.has_default, absent.has_default) == (True, False)
    assert repr(given) == repr(absent)
    positional: Any = cog.Input(1, "d", 0, 5)
    assert (positional.default, positional.description, positional.ge, positional.le) == (1, "d", 0, 5)
    assert cog.FieldInfo(default=3).has_default
    with pytest.raises(TypeError, match="default_factory"):
        cog.Input(default_factory=list)
    with pytest.raises(TypeError):
        cog.Input(gt=1)  # type: ignore[call-arg]


def test_pydantic_fields_as_inputs() -> None:
    from cog_trio.sdk.schema import describe_signature

    def run(x: int = pydantic.Field(5, description="d", ge=1, le=9), y: str = pydantic.Field(pattern="^a")) -> Any: ...

    x, y = describe_signature(run).inputs.parameters
    assert x.fragment == {"type": "integer", "description": "d", "minimum": 1, "maximum": 9, "default": 5}
    assert y.fragment == {"type": "string", "pattern": "^a"}
    assert y.required


def test_marks_return_the_same_function() -> None:
    async def run() -> AsyncIterator[str]:
        yield "a"

    assert cog.streaming(run) is run
    assert cog.streaming()(run) is run
    assert run.__cog_streaming__ is True  # type: ignore[attr-defined]
    assert cog.concurrent(max=4)(run) is run
    assert run.__cog_concurrent_max__ == 4  # type: ignore[attr-defined]
    assert cog.concurrent(run) is run
    assert run.__cog_concurrent_max__ == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "error"), [({"max": True}, TypeError), ({"max": "2"}, TypeError), ({"max": 0}, ValueError)]
)
def test_concurrent_limits(options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        cog.concurrent(**options)


def test_concurrent_needs_async() -> None:
    def run() -> None: ...

    with pytest.raises(TypeError, match="async def"):
        cog.concurrent(max=2)(run)
    with pytest.raises(TypeError, match="by name"):
        cog.concurrent(4)  # type: ignore[call-overload]


def test_base_runner_bridges_the_names() -> None:
    class Old(cog.BaseRunner):
        def predict(self, x: int) -> int:
            return x + 1

    class New(cog.BaseRunner):
        def run(self, x: int) -> int:
            return x + 2

    assert Old().run(1) == 2
    with pytest.warns(DeprecationWarning, match="run"):
        assert New().predict(1) == 3
    with pytest.raises(NotImplementedError):
        cog.BaseRunner().run()
    assert not hasattr(cog.BaseRunner(), "train")
    assert not hasattr(cog.BaseRunner(), "healthcheck")


def test_opaque_is_one() -> None:
    import copy
    import pickle

    from cog_trio import _alias

    _alias.install()
    assert repr(cog.Opaque) == "cog.Opaque"
    assert copy.deepcopy(cog.Opaque) is cog.Opaque
    assert pickle.loads(pickle.dumps(cog.Opaque)) is cog.Opaque


@pytest.mark.process
def test_suppress_output(capfd: pytest.CaptureFixture[str]) -> None:
    from cog_trio.sdk.legacy.suppress_output import suppress_output

    with suppress_output():
        subprocess.run(["echo", "gone"], check=True)
    subprocess.run(["echo", "here"], check=True)
    assert capfd.readouterr().out == "here\n"


def test_older_data_classes() -> None:
    from cog_trio.sdk.schema import PredictionRequest, Status, WebhookEvent

    assert Status.is_terminal("failed")
    assert Status.is_terminal(Status.CANCELED)
    assert not Status.is_terminal(None)
    assert Status("processing") == "processing"
    assert WebhookEvent.default_events() == set(WebhookEvent)
    assert PredictionRequest(input={"a": 1}).webhook is None


def test_older_json_and_files(tmp_path: Any) -> None:
    import datetime
    import io

    from cog_trio.sdk.legacy.files import ensure_trailing_slash, guess_filename, upload_file
    from cog_trio.sdk.legacy.json import make_encodeable, upload_files

    class Out(cog.BaseModel):
        path: cog.Path
        secret: cog.Secret

    file = tmp_path / "a.txt"
    file.write_bytes(b"hi")
    encodeable = make_encodeable({"a": (Out(cog.Path(file), cog.Secret("k")),), "d": datetime.date(2020, 1, 2)})
    assert encodeable == {"a": [{"path": cog.Path(file), "secret": "**********"}], "d": "2020-01-02"}
    assert upload_files(encodeable, upload_file)["a"][0]["path"] == "data:text/plain;base64,aGk="
    assert guess_filename(io.BytesIO()) == "file"
    assert ensure_trailing_slash("http://h/a") == "http://h/a/"


def test_async_marks_are_found() -> None:
    async def run() -> None: ...

    assert asyncio.iscoroutinefunction(cog.concurrent(max=2)(run))
