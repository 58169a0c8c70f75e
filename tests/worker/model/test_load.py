"""Loading: from a reference to a model that can be run."""

from __future__ import annotations

import asyncio
import inspect
import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cog_trio.sdk as cog
from cog_trio.bridge import protocol
from cog_trio.bridge.protocol import Kind
from cog_trio.worker.model.load import load_model, load_models
from tests.sdk.source import PRELUDE, Models, arguments, opened_models

PLAIN = "class Runner(BaseRunner):\n    def run(self, x: int) -> int:\n        return x\n"


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Models]:
    for name in ("COG_WEIGHTS", "COG_OPENAPI_SCHEMA"):
        monkeypatch.delenv(name, raising=False)
    yield from opened_models(tmp_path, monkeypatch)


@pytest.mark.covers("sdk:58")
def test_row_58_runner_wins_and_says_so(models: Models) -> None:
    old = PLAIN.replace("Runner(", "Predictor(").replace("run", "predict")
    with pytest.warns(UserWarning, match="Runner is used"):
        model = load_model(models.write(PRELUDE + PLAIN + old))
    assert model.call(5) == 5
    assert type(model.call.__self__).__name__ == "Runner"  # type: ignore[attr-defined]


@pytest.mark.covers("sdk:58")
def test_row_58_predictor_alone(models: Models) -> None:
    with pytest.warns(DeprecationWarning, match="Predictor") as told:
        model = load_model(
            models.write(PRELUDE + "class Predictor(BasePredictor):\n    def predict(self) -> int:\n        return 3\n")
        )
    assert model.call() == 3
    assert [str(warning.message) for warning in told] == [
        "old names of Cog are used (class Predictor, predict(), BasePredictor); "
        "cog-trio doctor tells where and what to write"
    ]


@pytest.mark.covers("sdk:58")
def test_row_58_a_runner_that_is_none_gives_way_to_predictor(models: Models) -> None:
    source = "class Runner:\n    pass\nclass Predictor:\n    def run(self) -> int:\n        return 3\n"
    with pytest.warns(DeprecationWarning, match="class Predictor"):
        assert load_model(models.write(source)).call() == 3


@pytest.mark.covers("sdk:58")
@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        ("class Runner:\n    def run(self): ...\n    def predict(self): ...", ValueError, "not both"),
        (
            "class Base:\n    def predict(self): ...\nclass Runner(Base):\n    def run(self): ...",
            ValueError,
            "not both",
        ),
        (
            "class Mixin:\n    def run(self): ...\nclass Runner(BaseRunner, Mixin): ...",
            ValueError,
            "run or predict method not found",
        ),
        ("class Runner: ...", ValueError, "run or predict method not found"),
        ("class Runner:\n    run = 3", ValueError, "run or predict method not found"),
        ("Runner = 3", TypeError, "neither"),
        ("x = 1", AttributeError, "neither Runner nor Predictor"),
    ],
)
def test_row_58_what_is_no_model(source: str, error: type[Exception], text: str, models: Models) -> None:
    with pytest.raises(error, match=text):
        load_model(models.write(PRELUDE + source))


@pytest.mark.covers("sdk:58")
@pytest.mark.parametrize(
    "source",
    [
        "class Mixin:\n    def run(self) -> int:\n        return 3\nclass Runner(Mixin, BaseRunner): ...",
        "class Runner:\n    def run(self) -> int:\n        return 3",
        "def Runner() -> int:\n    return 3",
        "class Other:\n    def run(self) -> int:\n        return 3\nRunner = Other",
        "if True:\n    class Runner:\n        def run(self) -> int:\n            return 3",
        "class Base(BaseRunner):\n    def run(self) -> int:\n        return 3\nclass Runner(Base): ...",
    ],
)
def test_row_58_what_is_one(source: str, models: Models) -> None:
    assert load_model(models.write(PRELUDE + source)).call() == 3


@pytest.mark.covers("sdk:58")
@pytest.mark.parametrize(
    "source",
    [
        "class C:\n    def run(self) -> int:\n        return 3\nmodel = C()",
        "class C:\n    def __call__(self) -> int:\n        return 3\nmodel = C()",
        "def f(x: int) -> int:\n    return x\nmodel = functools.partial(f, x=3)",
        "def model() -> int:\n    return 3",
    ],
)
def test_row_58_named_objects(source: str, models: Models) -> None:
    model = models.load(source, "model")
    assert model.call() == 3
    assert model.setup is None


