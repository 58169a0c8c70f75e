"""``cog-trio doctor`` without a worker: what it reads, what ``--fix`` changes, and what it leaves to people."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from cog_trio.cli.doctor import command
from cog_trio.cli.doctor.deprecated_names import Subject, deprecated, imported_elsewhere, older_key
from cog_trio.cli.doctor.findings import Finding, mend, mended
from cog_trio.cli.doctor.missing_requirements import missing_requirements
from cog_trio.cli.doctor.python_source import PythonSource
from cog_trio.config.cog_yaml import Config, ModelTarget

OLD = """\
# a model of old
from cog.server.exceptions import CancelationException
from cog import (
    BasePredictor,  # the base
    Input, emit_metric,
    File,
)

class Predictor(BasePredictor):
    \"\"\"A BasePredictor with a predict().\"\"\"
    @decorated
    def predict(self, text: str = Input(description="ä")) -> str:
        emit_metric("n", 1); x = "é"; emit_metric("m", 2)
        return text if not text else self.predict(text[1:]) + self.model.predict(x)

model: "list" = [Predictor]
"""
NEW = """\
# a model of old
from cog import CancelationException
from cog import (
    BaseRunner,  # the base
    Input, current_scope,
    File,
)

class Runner(BaseRunner):
    \"\"\"A BasePredictor with a predict().\"\"\"
    @decorated
    def run(self, text: str = Input(description="ä")) -> str:
        current_scope().record_metric("n", 1); x = "é"; current_scope().record_metric("m", 2)
        return text if not text else self.run(text[1:]) + self.model.predict(x)

