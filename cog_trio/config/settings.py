"""Settings: the one table of flags, variables, defaults and units, and the only reader of the environment.

Each field of ``Settings`` is one row. The row says which flag and which variable set it, how the text is
parsed and what it means; the command line builds its options from these rows, and docs/reference/settings.md
is written from them. A flag wins over a variable, a variable over cog.yaml, cog.yaml over the default.

A wrong value raises ``BadSetting`` with one line for the user. Variables that Cog defined keep Cog's rule
instead: a wrong value gives a warning, and what stands behind it in that order is used. Nothing here is read
at import: ``read_settings`` takes the environment as an argument.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from cog_trio.config.parsers import (
    BEARER,
    COUNT,
    DENIAL,
    FORMAT,
    GPUS,
    GRACE,
    HOST_PATTERN,
    KEPT,
    LEVEL,
    LEVELS,
    ORIGIN,
    PATH,
    PORT,
    PREFIX,
    REMOTE_URL,
    SECONDS,
    SIGNING_SECRET,
    SIZE,
    SLOTS,
    SOME,
    TEXT,
    TOKEN,
    TRUTH,
    UPLOAD_URL,
    WHOLE_SECONDS,
    WORKERS,
    Parser,
)
from cog_trio.config.parsers import FALSE as FALSE
from cog_trio.config.parsers import TRUE as TRUE
from cog_trio.config.tracing import variable_warnings

READY_FILE: Final = "/var/run/cog/ready"  # Cog's readiness file, written under Kubernetes
SECRET_FILES: Final = {"webhook_secret_file": "webhook_secret", "auth_token_file": "auth_token"}  # and what they hold
MAX_SECRET: Final = 2**16  # bytes of such a file
CONTAINER: Final[Mapping[str, Any]] = {"host": "0.0.0.0", "port": 5000, "log_format": "json"}
CONCURRENCY_KEY: Final = "concurrency.max of cog.yaml"
RUST_LEVELS: Final[Mapping[str, str]] = {**LEVELS, "trace": "debug"}


class BadSetting(ValueError):
    """A flag or variable has a value that can't be used; the text is one line for the user."""


@dataclass(frozen=True)
class Setting:
    """One row of the table, beside its field's name and default."""

    flag: str  # empty: set by the variable alone
    parser: Parser
    meaning: str
    variable: str
    default: Any = None  # of the field
    shown: str = ""  # the default in words, where the value alone does not say it
    aliases: tuple[str, ...] = ()
    lenient: Parser | None = None  # the variable is Cog's: it is parsed by this, and a wrong value is only warned of
    bare: bool = False  # the flag may stand alone, which means true
    switch: bool = False  # the flag always stands alone
    many: bool = False  # the flag may be repeated; the variable is a list with commas
    client: bool = False  # a flag of run and train alone
    secret: bool = False  # its value is never shown
    field: str = ""


def setting(default: Any, flag: str, parser: Parser, meaning: str, *, variable: str = "", **more: Any) -> Any:
    named = variable or "COG_TRIO_" + flag.removeprefix("--").replace("-", "_").upper()
    option = Setting(flag, parser, meaning, named, default, **more)
    return dataclasses.field(default=default, repr=not option.secret, metadata={"option": option})