def test_named_objects_that_are_no_model(models: Models) -> None:
    with pytest.raises(AttributeError):
        models.load(PLAIN, "Nothing")
    with pytest.raises(TypeError, match="neither a class nor a function, but int"):
        models.load("model = 3", "model")


def test_no_reference() -> None:
    with pytest.raises(ValueError, match="COG_PREDICT_TYPE_STUB"):
        load_model(None)


def test_folders_need_not_be_packages(models: Models) -> None:
    models.write("VALUE = 3", "helper.py")
    model = load_model(
        models.write("import helper\ndef Runner() -> int:\n    return helper.VALUE\n", "my-subdir/predict.py")
    )
    assert model.call() == 3
    assert "predict" in sys.modules
    assert sys.path[0] == str(models.folder)
    sys.modules.pop("predict")


def test_one_import_for_many_references(models: Models) -> None:
    file = models.write(PRELUDE + PLAIN + "def train(x: int) -> int: ...\n")
    found = load_models(f"{file}:Runner", f"{file}:train")
    assert found.predict is not None
    assert found.train is not None
    assert found.predict.call.__func__.__globals__ is found.train.call.__globals__  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["json.py", "cog.py"])
def test_names_that_would_hide_others(name: str, models: Models) -> None:
    model = load_model(models.write("import json\ndef Runner() -> str:\n    return json.dumps([1])\n", "sub/" + name))
    assert model.call() == "[1]"
    assert sys.modules["cog"] is cog


@pytest.mark.covers("sdk:W25")
def test_W25_relative_imports_work_in_packages(models: Models) -> None:
    models.write("", "outer_pkg/__init__.py")
    models.write("", "outer_pkg/inner/__init__.py")
    models.write("VALUE = 3", "outer_pkg/types.py")
    model = load_model(
        models.write(
            "from ..types import VALUE\ndef Runner() -> int:\n    return VALUE\n", "outer_pkg/inner/predict.py"
        )
    )
    assert model.call() == 3
    assert "outer_pkg.inner.predict" in sys.modules


def test_a_package_whose_init_fails_does_not_matter_without_relative_imports(models: Models) -> None:
    models.write("raise RuntimeError", "broken_pkg/__init__.py")
    assert load_model(models.write("def Runner() -> int:\n    return 3\n", "broken_pkg/predict_b.py")).call() == 3


def test_sys_argv_is_short_while_user_code_is_imported(models: Models) -> None:
    source = "import sys\nseen = list(sys.argv)\ndef Runner() -> list[str]:\n    return seen\n"
    file = models.write(source)
    assert load_model(file).call() == [file]
    assert len(sys.argv) == 3


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("def (", SyntaxError),
        ("import no_such_module_of_ours", ModuleNotFoundError),
        ("raise SystemExit(3)", SystemExit),
        ("class Runner:\n    def __init__(self): raise KeyError\n    def run(self) -> int: ...", KeyError),
    ],
)
def test_failures_of_user_code_come_out_as_they_are(source: str, error: type[BaseException], models: Models) -> None:
    file = models.write(source)
    with pytest.raises(error):
        load_model(file)
    if error is not KeyError:
        assert Path(file).stem not in sys.modules


def test_missing_file() -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.py"):
        load_model("nowhere.py:Runner")


def test_instances_pickle(models: Models) -> None:
    model = models.load(PLAIN)
    again = pickle.loads(pickle.dumps(model.call.__self__))  # type: ignore[attr-defined]
    assert again.run(3) == 3


KINDS = [
    ("def run(self) -> int: ...", Kind.SYNC),
    ("def run(self) -> Iterator[int]:\n        yield 1", Kind.SYNC),
    ("async def run(self) -> int: ...", Kind.ASYNC),
    ("async def run(self) -> AsyncIterator[int]:\n        yield 1", Kind.ASYNC),
    ("@wrap\n    async def run(self) -> int: ...", Kind.ASYNC),
]
WRAP = """\
def wrap(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper
"""


@pytest.mark.parametrize(("method", "kind"), KINDS)
def test_kinds(method: str, kind: Kind, models: Models) -> None:
    assert models.load(f"{WRAP}class Runner:\n    {method}\n").kind is kind


def test_kinds_of_objects(models: Models) -> None:
    source = "class C:\n    async def __call__(self, x: int = 1) -> int: ...\nmodel = C()\n"
    assert models.load(source, "model").kind is Kind.ASYNC
    assert models.load("async def f() -> int: ...\nmodel = functools.partial(f)\n", "model").kind is Kind.ASYNC


