"""How the texts of flags and variables become values: one ``Parser`` a kind, which raises what was expected."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from cog_trio.net.host_policy import HostPolicy

LEVELS: Final[Mapping[str, str]] = {
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
}
UNITS: Final[Mapping[str, int]] = {"": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
TRUE: Final = ("true", "1", "yes", "on")
FALSE: Final = ("false", "0", "no", "off")
MAX_SLOTS: Final = 10_000  # descriptors: one socket a slot on each side
MAX_WORKERS: Final = 256  # each is a process with a model in it
MAX_SECONDS: Final = 10**9  # keeps sums of deadlines finite


@dataclass(frozen=True)
class Parser:
    """How the text of a setting becomes its value: ``call`` raises ``ValueError`` with what was expected."""

    metavar: str
    call: Callable[[str], Any]


def _expect(text: str) -> ValueError:
    return ValueError(f"expected {text}")


def _text(value: str) -> str:
    if not value or not value.isprintable():
        raise _expect("a text")
    return value


def _whole(low: int, high: int, what: str) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if re.fullmatch(r"\+?[0-9]{1,18}", value) and low <= int(value) <= high:
            return int(value)
        raise _expect(what)

    return parse


def _seconds(*, zero: bool) -> Callable[[str], float]:
    def parse(value: str) -> float:
        what = "seconds, 0 or more" if zero else "seconds, more than 0"
        if not re.fullmatch(r"\+?([0-9]+\.?[0-9]*|\.[0-9]+)", value):
            raise _expect(what)
        number = float(value)
        if not math.isfinite(number) or number > MAX_SECONDS or (number == 0 and not zero):
            raise _expect(what)
        return number

    return parse


def _size(low: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        match = re.fullmatch(r"([0-9]{1,18}) ?(|KiB|MiB|GiB)", value, re.IGNORECASE)
        if match is None or (size := int(match[1]) * UNITS[match[2].upper()]) < low:
            raise _expect(f"bytes, {low} or more (KiB, MiB and GiB are understood)")
        return size

    return parse


def _gpus(value: str) -> tuple[str, ...]:
    if re.fullmatch(r"[0-9]{1,4}", value):
        if not 1 <= int(value) <= MAX_WORKERS:
            raise _expect(f"devices, or how many: 1 to {MAX_WORKERS}")
        return tuple(map(str, range(int(value))))
    names = value.removesuffix(",").split(",")
    if all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9/:._-]*", name) for name in names) and len({*names}) == len(names):
        return tuple(names)
    raise _expect("devices like 0,1 (each once), or how many")


def _truth(value: str) -> bool:
    if value.lower() in TRUE:
        return True
    if value.lower() in FALSE:
        return False
    raise _expect("true or false")


def _denial(value: str) -> bool:
    return not _truth(value)


def _level(value: str) -> str:
    try:
        return LEVELS[value.lower()]
    except KeyError:
        raise _expect("debug, info, warning or error") from None


def _format(value: str) -> str:
    if value in ("console", "json"):
        return value
    raise _expect("console or json")


def _token(value: str) -> str:
    if re.fullmatch(r"([!-~]([ -~]*[!-~])?)?", value):
        return value
    raise _expect("printable ASCII without blanks at its ends")


def _bearer(value: str) -> str:
    if re.fullmatch(r"[!-~]+", value):
        return value
    raise _expect("printable ASCII without blanks, at least one character")


def _prefix(value: str) -> str:
    trimmed = value.rstrip("/")
    if (
        value.startswith("/")
        and re.fullmatch(r"[!-~]*", trimmed)
        and not re.search(r"[?#\\\"<>]|//|/\.\.?(/|$)", trimmed)
    ):
        return trimmed
    raise _expect("a path that begins with /, like /models/a")


def _remote_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https", "ws", "wss") and parts.hostname is not None and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise _expect("a URL like https://host, or ws(s)://host")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise _expect("a URL without user, query and fragment; a token is given by --auth-token")
    return value.rstrip("/")


def _upload_url(value: str) -> str:
    if re.fullmatch(r"https?://[^/?#\s]+(/[^?#\s]*)?(\?[^#\s]*)?", value, re.IGNORECASE) and value.isprintable():
        return value
    raise _expect("an http or https URL")


def _host_pattern(value: str) -> str:
    HostPolicy([value])
    return value


def _signing_secret(value: str) -> str:
    try:
        if base64.b64decode(value.removeprefix("whsec_"), validate=True):
            return value
    except ValueError:
        pass
    raise _expect("base64, with or without whsec_ in front")


def _origin(value: str) -> str:
    if re.fullmatch(r"https?://[^/?#@\s]+", value, re.IGNORECASE):
        return value.lower()
    raise _expect("an origin like https://example.org:8080")


TEXT: Final = Parser("TEXT", _text)
PATH: Final = Parser("PATH", _text)
PORT: Final = Parser("PORT", _whole(0, 65535, "a port from 0 to 65535"))
SLOTS: Final = Parser("N", _whole(1, MAX_SLOTS, f"a whole number from 1 to {MAX_SLOTS}"))
COUNT: Final = Parser("N", _whole(0, 10**9, "a whole number, 0 or more"))
SOME: Final = Parser("N", _whole(1, 10**9, "a whole number, 1 or more"))
WORKERS: Final = Parser("N", _whole(1, MAX_WORKERS, f"a whole number from 1 to {MAX_WORKERS}"))
GPUS: Final = Parser("DEVICES", _gpus)
SECONDS: Final = Parser("SECONDS", _seconds(zero=False))
GRACE: Final = Parser("SECONDS", _seconds(zero=True))
WHOLE_SECONDS: Final = Parser("SECONDS", _whole(1, MAX_SECONDS, "whole seconds, 1 or more"))
SIZE: Final = Parser("BYTES", _size(1))
KEPT: Final = Parser("BYTES", _size(0))
TRUTH: Final = Parser("BOOL", _truth)
DENIAL: Final = Parser("BOOL", _denial)
LEVEL: Final = Parser("LEVEL", _level)
FORMAT: Final = Parser("FORMAT", _format)
ORIGIN: Final = Parser("ORIGIN", _origin)
UPLOAD_URL: Final = Parser("URL", _upload_url)
REMOTE_URL: Final = Parser("URL", _remote_url)
HOST_PATTERN: Final = Parser("PATTERN", _host_pattern)
TOKEN: Final = Parser("TOKEN", _token)
BEARER: Final = Parser("TOKEN", _bearer)
PREFIX: Final = Parser("PATH", _prefix)
SIGNING_SECRET: Final = Parser("SECRET", _signing_secret)
