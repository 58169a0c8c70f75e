"""Which files count for ``--reload``, and what is said of them."""

from __future__ import annotations

import pytest

from cog_trio.cli.watch import _counts, _why, obstacle
from cog_trio.settings import BadSetting, Settings, read, worker_variables


@pytest.mark.parametrize(
    ("path", "counts"),
    [
        ("/model/predict.py", True),
        ("/model/deep/inside/helper.py", True),
        ("/model/cog.yaml", True),
        ("/more/library.py", True),
        ("/model/deep/cog.yaml", False),  # of another model
        ("/model/weights.json", False),
        ("/model/output.png", False),
        ("/model/.predict.py.swp", False),
        ("/model/.predict.py", False),
        ("/model/.git/hooks/x.py", False),
        ("/model/.venv/lib/python3.12/site-packages/numpy/__init__.py", False),
        ("/model/venv/lib/python3.12/os.py", False),
        ("/model/__pycache__/predict.cpython-312.pyc", False),
        ("/model/node_modules/gyp/gyp.py", False),
    ],
)
def test_what_counts(path: str, counts: bool) -> None:
    assert _counts(["/model", "/more"], None, path) is counts


def test_what_is_said() -> None:
    assert _why("/model", ["/model/a.py"]) == "a.py has changed"
    assert _why("/model", ["/model/a.py", "/model/b/c.py", "/more/d.py"]) == "a.py and 2 more have changed"


def test_reload_is_off_and_a_folder_turns_it_on() -> None:
    assert read({}, {})[0].reload is False
    assert read({"reload": "true"}, {})[0].reload is True
    chosen, _ = read({}, {"COG_TRIO_RELOAD_DIR": "a,b"})
    assert (chosen.reload, chosen.reload_dir) == (True, ("a", "b"))
    with pytest.raises(BadSetting, match="COG_TRIO_RELOAD"):
        read({}, {"COG_TRIO_RELOAD": "perhaps"})


def test_two_saves_within_a_second_are_told_apart() -> None:
    assert worker_variables(Settings(reload=True))["PYTHONDONTWRITEBYTECODE"] == "1"
    assert "PYTHONDONTWRITEBYTECODE" not in worker_variables(Settings())


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    assert obstacle(Settings(reload=True)) is None
    assert obstacle(Settings(reload=True, reload_dir=(str(tmp_path), "/nowhere"))) == (
        "--reload-dir /nowhere: there is no such folder"
    )
    monkeypatch.setattr("cog_trio.cli.watch.find_spec", lambda name: None)
    assert obstacle(Settings(reload=True)) == ("--reload needs the package watchfiles: pip install 'cog-trio[reload]'")
