"""The worker process: ``python -m cog_trio.worker <slot0> <out_r> <out_w> <err_r> <guardian_r> <parent pid>``.

All arguments but the last are descriptors; stdin and stdout as spawned are the control channel, stderr is the write
end of the second capture pipe. Before anything heavy is imported the descriptors are put in their places, so that no
child can ever inherit one, and the guardian is forked. The rest is ``main.py``.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys

from cog_trio.worker.process import guardian

ABOVE = 10  # private descriptors are numbered from here, out of the way of code that plays with 0 to 9


def main() -> None:
    slot0, out_r, out_w, err_r, guardian_r, parent = map(int, sys.argv[1:7])
    control_in, control_out = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ABOVE) for fd in (0, 1))
    slot0, out_r, err_r = (_private(fd) for fd in (slot0, out_r, err_r))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(out_w, 1)
    os.close(out_w)
    os.set_inheritable(guardian_r, False)
    if os.getpgrp() != os.getpid():
        os.setsid()  # whoever started us did not: our end must take nobody else along
    if not guardian.start_guardian(guardian_r, parent):
        guardian.die_with_parent()
    if os.getppid() != parent:  # it has died already
        os.killpg(0, signal.SIGKILL)

    from cog_trio.bridge.quick_trio import import_trio

    import_trio()
    from cog_trio.worker.process.main import run

    run(control_in, control_out, slot0, out_r, err_r)


def _private(fd: int) -> int:
    """The same file under a high number, closed at exec."""
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, ABOVE)
    os.close(fd)
    return moved


if __name__ == "__main__":
    main()