@dataclass(frozen=True)
class Settings:
    """All that can be set; frozen. ``Settings()`` is what ``cog-trio serve`` does without flags and variables."""

    host: str = setting("127.0.0.1", "--host", TEXT, "address or name to listen on, IPv6 too")
    port: int = setting(8393, "--port", PORT, "TCP port; 0 takes a free one", aliases=("-p",))
    uds: str | None = setting(None, "--uds", PATH, "listen on this Unix socket instead")
    fd: int | None = setting(None, "--fd", COUNT, "listen on this inherited descriptor instead")
    max_concurrency: int | None = setting(
        None,
        "--max-concurrency",
        SLOTS,
        "slots: predictions that run at once",
        variable="COG_MAX_CONCURRENCY",
        lenient=SLOTS,
        shown="`concurrency.max` of cog.yaml, `@concurrent`, else 1",
    )
    workers: int = setting(1, "--workers", WORKERS, "worker processes, each with all of the model and its own slots")
    gpus: tuple[str, ...] = setting(
        (),
        "--gpus",
        GPUS,
        "devices that are dealt to the workers, as `CUDA_VISIBLE_DEVICES`: `0,1`, or how many; `3,` is one by its name",
    )
    setup_timeout: float | None = setting(
        None,
        "--setup-timeout",
        SECONDS,
        "seconds from the start of the worker until it is ready; whole ones in the variable",
        variable="COG_SETUP_TIMEOUT",
        lenient=WHOLE_SECONDS,
    )
    queue: int = setting(0, "--queue", COUNT, "predictions that may wait for a slot; the next one gets 409 at once")
    queue_timeout: float = setting(60.0, "--queue-timeout", SECONDS, "seconds that a prediction may wait for a slot")
    predict_timeout: float | None = setting(
        None, "--predict-timeout", SECONDS, "seconds from the start of a prediction until it is stopped and has failed"
    )
    cancel_grace: float | None = setting(
        None,
        "--cancel-grace",
        GRACE,
        "seconds that a prediction may go on when it is cancelled or over its time limit; then its worker is killed",
    )
    drain_grace: float = setting(
        30.0,
        "--drain-grace",
        GRACE,
        "seconds that predictions in flight get at shutdown",
        aliases=("--timeout-graceful-shutdown",),
    )
    webhook_grace: float = setting(
        10.0, "--webhook-grace", GRACE, "seconds that the last webhooks get at shutdown, once nothing runs any more"
    )
    respawn: bool = setting(
        False,
        "--respawn",
        TRUTH,
        "start another worker when one is lost, after a pause of 1 to 60 seconds; bare, or true or false",
        bare=True,
    )
    await_explicit_shutdown: bool = setting(
        False,
        "--await-explicit-shutdown",
        TRUTH,
        "ignore SIGTERM and wait for `POST /shutdown`; bare, or true or false",
        bare=True,
    )
    upload_url: str | None = setting(
        None,
        "--upload-url",
        UPLOAD_URL,
        "where output files are put, by `PUT` to this URL and their names; without it they become data URLs",
        secret=True,
    )
    upload_timeout: float = setting(
        25.0, "--upload-timeout", SECONDS, "seconds without progress until one of three tries of an upload is given up"
    )
    download_limit: int | None = setting(
        None, "--download-limit", SIZE, "bytes of one input that is fetched from a URL"
    )
    download_timeout: float = setting(600.0, "--download-timeout", SECONDS, "seconds in all for the inputs from URLs")
    input_hosts: tuple[str, ...] = setting(
        (),
        "--input-hosts",
        HOST_PATTERN,
        "hosts that inputs may be fetched from: names, `*.domain`, addresses, networks, `public` (neither loopback, "
        "link-local nor private); may be repeated",
        shown="all",
        many=True,
    )
    body_limit: int = setting(100 * 2**20, "--body-limit", SIZE, "bytes of a request body; a larger one gets 413")
    log_limit: int = setting(32 * 2**20, "--log-limit", SIZE, "bytes of logs that one prediction keeps")
    stream_grace: float = setting(
        0.0, "--stream-grace", GRACE, "seconds from the drop of a stream to the end of the prediction that it created"
    )
    stream_history: int = setting(
        1024,
        "",
        COUNT,
        "events of a prediction that are kept for those who join or come back; 0 keeps none",
        variable="COG_STREAM_HISTORY_CAPACITY",
        lenient=COUNT,
    )
    throttle_interval: float = setting(
        0.5,
        "",
        GRACE,
        "seconds from one webhook of progress to the next; 0 sends them as fast as they are taken",
        variable="COG_THROTTLE_RESPONSE_INTERVAL",
        lenient=GRACE,
    )
    webhook_secret: str | None = setting(
        None,
        "--webhook-secret",
        SIGNING_SECRET,
        "signs webhooks as Standard Webhooks have it: base64, `whsec_` in front or not",
        secret=True,
    )
    webhook_secret_file: str | None = setting(
        None, "--webhook-secret-file", PATH, "a file that holds it; read again on SIGHUP and when it changes"
    )
    webhook_auth_token: str | None = setting(
        None, "", TOKEN, "bearer token sent with webhooks", variable="WEBHOOK_AUTH_TOKEN", secret=True
    )
    auth_token: str | None = setting(
        None,
        "--auth-token",
        BEARER,
        "bearer token that requests must carry, but for probes; better by the variable: flags are seen by all users",
        secret=True,
    )
    auth_token_file: str | None = setting(
        None, "--auth-token-file", PATH, "a file that holds the token; read again on SIGHUP and when it changes"
    )
    cors_origins: tuple[str, ...] = setting(
        (),
        "--cors-origin",
        ORIGIN,
        "an origin whose web pages may use this server; may be repeated",
        many=True,
    )
    certfile: str | None = setting(
        None,
        "--certfile",
        PATH,
        "PEM file of certificate and chain: the server speaks TLS",
        aliases=("--ssl-certfile",),
    )
    keyfile: str | None = setting(
        None, "--keyfile", PATH, "PEM file of the certificate's key, not encrypted", aliases=("--ssl-keyfile",)
    )
    timeout_keep_alive: float = setting(
        75.0, "--timeout-keep-alive", SECONDS, "seconds that a connection without a request stays open"
    )
    header_timeout: float = setting(
        30.0, "--header-timeout", SECONDS, "seconds for the head of a request, and for a body that makes no progress"
    )
    write_timeout: float = setting(
        30.0, "--write-timeout", SECONDS, "seconds until a client that takes nothing is given up"
    )
    limit_connections: int = setting(10_000, "--limit-connections", SOME, "open connections at once")
    backlog: int = setting(2048, "--backlog", SOME, "connections that wait to be accepted")
    retain: int = setting(256, "--retain", COUNT, "finished predictions that can still be read; 0 keeps none")
    retain_age: float = setting(3600.0, "--retain-age", GRACE, "seconds that a finished prediction can be read")
    retain_bytes: int = setting(64 * 2**20, "--retain-bytes", KEPT, "bytes of all finished predictions that are kept")
    ready_file: str | None = setting(
        None,
        "--ready-file",
        PATH,
        "file that exists while the model is ready",
        shown=f"`{READY_FILE}` under Kubernetes, else none",
    )
    log_level: str = setting(
        "info",
        "--log-level",
        LEVEL,
        "debug, info, warning or error; what setup prints passes at each, what predictions print from info on",
        variable="COG_LOG_LEVEL",
        lenient=LEVEL,
    )
    log_format: Literal["console", "json"] = setting(
        "json",
        "--log-format",
        FORMAT,
        "console (lines for people) or json",
        variable="LOG_FORMAT",
        lenient=FORMAT,
        shown="console on a terminal, else json; container: json",
    )
    root_path: str = setting(
        "",
        "--root-path",
        PREFIX,
        "path under which a proxy shows this server, like `/models/a`; requests may carry it or not",
        shown="none",
    )
    url: str | None = setting(
        None,
        "--url",
        REMOTE_URL,
        "`run` and `train` on the server at this URL (http, https, ws, wss) instead of here",
        client=True,
        secret=True,  # for those who write a password into it
    )
    cafile: str | None = setting(
        None, "--cafile", PATH, "PEM file of the certificates that the server at `--url` is trusted by", client=True
    )
    reload: bool = setting(
        False, "--reload", TRUTH, "start the model again when its Python files or cog.yaml change", bare=True
    )
    reload_dir: tuple[str, ...] = setting(
        (), "--reload-dir", PATH, "watch the Python files of this folder too; implies --reload", many=True
    )
    openai: bool = setting(
        False,
        "--openai",
        TRUTH,
        "offer OpenAI's API too: `/v1/models`, `/v1/completions`, `/v1/chat/completions`",
        bare=True,
    )
    access_log: bool = setting(True, "--no-access-log", DENIAL, "write no line for each request", switch=True)
    prediction_logs: bool = setting(
        True,
        "--no-prediction-logs",
        DENIAL,
        "write no line of the log for what predictions print; their own `logs` have it all the same",
        switch=True,
    )
    concurrency_from: str = dataclasses.field(default="Settings.max_concurrency", repr=False, compare=False)
    """How ``max_concurrency`` was set, for errors about it. Not a row of the table."""


