"""Imports trio without the process that it starts for its thread names.

At its import trio asks ``ctypes.util.find_library`` for ``pthread``, which runs ``/sbin/ldconfig``: milliseconds in the
server and in each worker. With glibc the answer is known. Elsewhere trio asks as usual.
"""

import ctypes.util
import os
import sys

PTHREAD = "libpthread.so.0"  # of glibc; since 2.34 a name for what is in libc.so.6


def import_trio() -> None:
    """Import trio, if it is not there yet. Called before any thread is started."""
    if "trio" in sys.modules or not _is_glibc():
        return
    find = ctypes.util.find_library
    ctypes.util.find_library = lambda name: PTHREAD if name == "pthread" else find(name)
    try:
        import trio  # noqa: F401
    finally:
        ctypes.util.find_library = find


def _is_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, OSError, ValueError):
        return False