ASYNC = "class Runner:\n    {}\n    async def run(self) -> int: ...\n"


@pytest.mark.covers("sdk:W30")
def test_W30_concurrency(models: Models) -> None:
    assert models.load(ASYNC.format("")).concurrency == 1
    assert models.load(ASYNC.format("@concurrent(max=4)")).concurrency == 4
    assert (
        models.load(ASYNC.format("@wrap\n    @concurrent(max=4)").replace("class", WRAP + "class", 1)).concurrency == 4
    )
    assert models.load(ASYNC.format("@concurrent(max=4)"), max_concurrency=2).concurrency == 2
    assert models.load(PLAIN, max_concurrency=1).concurrency == 1


@pytest.mark.covers("D33")
def test_D33_sync_models_have_one_slot(models: Models) -> None:
    with pytest.raises(
        ValueError,
        match=r"max_concurrency is \d+, but run\(\) is a plain def",
    ):
        models.load(PLAIN, max_concurrency=2)
    file = models.write(PRELUDE + PLAIN)
    with pytest.raises(ValueError, match="COG_MAX_CONCURRENCY is 2, but"):
        load_models(file, None, max_concurrency=2, concurrency_from="COG_MAX_CONCURRENCY")


@pytest.mark.covers("sdk:W20", "sdk:59")
@pytest.mark.parametrize(
    ("parameters", "given", "expected"),
    [
        ("self, device='cpu', weights: Optional[Path] = None", "https://h/w.tar", ("cpu", "https://h/w.tar")),
        ("self, device='cpu', weights: Optional[Path] = 'other'", None, ("cpu", None)),
        ("self, weights: pathlib.Path, device='cpu'", "a/b", ("cpu", "a/b")),
        ("self, device='cpu', *, weights: 'Path | None'", "a/b", ("cpu", "a/b")),
        ("self, weights, device='cpu'", "https://h/w.tar", ("cpu", "https://h/w.tar")),
        ("self, device='cpu', weights=None, /", "a", ("cpu", "a")),
        ("self, weights: str, device='cpu'", "", ("cpu", None)),
    ],
)
def test_row_59_W20_weights(
    parameters: str, given: str | None, expected: Any, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given is not None:
        monkeypatch.setenv("COG_WEIGHTS", given)
    model = models.load(
        f"class Runner:\n    def setup({parameters}):\n        self.got = device, weights\n"
        "    def run(self) -> Any:\n        return self.got\n"
    )
    assert model.setup is not None
    assert model.setup() is None
    device, weights = model.call()
    assert (device, None if weights is None else str(weights)) == expected
    kind = cog.Path if "Path" in parameters else str
    assert weights is None or isinstance(weights, kind)


@pytest.mark.covers("sdk:W20")
def test_W20_weights_as_files(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "class Runner:\n    def setup(self, weights: File):\n        self.got = weights\n"
        "    def run(self) -> Any:\n        return self.got\n"
    )
    for text, kind in (("https://h/w", cog.URLFile), (models.write("hi", "w.bin"), None)):
        monkeypatch.setenv("COG_WEIGHTS", text)
        model = models.load(source)
        assert model.setup is not None
        model.setup()
        with model.call() as weights:
            assert isinstance(weights, kind) if kind else weights.read() == b"hi"


def test_setup_that_wants_more(models: Models) -> None:
    with pytest.raises(TypeError, match="device, size"):
        models.load("class Runner:\n    def setup(self, device, size, weights): ...\n    def run(self) -> int: ...\n")


def test_setup_of_ours_is_none_and_async_ones_are_awaitable(models: Models) -> None:
    assert models.load(PLAIN).setup is None
    model = models.load("class Runner:\n    async def setup(self): ...\n    async def run(self) -> int: ...\n")
    assert model.setup is not None
    waiting = model.setup()
    assert inspect.isawaitable(waiting)
    waiting.close()  # type: ignore[attr-defined]


def test_healthchecks(models: Models) -> None:
    assert not models.load(PLAIN).has_healthcheck
    model = models.load(PLAIN + "    def healthcheck(self):\n        return False\n")
    assert model.has_healthcheck
    assert model.healthcheck is not None
    assert model.healthcheck() is False


TRAINER = """\
class Trainer:
    def setup(self):
        self.ready = True
    def train(self, data: str, epochs: int = Input(default=3, ge=1)) -> dict:
        return {"data": data, "epochs": epochs, "ready": self.ready}
"""


@pytest.mark.covers("sdk:W19", "sdk:60")
def test_row_60_W19_a_class_with_setup_and_train(models: Models) -> None:
    model = models.load(TRAINER, "Trainer", train=True)
    assert model.inputs.component == "TrainingInput"
    assert model.setup is not None
    model.setup()
    args, kwargs = model.bind({"data": "a"})
    assert model.call(*args, **kwargs) == {"data": "a", "epochs": 3, "ready": True}
    with pytest.raises(ValueError, match="run or predict"):
        models.load(TRAINER, "Trainer")
    with pytest.raises(ValueError, match=r"train\(\)"):
        models.load(PLAIN, "Runner", train=True)


def test_one_instance_for_both_references_to_one_class(models: Models) -> None:
    file = models.write(PRELUDE + PLAIN + "    def train(self, y: int) -> int: ...\n    def setup(self): ...\n")
    found = load_models(f"{file}:Runner", f"{file}:Runner")
    assert found.predict is not None
    assert found.train is not None
    assert found.predict.call.__self__ is found.train.call.__self__  # type: ignore[attr-defined]
    assert found.predict.setup is not None
    assert found.train.setup is None  # it has been called for the prediction


@pytest.mark.covers("D18")
def test_D18_sync_training_beside_an_async_run(models: Models) -> None:
    file = models.write(PRELUDE + ASYNC.format("") + "def train(x: int) -> int: ...\n")
    both = load_models(f"{file}:Runner", f"{file}:train", max_concurrency=32)
    assert both.predict is not None
    assert both.train is not None
    assert (both.predict.concurrency, both.train.concurrency) == (32, 1), (
        "concurrency.max is not meant for a sync train"
    )
    alone = load_models(None, f"{file}:train", max_concurrency=32).train
    assert alone is not None
    assert alone.concurrency == 1


@pytest.mark.parametrize("annotation", ["ConcatenateIterator", "Iterator", "Generator"])
def test_a_bare_iterator_is_a_stream(models: Models, annotation: str) -> None:
    """Of texts; of ``Iterator`` nobody knows."""
    code = (
        f"from typing import *\nfrom cog import *\nclass Runner(BaseRunner):\n    def run(self) -> {annotation}:\n"
        "        yield 'a'\n"
    )
    output = models.load(code).document["components"]["schemas"]["Output"]
    assert output["x-cog-array-type"] == "iterator"
    assert output["items"] == ({} if annotation == "Iterator" else {"type": "string"})
    assert ("x-cog-array-display" in output) is (annotation == "ConcatenateIterator")


def test_a_private_parameter_has_the_name_that_its_author_wrote(models: Models) -> None:
    model = models.load(
        "class _Runner:\n    def run(self, __weights: str = 'w', n: int = 1) -> str:\n        return __weights * n\n"
        "Runner = _Runner\n"
    )
    assert [field.name for field in model.inputs.fields] == ["__weights", "n"]
    args, kwargs = model.bind({"__weights": "x", "n": 2})
    assert model.call(*args, **kwargs) == "xx"
    args, kwargs = model.bind({})
    assert model.call(*args, **kwargs) == "w"


@pytest.mark.parametrize(
    ("source", "name", "train", "said"),
    [
        ("class Model:\n    def run(self): ...\n", "", False, "it has the class Model: name it by FILE:Model"),
        ("def predict(): ...\n", ":Nope", False, "it has the function predict: name it by FILE:predict"),
        (
            "class Runner:\n    def run(self): ...\n",
            ":train",
            True,
            "neither a class with a method train nor a function",
        ),
        ("class Mine:\n    def train(self): ...\n", ":train", True, "it has the class Mine: name it by FILE:Mine"),
        ("def train(): ...\n", ":Runner", False, "neither a class with a method run nor a function run: write one"),
    ],
)
def test_a_wrong_name_is_answered_with_what_is_there(
    models: Models, source: str, name: str, train: bool, said: str
) -> None:
    file = models.write(source)
    reference = f"{file}{name}"
    with pytest.raises(AttributeError) as caught:
        load_models(None if train else reference, reference if train else None)
    assert said.replace("FILE", file) in str(caught.value)


def test_a_method_without_self_is_told(models: Models) -> None:
    with pytest.raises(TypeError, match=r"run\(\) is a method without self: write run\(self, n: \.\.\.\)"):
        models.load("class Runner:\n    def run(n: int) -> str: ...\n")
    assert models.load("class Runner:\n    def run(this, n: int) -> str: ...\n").parameters[0].name == "n"


def test_the_parents_table(models: Models) -> None:
    model = models.run(
        "a: list[Path], b: int = Input(default=None), c: Optional[str] = Input(), d: Secret = 'x', e: Any = 1,"
        " f: str | int | None = Input(), **more"
    )
    assert model.inputs == protocol.Inputs(
        "Input",
        (
            protocol.Input("a", "path", many=True, required=True),
            protocol.Input("b", "int", nullable=True),
            protocol.Input("c", "str", nullable=True, inject_null=True),
            protocol.Input("d", "secret"),
            protocol.Input("e", "any", nullable=True),
            protocol.Input("f", "union", required=True, nullable=True),
        ),
        extra=True,
    )
    assert model.extra


@pytest.mark.covers("http:W43", "D1")
def test_D1_values_win_over_defaults_also_null(models: Models) -> None:
    model = models.run("x: Optional[int] = 5, y: Any = 2")
    assert model.bind({"x": None, "y": None}) == ([], {"x": None, "y": None})
    assert model.bind({}) == ([], {"x": 5, "y": 2})


@pytest.mark.covers("sdk:W3")
@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ("x: Path = 'a.png'", cog.Path("a.png")),
        ("x: list[Path] = Input(default=['a.png'])", [cog.Path("a.png")]),
        ("x: list[Path] = Input(default=(pathlib.Path('a.png'),))", [cog.Path("a.png")]),
        ("x: Secret = 'k'", cog.Secret("k")),
        ("x: list[Secret] = Input(default=['k'])", [cog.Secret("k")]),
        ("x: float = 3", 3.0),
        ("x: list[float] = Input(default=[3])", [3.0]),
        ("x: int = Input(default=3.0)", 3),
        ("x: str | float = 3", 3),
    ],
)
def test_W3_defaults_have_the_declared_type(parameter: str, expected: Any, models: Models) -> None:
    found = arguments(models.run(parameter), {})["x"]
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.covers("sdk:W3")
def test_W3_defaults_of_files(models: Models) -> None:
    name = models.write("hi", "default.txt")
    model = models.run(f"x: File = 'data:,hi', y: File = 'https://h/a', z: File = '{name}'")
    first, second = model.bind({})[1], model.bind({})[1]
    assert first["x"].read() == second["x"].read() == b"hi"
    assert isinstance(first["y"], cog.URLFile)
    for each in (first, second):
        with each["z"] as file:
            assert file.read() == b"hi"


