"""Reads the files of secrets again: on SIGHUP, and when one has changed.

A file that can't be used is told, and what was there before goes on; connections that are open live on.
"""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

import trio

from cog_trio.config.certificate import BadCertificate, make_context
from cog_trio.config.settings import SECRET_FILES, BadSetting, Settings, read_secrets

if TYPE_CHECKING:
    import cog_trio

log: Final = logging.getLogger("cog_trio.cli")
LOOK: Final = 10.0  # seconds between two looks at the files
FILES: Final = (*SECRET_FILES, "certfile", "keyfile")


class SecretWatcher:
    """Keeps the secrets of one service as its files have them."""

    def __init__(self, service: cog_trio.PredictionService, settings: Settings) -> None:
        self._service = service
        self._settings = settings
        self._files = secret_files(settings)
        self._asked = trio.Event()

    def look_again(self) -> None:
        """Read the files now, changed or not."""
        self._asked.set()

    async def run(self) -> None:
        """Watch the files, for ever."""
        seen = await trio.to_thread.run_sync(_stamps, self._files)
        while True:
            with trio.move_on_after(LOOK):
                await self._asked.wait()
            stamps = await trio.to_thread.run_sync(_stamps, self._files)
            if stamps != seen or self._asked.is_set():
                self._asked = trio.Event()
                await self._renew()
            seen = stamps

    async def _renew(self) -> None:
        try:
            settings = await trio.to_thread.run_sync(_read, self._settings)
            self._service.renew_secrets(settings)
        except (BadSetting, BadCertificate) as error:
            log.error("%s; what was there before goes on", error)
            return
        log.info("secrets were read again: %s", ", ".join(self._files))


def secret_files(settings: Settings) -> list[str]:
    """The files that may change while the server runs."""
    return [path for name in FILES if (path := getattr(settings, name)) is not None]


def _read(settings: Settings) -> Settings:
    """What the files hold now.

    Raises:
      BadSetting, BadCertificate: one can't be used.
    """
    if settings.certfile is not None and settings.keyfile is not None:
        make_context(settings.certfile, settings.keyfile)
    return read_secrets(settings)


def _stamps(files: list[str]) -> list[tuple[int, ...] | None]:
    stamps: list[tuple[int, ...] | None] = []
    for file in files:
        try:
            found = os.stat(file)
        except OSError:
            stamps.append(None)
        else:
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev))
    return stamps
