"""A shell is offered the inputs of the model, from its source alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cog_trio.cli import commands, options

MODEL = """
raise SystemExit("the model is never imported")

class Runner(BaseRunner):
    def run(
        self,
        prompt: str,
        size: int = Input(default=1, choices=[1, 16, 2]),
        style: Literal["oil", "ink"] = "oil",
        image: Path | None = None,
        *,
        sharp: bool = False,
    ) -> str: ...

def train(epochs: int = 1) -> int: ...
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "cog.yaml").write_text("run: model.py\ntrain: model.py:train\n")
    (tmp_path / "cat.png").touch()
    (tmp_path / "cats").mkdir()
    (tmp_path / ".hidden").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("cog-trio run -i ", ["prompt=", "size=", "style=", "image=", "sharp="]),
        ("cog-trio run -i s", ["size=", "style=", "sharp="]),
        ("cog-trio run model.py:Runner -i p", ["prompt="]),
        ("cog-trio run -f cog.yaml -i p", ["prompt="]),
        ("cog-trio train -i ", ["epochs="]),
        ("cog-trio run -i size=1", ["1", "16"]),
        ("cog-trio run -i style=", ["oil", "ink"]),
        ("cog-trio run -i sharp=t", ["true"]),
        ("cog-trio run -i image=", ["@"]),
        ("cog-trio run -i image=@ca", ["cat.png", "cats/"]),
        ("cog-trio run -i image=@.h", [".hidden"]),
        ("cog-trio run -i image=@gone/", []),
        ("cog-trio run gone.py -i ", []),
    ],
)
def test_bash_is_offered_the_rest_of_its_word(
    line: str, offered: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_COG_TRIO_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_LINE", line + "behind the cursor")
    monkeypatch.setenv("COMP_POINT", str(len(line)))
    with pytest.raises(SystemExit):
        options.run_command(commands, options.NAME)
    assert capsys.readouterr().out.split() == [f"plain,{text}" for text in offered]


@pytest.mark.process
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_script_completes_in_a_real_bash() -> None:
    """What bash has in its reply when it has cut the word at ``=`` and ``@``."""
    program = f"{sys.executable} -c 'from cog_trio.cli import main; main()'"
    script = f"""
cog-trio() {{ {program} "$@"; }}
env() {{ local v; while [[ $1 == *=* ]]; do export "$1"; shift; done; "$@"; }}
eval "$(cog-trio completion bash)"
compopt() {{ :; }}
COMP_LINE="cog-trio run -i image=@ca"; COMP_POINT=${{#COMP_LINE}}
COMP_WORDS=(cog-trio run -i image =@ ca); COMP_CWORD=5
_cog_trio_completion cog-trio
printf '%s\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["cat.png", "cats/"], done.stderr