OPTIONS: Final[tuple[Setting, ...]] = tuple(
    dataclasses.replace(field.metadata["option"], field=field.name)
    for field in dataclasses.fields(Settings)
    if field.metadata
)


def read_settings(
    flags: Mapping[str, str | Sequence[str]],
    environ: Mapping[str, str],
    *,
    file: Mapping[str, Any] | None = None,
    container: bool = False,
    terminal: bool = False,
) -> tuple[Settings, list[str]]:
    """Settings from what was given, and the warnings to log once logging is set up.

    ``flags`` maps fields to the texts given on the command line, ``file`` holds values out of cog.yaml.

    Raises:
      BadSetting: a value can't be used.
    """
    warnings: list[str] = []
    values: dict[str, Any] = dict(CONTAINER) if container else {"log_format": "console" if terminal else "json"}
    if "KUBERNETES_SERVICE_HOST" in environ:
        values["ready_file"] = READY_FILE
    values.update(file or {})
    origins: dict[str, str] = {}  # of values, by their fields: the flag or the variable
    for option in OPTIONS:
        name = option.variable
        if option.field in flags:
            values[option.field] = _parse(option, option.flag, flags[option.field])
            origins[option.field] = option.flag
        elif name not in environ:
            if container and option.field == "port" and "PORT" in environ:
                values["port"] = _parse(option, "PORT", environ["PORT"])
        elif option.lenient is None:
            values[option.field] = _parse(option, name, environ[name])
        else:
            try:
                values[option.field] = option.lenient.call(environ[name])
                origins[option.field] = name
            except ValueError as error:
                warnings.append(f"{name}={environ[name]!r} is ignored: {error}")
                if option.field == "log_format":  # Cog: anything but console is JSON
                    values["log_format"] = "json"
    if "log_level" not in flags and "RUST_LOG" in environ:
        level = RUST_LEVELS.get(environ["RUST_LOG"].strip().lower())
        if level is None:
            warnings.append(f"RUST_LOG={environ['RUST_LOG']!r} is ignored: only a plain level word is understood")
        else:
            values["log_level"] = level
    if values.get("reload_dir"):
        values["reload"] = True
    if values.get("uds") is not None and values.get("fd") is not None:
        raise BadSetting("--uds and --fd exclude each other")
    _read_secrets(values)
    for given, absent in (("certfile", "keyfile"), ("keyfile", "certfile")):
        if given in values and absent not in values:
            raise BadSetting(f"--{given} needs --{absent}: TLS takes a certificate and its key")
    if "max_concurrency" in values:
        values["concurrency_from"] = origins.get("max_concurrency", CONCURRENCY_KEY)
    return Settings(**values), [*warnings, *variable_warnings(environ)]