def test_defaults_that_can_not_be_copied_are_shared(models: Models) -> None:
    with pytest.warns(UserWarning, match="no JSON form"):
        model = models.run("x: Any = LOCK", "import threading\nLOCK = threading.Lock()")
    assert model.bind({})[1]["x"] is model.bind({})[1]["x"]


def test_star_args_are_told(models: Models) -> None:
    with pytest.warns(UserWarning, match=r"\*rest is ignored"):
        assert models.run("x: int, *rest").bind({"x": 1}) == ([], {"x": 1})


def test_a_default_without_json_form_is_optional(models: Models) -> None:
    with pytest.warns(UserWarning, match="inf"):
        model = models.run("x: float = float('inf')")
    assert "required" not in model.document["components"]["schemas"]["Input"]
    assert arguments(model, {})["x"] == float("inf")


@pytest.mark.parametrize(
    ("parameter", "key"), [("x: str = Input(ge=1)", "minimum"), ("x: dict = Input(min_length=1)", "minLength")]
)
def test_constraints_that_do_not_fit_are_told_and_kept(parameter: str, key: str, models: Models) -> None:
    with pytest.warns(UserWarning, match="no effect"):
        model = models.run(parameter)
    assert model.document["components"]["schemas"]["Input"]["properties"]["x"][key] == 1


