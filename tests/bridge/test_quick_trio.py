"""The import of trio without a process for its thread names."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import ctypes.util, sys
find = ctypes.util.find_library
started = []
sys.addaudithook(lambda event, args: started.append(event) if event in ("subprocess.Popen", "os.posix_spawn") else None)
from cog_trio.bridge.quick_trio import import_trio
import_trio()
assert "trio" in sys.modules
assert ctypes.util.find_library is find
import trio
from pathlib import Path

def name_of_thread():
    import threading
    return Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip()

async def main():
    return await trio.to_thread.run_sync(name_of_thread, thread_name="a thread of ours")

print(started, trio.run(main))
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere trio asks as usual")
def test_no_process_is_started_and_threads_have_names() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=50)
    assert done.stdout.strip() == "[] a thread of our"  # the kernel keeps 15 bytes