model: "list" = [Runner]
"""


def _look(folder: Path, text: str | bytes, name: str | None = None, *, train: bool = False) -> list[Finding]:
    path = folder / "predict.py"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    source = PythonSource(path, "predict.py")
    return list(deprecated(Subject(source, name, imported_elsewhere(folder, path), train)))


def _mended(folder: Path, found: Sequence[Finding]) -> str:
    path = folder / "predict.py"
    return mended(path.read_bytes(), (edit for finding in found for edit in finding.edits)).decode()


def test_old_names_are_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    found = _look(tmp_path, OLD)
    assert _mended(tmp_path, found) == NEW
    assert [finding.where for finding in found] == [f"predict.py:{line}" for line in (2, 4, 5, 6, 9, 12)]
    left = _look(tmp_path, NEW)
    assert [str(finding) for finding in left] == [
        "predict.py:6: deprecated: File is deprecated; take Path, which can be read as a file on disk"
    ]


@pytest.mark.parametrize("change", [lambda data: data.replace(b"\n", b"\r\n"), lambda data: b"\xef\xbb\xbf" + data])
def test_line_ends_and_byte_order_marks_stay(tmp_path: Path, change: object) -> None:
    assert callable(change)
    found = _look(tmp_path, change(OLD.encode()))
    assert _mended(tmp_path, found).encode() == change(NEW.encode())


def test_a_file_in_another_encoding_is_left_to_people(tmp_path: Path) -> None:
    found = _look(
        tmp_path, b"# coding: latin-1\nfrom cog import BasePredictor\nX = '\xe4'\nclass A(BasePredictor): ...\n"
    )
    assert len(found) == 1
    assert found[0].edits == ()


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("from cog import BasePredictor\nBaseRunner = 1\nclass R(BasePredictor): ...\n", "class R(BasePredictor)"),
        ("from cog import BasePredictor\ndef f(BasePredictor): ...\nclass R(BasePredictor): ...\n", "import BasePred"),
        ("from cog import BasePredictor\n__all__ = ['BasePredictor']\n", "import BasePredictor"),
        ("from cog import emit_metric\nemit_metric(name='a', value=1)\n", "emit_metric(name"),
        ("from cog import emit_metric as e\ne('a', 1)\n", "emit_metric as e"),
        ("from cog import emit_metric\nkeep = emit_metric\n", "import emit_metric"),
        ("from cog import emit_metric\nfrom cog import current_scope\nemit_metric('a', 1)\n", "import emit_metric"),
        ("from cog.server.scope import current_scope, scope\n", "cog.server.scope"),
        ("class Predictor:\n    def run(self): ...\nRunner = 1\n", "class Predictor"),
        ("class Predictor:\n    def predict(self): ...\n    def f(self): self.run = 1\n", "def predict"),
        ("class Predictor:\n    run = 1\n    def predict(self): ...\n", "def predict"),
        ("class Predictor(Other):\n    def predict(self): ...\n", "def predict"),
        ("class Predictor:\n    def predict(self): ...\np = Predictor()\np.predict()\n", "def predict"),
        ("class Predictor:\n    def predict(self): ...\nPredictor().predict()\n", "def predict"),
        ("class Predictor:\n    def predict(this): this.predict()\n", "def predict"),
        ("class Predictor:\n    def predict(self): super().predict()\n", "def predict"),
        ("class Predictor:\n    def predict(self): getattr(self, 'predict')\n", "def predict"),
        ("class Predictor:\n    def \\\n predict(self): ...\n", "predict(self)"),
        ("class Predictor:\n    def predict(self): ...\n    again = predict\n", "def predict"),
        ("class Predictor:\n    def predict(self):\n        class K:\n            def f(self): self.predict()\n", "K:"),
        ("class Predictor:\n    def predict(self): return type(self).__name__\n", "class Predictor"),
        ("class Predictor:\n    def predict(self): return self.predict.__name__\n", "self.predict"),
        ("class Predictor:\n    def predict(self): return self._Predictor__x\n", "class Predictor"),
    ],
)
def test_what_is_unclear_is_told_and_left(tmp_path: Path, text: str, kept: str) -> None:
    found = _look(tmp_path, text)
    assert any(not finding.edits for finding in found)
    assert kept in _mended(tmp_path, found)
    ast.parse(_mended(tmp_path, found))


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("import cog\nclass R(cog.BasePredictor): ...\n", "class R(cog.BaseRunner)"),
        ("import cog as c\nclass R(c . BasePredictor): ...\n", "class R(c . BaseRunner)"),
        ("from cog import BasePredictor as B\nclass R(B): ...\n", "import BaseRunner as B"),
        ("from cog import Predictor\nclass R(Predictor): ...\n", "class R(BaseRunner)"),
        ("from cog.base_predictor import BasePredictor\nclass R(BasePredictor): ...\n", "from cog import BaseRunner"),
        (
            "from cog import current_scope, emit_metric\nemit_metric('a', 1)\n",
            "from cog import current_scope\ncurrent_s",
        ),
        (
            "from cog import emit_metric, current_scope\nemit_metric('a', 1)\n",
            "from cog import current_scope\ncurrent_s",
        ),
        ("class R:\n    async def predict(self): ...\n    def run_it(self): ...\n", "async def run(self)"),
    ],
)
def test_other_spellings_are_mended_too(tmp_path: Path, text: str, after: str) -> None:
    found = _look(tmp_path, text, "R")
    assert found
    assert after in _mended(tmp_path, found)
    assert _look(tmp_path, _mended(tmp_path, found), "R") == []


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        ("ConcatenateIterator", "it is read as of texts: write ConcatenateIterator[str]"),
        ("typing.Iterator", "it is read as of anything: write Iterator[...]"),
        ("AsyncGenerator", "it is read as of texts: write AsyncIterator[...]"),
        ("Iterator[str]", None),
        ("str", None),
    ],
)
@pytest.mark.parametrize(
    ("before", "name"), [("class Runner:\n    ", None), ("class Mine:\n    ", "Mine"), ("\n", "run"), ("\n", None)]
)
def test_a_bare_iterator_is_a_hint(
    tmp_path: Path, before: str, name: str | None, annotation: str, said: str | None
) -> None:
    found = [str(finding) for finding in _look(tmp_path, f"{before}def run(self) -> {annotation}: ...\n", name)]
    if said is None:
        assert found == []
    else:
        assert len(found) == 1
        assert found[0].startswith("predict.py:2: hint: ")
        assert found[0].endswith(said)


def test_the_line_of_a_faulty_signature_is_that_of_the_function(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text("class Runner:\n    x = 1\n    def run(self, z: set) -> bytes: ...\n")
    assert command._signature(ModelTarget(tmp_path, "run.py", None, Config())) == "run.py:3"
    assert command._signature(ModelTarget(tmp_path, "run.py:Other", None, Config())) is None
    both = ModelTarget(tmp_path, "run.py", "run.py:train", Config())
    assert command._signature(both) is None  # either may be meant


def test_a_class_that_the_reference_names_may_be_called_as_it_likes(tmp_path: Path) -> None:
    assert _look(tmp_path, "class Predictor:\n    def run(self): ...\n", "Predictor") == []
    assert (
        _look(tmp_path, "class Predictor:\n    def predict(self): ...\n    def train(self): ...\n", train=True)[1:]
        == []
    )
    assert _look(tmp_path, "class Runner:\n    def predict(self): ...\n    def run(self): ...\n") == []


def test_a_file_that_others_import_keeps_its_names(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from predict import Predictor\n")
    found = _look(tmp_path, "class Predictor:\n    def predict(self): ...\n")
    assert [finding.edits for finding in found] == [(), ()]


def test_only_files_of_the_model_count_as_others(tmp_path: Path) -> None:
    for name in (".venv", "venv/lib", "deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".venv" / "a.py").write_text("import predict\n")
    (tmp_path / "venv" / "lib" / "a.py").write_text("import predict\n")
    (tmp_path / "gone.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "deep" / "a.py").write_text("x = 'import predict'\n")
    assert not imported_elsewhere(tmp_path, tmp_path / "predict.py")
    assert imported_elsewhere(tmp_path, tmp_path / "predict.py", limit=1)
    (tmp_path / "deep" / "b.py").write_text("if True:\n    from ..predict import Predictor\n")
    assert imported_elsewhere(tmp_path, tmp_path / "predict.py")


def test_mending_keeps_the_mode_and_shows_the_difference(tmp_path: Path) -> None:
    found = _look(tmp_path, OLD)
    path = tmp_path / "predict.py"
    path.chmod(0o751)
    shown = mend(path, (edit for finding in found for edit in finding.edits))
    assert path.read_text() == NEW
    assert path.stat().st_mode & 0o777 == 0o751
    assert "-class Predictor(BasePredictor):\n+class Runner(BaseRunner):\n" in shown
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ('# ä\nbuild: {}\n"predict": x.py  # old\n', None),
        ("# ä\npredict: x.py  # old\n", "# ä\nrun: x.py  # old\n"),
        ("\ufeffpredict : x.py\n", "\ufeffrun : x.py\n"),
        ("{train: a.py, predict: x.py}\n", "{train: a.py, run: x.py}\n"),
        ("base: &b {predict: x.py}\n<<: *b\n", None),
    ],
)
def test_the_older_key_of_cog_yaml(tmp_path: Path, text: str, after: str | None) -> None:
    path = tmp_path / "cog.yaml"
    path.write_text(text, encoding="utf-8")
    (found,) = older_key(path)
    assert (found.edits == ()) == (after is None)
    if after is not None:
        assert mended(path.read_bytes(), found.edits).decode() == after
        path.write_text(after, encoding="utf-8")
        assert list(older_key(path)) == []


def test_imports_that_no_requirement_names_are_hints(tmp_path: Path) -> None:
    (tmp_path / "predict.py").write_text(
        "import json, yaml, trio, helper, absent\nimport numpy.linalg\nfrom cog import Input\n"
    )
    (tmp_path / "helper.py").write_text("import click\nimport yaml\nimport predict\n")
    source = PythonSource(tmp_path / "predict.py", "predict.py")
    assert [str(finding) for finding in missing_requirements(source, tmp_path, frozenset({"numpy"}))] == [
        "predict.py:1: hint: yaml (PyYAML) is imported, but the requirements do not name it",
        "helper.py:1: hint: click is imported, but the requirements do not name it",
    ]


def test_keys_that_nobody_reads_are_hints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "predict.py").write_text("x = (\n")
    (tmp_path / "cog.yaml").write_text("run: predict.py\nenv: [A=1]\nbuild:\n  novel: 1\n  gpu: true\n")
    command.command([str(tmp_path)], standalone_mode=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.rpartition("/")[2] for line in lines[:2]] == [
        "cog.yaml:2: hint: env is unknown and ignored",
        "cog.yaml:4: hint: build.novel is unknown and ignored",
    ]
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"cog.yaml": "run: predict.py\nrun: predict.py\n", "predict.py": ""}, "cog.yaml:2: run stands here a second"),
        ({"cog.yaml": "run: gone.py\n"}, "names gone.py"),
        (
            {"cog.yaml": "run: predict.py\n", "predict.py": "x = (\n"},
            "predict.py:1: problem: SyntaxError: '(' was never",
        ),
        ({"cog.yaml": "run: predict.py\n", "predict.py": "x = '\0'\n"}, "predict.py.* problem: "),
    ],
)
def test_what_can_be_read_needs_no_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str], words: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    code = command.command([str(tmp_path)], standalone_mode=False)
    captured = capsys.readouterr()
    assert code == 1
    assert captured.out.count("\n") == 1
    assert words.split(".*")[0] in captured.out
    assert words.split(".*")[-1] in captured.out
    assert captured.err.endswith(": 1 to mend\n")
