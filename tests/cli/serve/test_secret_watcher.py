"""Files of secrets are read again when they change, without a signal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from cog_trio.cli.serve.secret_watcher import LOOK, SecretWatcher
from cog_trio.config.settings import Settings
from cog_trio.testing.clock import threads_hold_the_clock


class Renewed:
    """A service that notes what it is given."""

    def __init__(self) -> None:
        self.tokens: list[str | None] = []

    def renew_secrets(self, settings: Settings) -> None:
        self.tokens.append(settings.auth_token)


async def test_a_change_is_seen_within_some_seconds(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "token"
    file.write_text("one")
    service: Any = Renewed()
    watcher = SecretWatcher(service, Settings(auth_token="one", auth_token_file=str(file)))
    with threads_hold_the_clock():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            await trio.sleep(3 * LOOK)
            assert service.tokens == []
            file.write_text("two and a space")
            await trio.sleep(3 * LOOK)
            assert service.tokens == []
            assert "what was there before goes on" in caplog.text
            file.write_text("three")
            await trio.sleep(3 * LOOK)
            assert service.tokens == ["three"]
            file.unlink()
            await trio.sleep(3 * LOOK)
            file.write_text("four")
            await trio.sleep(3 * LOOK)
            watcher.look_again()
            await trio.sleep(LOOK / 2)
            nursery.cancel_scope.cancel()
    assert service.tokens == ["three", "four", "four"]
