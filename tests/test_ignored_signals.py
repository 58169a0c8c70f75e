"""What a program inherits that is started by tests in the background, or under nohup."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

pytestmark = pytest.mark.process
ROOT: Final = Path(__file__).parent.parent
TELL: Final = "import signal; print(*(signal.getsignal(name) is signal.SIG_IGN for name in (1, 2, 3)))"
START: Final = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TELL!r}], check=True)"
CATCH: Final = "from tests.ignored_signals import catch_ignored_signals as catch; catch(); "


@pytest.mark.parametrize(("code", "told"), [(START, "True True True"), (CATCH + START, "False False False")])
def test_signals_that_are_ignored_here_are_default_in_programs(code: str, told: str) -> None:
    command = ["sh", "-c", "trap '' HUP INT QUIT; exec \"$@\"", "sh", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.split("\n")[0] == told


def test_what_was_ignored_ends_no_test() -> None:
    code = f"{CATCH}import os, signal; [os.kill(os.getpid(), number) for number in (1, 2, 3)]; print('lives')"
    command = ["sh", "-c", "trap '' HUP INT QUIT; exec \"$@\"", "sh", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "lives\n"