def test_choices_that_can_never_be_chosen_are_told(models: Models) -> None:
    with pytest.warns(UserWarning, match="never be chosen"):
        models.run("x: int = Input(choices=[1, 'a'])")


def test_inputs_kept_elsewhere(models: Models) -> None:
    before = (
        "class Inputs:\n    prompt = Input(default='a', description='d')\n"
        "def number(least):\n    return Input(default=5, ge=least)\nText = str\n"
    )
    model = models.run("a: Text = Inputs.prompt, b: int = number(2), c: 'Text' = cog.Input()", before)
    assert [dict(parameter.fragment) for parameter in model.parameters] == [
        {"type": "string", "description": "d", "default": "a"},
        {"type": "integer", "minimum": 2, "default": 5},
        {"type": "string"},
    ]


def test_a_run_inherited_from_another_file_reads_its_own_names(models: Models) -> None:
    models.write(
        "from typing import Optional as Maybe\nclass Base:\n    def run(self, x: 'Maybe[int]') -> 'Maybe[str]': ...\n",
        "base_file.py",
    )
    model = load_model(models.write("from base_file import Base\nclass Runner(Base): ...\n"))
    assert model.parameters[0].nullable


def test_a_method_does_not_hide_a_type_and_a_nested_class_does_count(models: Models) -> None:
    model = models.load(
        "class Runner:\n    class Kind(str, enum.Enum):\n        A = 'a'\n"
        "    def list(self): ...\n    def run(self, x: 'list[int]', y: 'Kind') -> 'Any': ...\n"
    )
    assert (model.parameters[0].kind, model.parameters[0].many) == ("int", True)
    assert model.parameters[1].enum is not None


