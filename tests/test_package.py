"""The public names of the package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cog_trio


@pytest.mark.parametrize("name", cog_trio.__all__)
def test_each_public_name_is_there(name: str) -> None:
    assert getattr(cog_trio, name) is not None
    assert name in dir(cog_trio)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = cog_trio.nothing


@pytest.mark.process
def test_a_bare_import_loads_nothing() -> None:
    code = (
        "import sys; import cog_trio; print([n for n in sys.modules if n.startswith(('cog_trio.', 'trio', 'msgspec'))])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert answer.stdout.strip() == "[]"


@pytest.mark.covers("D45")
@pytest.mark.process
def test_D45_a_service_without_webhooks_and_uploads_loads_no_http_client() -> None:
    heavy = ("httpx", "http.cookiejar")
    code = f"import sys; import cog_trio.service.open_service; print([n for n in {heavy} if n in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert answer.stdout.strip() == "[]"


def test_in_library_use_nothing_of_the_process_is_changed() -> None:
    """Signals, logging, environment, folders and exit handlers are the program's: no module that a service is made of
    calls what would change them."""
    changes = {"signal", "set_wakeup_fd", "setitimer", "basicConfig", "dictConfig", "addHandler", "setLevel"}
    changes |= {"putenv", "unsetenv", "chdir", "umask", "setrlimit", "setrecursionlimit", "setswitchinterval"}
    package = Path(cog_trio.__file__).parent
    programs = ("cli", "server", "worker", "sdk", "testing", "_alias")  # of their own processes, or of a test
    found = [
        (file.name, node.func.attr)
        for file in package.rglob("*.py")
        if file.relative_to(package).parts[0] not in programs
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in changes
    ]
    assert found == []
