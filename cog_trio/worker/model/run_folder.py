"""The folder of one run, which the parent names and removes, and whose files the worker writes."""

from __future__ import annotations

import os


class RunFolder:
    """Made at first need, by whichever thread has one; nothing is deleted here."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.made = False  # said in the run's terminal message: the parent removes what was made

    def make(self, *names: str) -> str:
        """Make the folder, or one below it, mode 0700; gives its absolute path.

        Raises:
          OSError: if it can't be made.
        """
        path = os.path.abspath(self._path)
        _make_private(path)
        self.made = True
        for name in names:
            path = os.path.join(path, name)
            _make_private(path)
        return path


def _make_private(path: str) -> None:
    """Make a folder, and what is missing above it, that only this user may enter."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except FileNotFoundError:
        _make_private(os.path.dirname(path))
        os.mkdir(path, 0o700)