DOCUMENT = {
    "openapi": "3.0.2",
    "paths": {"/predictions": {"post": {"x-cog-streaming": True}}},
    "components": {
        "schemas": {
            "Input": {
                "type": "object",
                "required": ["x"],
                "properties": {
                    "x": {"type": "integer"},
                    "p": {"type": "array", "items": {"type": "string", "format": "uri"}},
                    "c": {"allOf": [{"$ref": "#/components/schemas/c"}], "default": "a"},
                },
            },
            "c": {"type": "string", "enum": ["a", "b"]},
            "Output": {"type": "string"},
        }
    },
}


def test_a_named_document_is_served_as_it_is(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COG_OPENAPI_SCHEMA", models.write(json.dumps(DOCUMENT), "schema.json"))
    model = models.run("x: int = 3, p: list[Path] = Input(default=[]), c: str = 'a'")
    assert model.document == DOCUMENT
    assert [field.required for field in model.inputs.fields] == [True, False, False]


def test_a_named_document_without_the_training_leaves_it_to_the_code(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COG_OPENAPI_SCHEMA", models.write(json.dumps(DOCUMENT), "schema.json"))
    run = "    def run(self, x: int = 3, p: list[Path] = Input(default=[]), c: str = 'a') -> str: ...\n"
    file = models.write(f"{PRELUDE}class Runner:\n{run}def train(y: int) -> str: ...\n")
    with pytest.warns(UserWarning, match="TrainingInput"):
        found = load_models(f"{file}:Runner", f"{file}:train")
    assert found.predict is not None
    assert found.train is not None
    assert [field.required for field in found.predict.inputs.fields] == [True, False, False]
    assert [field.required for field in found.train.inputs.fields] == [True]


def test_both_are_set_up_unless_they_are_one(models: Models) -> None:
    file = models.write(PRELUDE + PLAIN + "    def setup(self): ...\n" + TRAINER)
    found = load_models(f"{file}:Runner", f"{file}:Trainer")
    assert len(found.setups) == 2
    assert found.main is found.predict
    assert found.kinds == {Kind.SYNC}
    alone = load_models(None, f"{file}:Trainer")
    assert len(alone.setups) == 1
    assert alone.main is alone.train


@pytest.mark.covers("sdk:W29")
def test_W29_a_bundled_document_helps_where_the_code_tells_nothing(models: Models) -> None:
    untyped = "x, p=Input(default=[]), c=Input(default='a')"
    with pytest.raises(TypeError):
        models.run(untyped)
    models.write(json.dumps(DOCUMENT), ".cog/openapi_schema.json")
    with pytest.warns(UserWarning, match=r"\.cog/openapi_schema\.json"):
        model = models.run(untyped)
    assert model.document == DOCUMENT
    assert model.streaming
    assert [(field.kind, field.many, field.required) for field in model.inputs.fields] == [
        ("int", False, True),
        ("path", True, False),
        ("str", False, False),
    ]
    assert arguments(model, {"x": 1.0}) == {"x": 1, "p": [], "c": "a"}


def test_async_models_run(models: Models) -> None:
    model = models.load("class Runner:\n    async def run(self, x: int = 2) -> int:\n        return x\n")
    args, kwargs = model.bind({})
    assert asyncio.run(model.call(*args, **kwargs)) == 2
