"""The table of settings: what each text means, who wins, what is only warned of, and the page written from it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest

from cog_trio.config import parsers, settings
from cog_trio.config.settings import OPTIONS, BadSetting, Setting, Settings, read_settings

PAGE = Path(__file__).parent.parent.parent / "docs" / "reference" / "settings.md"


def _read(flags: dict[str, Any] | None = None, /, **environ: str) -> Settings:
    chosen, warnings = read_settings(flags or {}, environ)
    assert warnings == []
    return chosen


@pytest.mark.covers("D43")
def test_page_holds_the_table() -> None:
    assert settings.reference() in PAGE.read_text()


def test_without_anything_the_defaults_hold() -> None:
    assert _read() == Settings()


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().port = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "text", "value"),
    [
        ("host", "::1", "::1"),
        ("port", "0", 0),
        ("port", "65535", 65535),
        ("uds", "/tmp/s", "/tmp/s"),
        ("fd", "3", 3),
        ("max_concurrency", "4", 4),
        ("setup_timeout", "1.5", 1.5),
        ("cancel_grace", "0", 0.0),
        ("predict_timeout", "2.5", 2.5),
        ("queue", "0", 0),
        ("queue_timeout", "10", 10.0),
        ("respawn", "true", True),
        ("workers", "256", 256),
        ("gpus", "2", ("0", "1")),
        ("gpus", "0,3", ("0", "3")),
        ("drain_grace", "0", 0.0),
        ("await_explicit_shutdown", "False", False),
        ("await_explicit_shutdown", "yes", True),
        ("download_limit", "1 GiB", 2**30),
        ("body_limit", "5kib", 5120),
        ("body_limit", "17", 17),
        ("retain_bytes", "0", 0),
        ("log_level", "WARN", "warning"),
        ("log_format", "console", "console"),
        ("access_log", "true", False),
        ("webhook_secret", "whsec_c2VjcmV0", "whsec_c2VjcmV0"),
        ("webhook_secret", "c2VjcmV0", "c2VjcmV0"),
        ("auth_token", "a/b+c==", "a/b+c=="),
        ("root_path", "/models/a/", "/models/a"),
        ("root_path", "/", ""),
    ],
)
def test_flag_is_parsed(field: str, text: str, value: Any) -> None:
    assert getattr(_read({field: text}), field) == value


def test_repeated_flag_and_list_in_a_variable() -> None:
    wanted = ("https://a.example", "http://b:8080")
    assert _read({"cors_origins": ["https://A.example", "http://b:8080"]}).cors_origins == wanted
    assert _read(COG_TRIO_CORS_ORIGIN="https://a.example, http://b:8080").cors_origins == wanted


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("host", ""),
        ("host", "a\nb"),
        ("port", ""),
        ("port", "65536"),
        ("port", "-1"),
        ("port", "1_0"),
        ("port", "٣"),
        ("port", " 1"),
        ("max_concurrency", "0"),
        ("setup_timeout", "0"),
        ("setup_timeout", "inf"),
        ("setup_timeout", "nan"),
        ("setup_timeout", "-1"),
        ("setup_timeout", "1e400"),
        ("setup_timeout", "9" * 400),
        ("drain_grace", "soon"),
        ("await_explicit_shutdown", "maybe"),
        ("body_limit", "0"),
        ("body_limit", "1 TB"),
        ("log_level", "loud"),
        ("log_format", "xml"),
        ("cors_origins", ["https://a.example/path"]),
        ("cors_origins", ["*"]),
        ("webhook_secret", "whsec_"),
        ("webhook_secret", "not base64"),
        ("auth_token", ""),
        ("auth_token", "a b"),
        ("auth_token", "ä"),
        ("auth_token", "a\n"),
        ("root_path", ""),
        ("root_path", "models"),
        ("root_path", "/a?b"),
        ("root_path", "//evil.example"),
        ("root_path", "/a/../b"),
    ],
)
def test_wrong_flag_is_one_line_that_names_it(field: str, text: Any) -> None:
    option = next(option for option in OPTIONS if option.field == field)
    with pytest.raises(BadSetting) as caught:
        _read({field: text})
    assert str(caught.value).startswith(f"{option.flag}: expected ")
    assert "\n" not in str(caught.value)


OURS = [option for option in OPTIONS if option.lenient is None and option.field != "reload_dir"]  # any list will do


@pytest.mark.parametrize("option", OURS, ids=lambda o: o.field)
def test_wrong_variable_of_ours_is_refused_by_name(option: Setting) -> None:
    wrong = {"TEXT": "", "PATH": "", "TOKEN": "\n"}.get(option.parser.metavar, "?")
    with pytest.raises(BadSetting, match=rf"^{option.variable}: "):
        _read(**{option.variable: wrong})


@pytest.mark.covers("http:W38", "D38")
@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        *(("COG_MAX_CONCURRENCY", text, "max_concurrency", None) for text in ("", "0", "-2", "two", " 4")),
        *(("COG_SETUP_TIMEOUT", text, "setup_timeout", None) for text in ("", "0", "-2", "1.5", "soon")),
        ("COG_LOG_LEVEL", "loud", "log_level", "info"),
        *(("COG_THROTTLE_RESPONSE_INTERVAL", text, "throttle_interval", 0.5) for text in ("", "-1", "nan", "inf")),
        *(("COG_STREAM_HISTORY_CAPACITY", text, "stream_history", 1024) for text in ("", "-1", "many")),
        ("LOG_FORMAT", "logfmt", "log_format", "json"),
        ("RUST_LOG", "coglet=debug,info", "log_level", "info"),
    ],
)
def test_wrong_variable_of_cogs_is_warned_of_once(variable: str, text: str, field: str, value: Any) -> None:
    chosen, warnings = read_settings({}, {variable: text})
    assert getattr(chosen, field) == value
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{variable}={text!r} is ignored")


@pytest.mark.covers("http:W16")
@pytest.mark.parametrize("token", ["a\nb", " a", "a ", "ä", "a\x7f"])
def test_W16_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(BadSetting) as caught:
        _read(WEBHOOK_AUTH_TOKEN=token)
    assert str(caught.value) == "WEBHOOK_AUTH_TOKEN: expected printable ASCII without blanks at its ends"


@pytest.mark.covers("D42")
def test_D42_secrets_are_in_no_repr() -> None:
    chosen = _read(
        WEBHOOK_AUTH_TOKEN="t0k3n",
        COG_TRIO_WEBHOOK_SECRET="whsec_c2VjcmV0",
        COG_TRIO_AUTH_TOKEN="b3arer",
        COG_TRIO_UPLOAD_URL="https://up.example/?key=s1gned",
    )
    assert (chosen.webhook_auth_token, chosen.webhook_secret) == ("t0k3n", "whsec_c2VjcmV0")
    for secret in ("t0k3n", "c2VjcmV0", "b3arer", "s1gned"):
        assert secret not in repr(chosen)


@pytest.mark.covers("D40")
def test_D40_a_token_that_no_header_can_carry_is_refused_and_not_shown() -> None:
    for given in ({"auth_token": "s3 cret"}, {}):
        with pytest.raises(BadSetting) as caught:
            read_settings(given, {} if given else {"COG_TRIO_AUTH_TOKEN": "s3\tcret"})
        assert "cret" not in str(caught.value)


@pytest.mark.parametrize(("given", "absent"), [("certfile", "keyfile"), ("keyfile", "certfile")])
def test_certificate_and_key_need_each_other(given: str, absent: str) -> None:
    with pytest.raises(BadSetting, match=rf"^--{given} needs --{absent}: "):
        _read({given: "/x.pem"})
    both = _read({"certfile": "/c.pem"}, COG_TRIO_KEYFILE="/k.pem")
    assert (both.certfile, both.keyfile) == ("/c.pem", "/k.pem")


def test_empty_token_is_a_token() -> None:
    assert _read(WEBHOOK_AUTH_TOKEN="").webhook_auth_token == ""


def test_flag_wins_over_variable_over_file_over_default() -> None:
    file = {"max_concurrency": 2}
    assert read_settings({}, {}, file=file)[0].max_concurrency == 2
    assert read_settings({}, {"COG_MAX_CONCURRENCY": "3"}, file=file)[0].max_concurrency == 3
    assert read_settings({}, {"COG_MAX_CONCURRENCY": "none"}, file=file)[0].max_concurrency == 2
    assert read_settings({"max_concurrency": "4"}, {"COG_MAX_CONCURRENCY": "3"}, file=file)[0].max_concurrency == 4


@pytest.mark.parametrize(
    ("flags", "variables", "origin"),
    [
        ({"max_concurrency": "4"}, {"COG_MAX_CONCURRENCY": "3"}, "--max-concurrency"),
        ({}, {"COG_MAX_CONCURRENCY": "3"}, "COG_MAX_CONCURRENCY"),
        ({}, {"COG_MAX_CONCURRENCY": "many"}, "concurrency.max of cog.yaml"),
        ({}, {}, "concurrency.max of cog.yaml"),
    ],
)
def test_it_is_known_how_the_slots_were_set(flags: dict[str, str], variables: dict[str, str], origin: str) -> None:
    assert read_settings(flags, variables, file={"max_concurrency": 2})[0].concurrency_from == origin
    assert Settings(max_concurrency=2).concurrency_from == "Settings.max_concurrency"


@pytest.mark.covers("http:W16", "D37")
def test_D37_addresses_and_who_reads_PORT() -> None:
    assert (Settings().host, Settings().port) == ("127.0.0.1", 8393)
    assert read_settings({}, {"PORT": "1"})[0].port == 8393
    container, _ = read_settings({}, {}, container=True)
    assert (container.host, container.port) == ("0.0.0.0", 5000)
    assert read_settings({}, {"PORT": "1"}, container=True)[0].port == 1
    assert read_settings({}, {"PORT": "1", "COG_TRIO_PORT": "2"}, container=True)[0].port == 2
    with pytest.raises(BadSetting, match=r"^PORT: "):
        read_settings({}, {"PORT": ""}, container=True)


def test_log_format_follows_the_terminal_but_not_in_a_container() -> None:
    assert read_settings({}, {}, terminal=True)[0].log_format == "console"
    assert read_settings({}, {})[0].log_format == "json"
    assert read_settings({}, {}, terminal=True, container=True)[0].log_format == "json"
    assert read_settings({}, {"LOG_FORMAT": "json"}, terminal=True)[0].log_format == "json"
    assert read_settings({}, {"LOG_FORMAT": "console"}, container=True)[0].log_format == "console"


def test_RUST_LOG_wins_over_the_variable_and_loses_to_the_flag() -> None:
    assert _read(RUST_LOG="warn", COG_LOG_LEVEL="debug").log_level == "warning"
    assert _read(RUST_LOG="trace").log_level == "debug"
    assert _read({"log_level": "error"}, RUST_LOG="warn").log_level == "error"


def test_ready_file_under_kubernetes_only() -> None:
    assert _read(KUBERNETES_SERVICE_HOST="").ready_file == "/var/run/cog/ready"
    assert _read(KUBERNETES_SERVICE_HOST="10.0.0.1", COG_TRIO_READY_FILE="/r").ready_file == "/r"


def test_two_places_to_listen_exclude_each_other() -> None:
    with pytest.raises(BadSetting, match="exclude"):
        _read({"uds": "/tmp/s", "fd": "3"})


def test_worker_is_told_about_downloads() -> None:
    assert settings.worker_variables(Settings()) == {"COG_TRIO_DOWNLOAD_TIMEOUT": "600.0"}
    told = settings.worker_variables(Settings(download_limit=5, download_timeout=1.5))
    assert told == {"COG_TRIO_DOWNLOAD_TIMEOUT": "1.5", "COG_TRIO_DOWNLOAD_LIMIT": "5"}


def test_model_variables() -> None:
    assert settings.model_variables({"COG_PREDICT_TYPE_STUB": "a.py:R", "COG_TRAIN_TYPE_STUB": ""}) == ("a.py:R", None)


def test_all_seconds_are_finite() -> None:
    for option in OPTIONS:
        if option.parser in (parsers.SECONDS, parsers.GRACE):
            assert math.isfinite(option.parser.call("999999999"))