def read_secrets(settings: Settings) -> Settings:
    """The settings with what the files of secrets hold now (blocking).

    Raises:
      BadSetting: one can't be used; the text shows nothing of what is in it.
    """
    files = {name: getattr(settings, name) for name in SECRET_FILES if getattr(settings, name) is not None}
    values: dict[str, Any] = dict(files)
    _read_secrets(values)
    return dataclasses.replace(settings, **values)


def _read_secrets(values: dict[str, Any]) -> None:
    options = {option.field: option for option in OPTIONS}
    for name, secret in SECRET_FILES.items():
        if (path := values.get(name)) is None:
            continue
        flag = options[name].flag
        if secret in values:
            raise BadSetting(f"{flag} and {options[secret].flag} exclude each other")
        try:
            with open(path, "rb") as file:
                text = file.read(MAX_SECRET).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise BadSetting(f"{flag}: can't read {path}: {why}") from error
        try:
            values[secret] = options[secret].parser.call(text)
        except ValueError as error:  # it says what was expected, and shows no value
            raise BadSetting(f"{flag}: what {path} holds can't be used: {error}") from error


def model_variables(environ: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The model references that a container image carries: of the predict and of the train function."""
    return environ.get("COG_PREDICT_TYPE_STUB") or None, environ.get("COG_TRAIN_TYPE_STUB") or None


def worker_variables(settings: Settings, number: int = 0) -> dict[str, str]:
    """What a worker needs to know: it reads these variables, whatever they were set by here."""
    variables = {"COG_TRIO_DOWNLOAD_TIMEOUT": repr(settings.download_timeout)}
    if settings.download_limit is not None:
        variables["COG_TRIO_DOWNLOAD_LIMIT"] = str(settings.download_limit)
    if settings.gpus:  # dealt like cards; with fewer devices than workers they are shared
        mine = settings.gpus[number % len(settings.gpus) :: settings.workers]
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(mine)
    if settings.reload:  # bytecode is told apart by whole seconds: two saves within one would look alike
        variables["PYTHONDONTWRITEBYTECODE"] = "1"
    if settings.input_hosts:
        variables["COG_TRIO_INPUT_HOSTS"] = ",".join(settings.input_hosts)
    return variables


def changed_settings(settings: Settings) -> dict[str, Any]:
    """The settings that differ from the default, by their flags; of secrets only that they are set."""
    changed = {}
    for option in OPTIONS:
        value = getattr(settings, option.field)
        if value != option.default:
            changed[option.flag or option.variable] = "***" if option.secret else True if option.switch else value
    return changed


def reference() -> str:
    """The table as Markdown: what docs/reference/settings.md holds."""
    lines = ["| flag | variable | default | meaning |", "|---|---|---|---|"]
    for option in OPTIONS:
        flag = ", ".join(f"`{name}`" for name in (option.flag, *option.aliases) if name) or "–"
        variable = f"`{option.variable}`" + (" ¹" if option.lenient else "")
        if option.field == "port":
            variable += "; `PORT` in a container"
        lines.append(f"| {flag} | {variable} | {_default(option)} | {option.meaning} |")
    return "\n".join(lines) + "\n"


def default(option: Setting, *, container: bool = False) -> str:
    """The default in words, as the table has it: that of ``cog-trio serve``, or of the container entry."""
    ours, _, theirs = _default(option).partition("; container: ")
    return theirs if container and theirs else ours


def _parse(option: Setting, name: str, given: str | Sequence[str]) -> Any:
    texts = given.split(",") if isinstance(given, str) and option.many else given
    try:
        if option.many:
            return tuple(option.parser.call(text.strip()) for text in texts if text.strip())
        assert isinstance(texts, str)
        return option.parser.call(texts)
    except ValueError as error:
        if option.secret:
            raise BadSetting(f"{name}: {error}") from None
        shown = given if isinstance(given, str) else ",".join(given)
        raise BadSetting(f"{name}: {error}, not {shown!r}") from None


def _default(option: Setting) -> str:
    if option.shown:
        return option.shown
    value = option.default
    if option.field in CONTAINER:
        return f"{value}; container: {CONTAINER[option.field]}"
    if value is None or value == ():
        return "none"
    if option.switch or option.bare:
        return "off"
    if option.parser.metavar == "BYTES" and value % 2**20 == 0:
        return f"{value // 2**20} MiB"
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
