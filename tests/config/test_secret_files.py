"""Secrets that stand in files: read at the start, refused with the flag and the file, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from cog_trio.config.settings import BadSetting, read_secrets, read_settings


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"auth_token_file": "none"}, "--auth-token-file: can't read {}/none: No such file or directory"),
        ({"auth_token_file": "empty"}, "--auth-token-file: what {}/empty holds can't be used: expected "),
        ({"auth_token_file": "binary"}, "--auth-token-file: can't read {}/binary: it is not text"),
        ({"webhook_secret_file": "good"}, "--webhook-secret-file: what {}/good holds can't be used: expected "),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, flags: dict[str, str], words: str) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "good").write_text("a-token!")
    with pytest.raises(BadSetting) as refused:
        read_settings({name: str(tmp_path / file) for name, file in flags.items()}, {})
    assert words.format(tmp_path) in str(refused.value)
    assert "a-token!" not in str(refused.value)


def test_a_file_and_the_secret_itself_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a")
    with pytest.raises(BadSetting, match="--auth-token-file and --auth-token exclude each other"):
        read_settings({"auth_token_file": str(tmp_path / "token")}, {"COG_TRIO_AUTH_TOKEN": "b"})


def test_what_the_file_holds_is_read_now_and_later(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("  one\n")
    settings, _ = read_settings({"auth_token_file": str(tmp_path / "token")}, {})
    assert settings.auth_token == "one"
    (tmp_path / "token").write_text("two")
    assert read_secrets(settings).auth_token == "two"
    assert "two" not in repr(read_secrets(settings))
