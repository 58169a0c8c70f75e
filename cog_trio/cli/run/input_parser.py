"""From texts of a command line to the JSON input of a model, by the model's own document.

In: ``name=value`` texts and at most one JSON object, and the schema of the inputs. Out: one JSON object, or every
fault at once, each in one line that names the input. What a text means is told by the type of its input, never by
its look: ``5`` is a number for an integer and a text for a string. Values out of range or not among the choices are
left to whoever checks the request: here texts only become values.

``@path`` stands for the content of a file: a data URL for a file input, the text itself for all others, so that long
prompts and JSON can come from files. ``@-`` is stdin. A text that begins with an @ of its own is written with two.
"""

from __future__ import annotations

import base64
import difflib
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from cog_trio.files.mime import guess_mime

COMPONENTS: Final = {"predict": "Input", "train": "TrainingInput"}
TRUE: Final = ("true", "1", "yes", "on")
FALSE: Final = ("false", "0", "no", "off")
INTEGER: Final = re.compile(r"[+-]?[0-9]+")
URL: Final = re.compile(r"(?:https?|data):", re.IGNORECASE)
STDIN: Final = "-"
PIECE: Final = 3 * 2**18  # bytes of a file that become text at a time: a multiple of 3
ANY: Final[Mapping[str, Any]] = {}


class BadInputs(ValueError):
    """Inputs can't be made; ``faults`` has one line for each by the name of its input, ``values`` the other inputs."""

    def __init__(self, faults: Mapping[str, str], values: Mapping[str, Any]) -> None:
        super().__init__("; ".join(faults.values()))
        self.by_name = faults
        self.faults = tuple(faults.values())
        self.values = values


class _Bad(ValueError):
    """One input can't be made; the text goes behind its name."""


Read = Callable[[str], bytes]
"""From what stands behind the @ to the content; raises OSError."""


@runtime_checkable
class ReadsFiles(Protocol):
    """A ``Read`` that makes the value of a file input itself."""

    def __call__(self, source: str) -> bytes: ...
    def file_input(self, source: str) -> str: ...


def pair(text: str) -> tuple[str, str]:
    """Split ``name=value``.

    Raises:
      ValueError: there is no name or no ``=``; the text is for the user.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text!r} is not name=value")
    return name, value


def json_object(text: str, read: Read) -> dict[str, Any]:
    """The object of ``--json``: the text itself, ``@file``, ``@-`` or ``-`` for stdin.

    Raises:
      ValueError: it can't be read, or is not a JSON object; the text is for the user.
    """
    source = text[1:] if text.startswith("@") else text if text == "-" else None
    where = "--json" if source is None else f"--json: {_named(source)}"
    if source is not None:
        try:
            text = read(source).decode()
        except OSError as error:
            raise ValueError(f"{where} can't be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{where} is not UTF-8") from error
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f'{where} must be an object of inputs, like {{"name": "value"}}')
    return value


@dataclass(frozen=True)
class InputParser:
    """The inputs of one callable, as its document says them."""

    fields: Mapping[str, Mapping[str, Any]]  # resolved schemas, in the order of the signature
    required: frozenset[str]
    extra: bool  # inputs of any name pass

    @classmethod
    def of(cls, document: Mapping[str, Any], mode: str) -> InputParser:
        """Those of the predict or train callable; a document without them takes any input."""
        schemas = document.get("components", {}).get("schemas", {})
        component = schemas.get(COMPONENTS[mode])
        if component is None:
            return cls({}, frozenset(), True)
        fields = {name: resolved(field, schemas) for name, field in component.get("properties", {}).items()}
        ordered = dict(sorted(fields.items(), key=lambda item: item[1].get("x-order", 0)))
        return cls(ordered, frozenset(component.get("required", ())), bool(component.get("additionalProperties")))

    def build(self, pairs: Sequence[tuple[str, str]], given: Mapping[str, Any], read: Read) -> dict[str, Any]:
        """The input: what ``--json`` gave, then ``pairs`` on top; names that come several times make a list.

        Raises:
          BadInputs: with every fault there is.
        """
        faults: dict[str, str] = {}
        values: dict[str, Any] = {}
        for name, value in given.items():
            try:
                values[name] = self._from_json(self._field(name), value, read)
            except _Bad as bad:
                faults[name] = f"{name}: {bad}"
        texts: dict[str, list[str]] = {}
        for name, text in pairs:
            texts.setdefault(name, []).append(text)
        for name, several in texts.items():
            try:
                values[name] = self._from_texts(self._field(name), several, read)
            except _Bad as bad:
                faults[name] = f"{name}: {bad}"
        for name, value in values.items():
            if (fault := _unsendable(value)) is not None:
                faults[name] = f"{name}: {fault}"
        if faults:
            raise BadInputs(faults, {name: value for name, value in values.items() if name not in faults})
        return values

    def _field(self, name: str) -> Mapping[str, Any]:
        field = self.fields.get(name)
        if field is not None:
            return field
        if self.extra:
            return ANY
        if not self.fields:
            raise _Bad("the model takes no inputs")
        close = difflib.get_close_matches(name, self.fields, 1)
        hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(self.fields)}"
        raise _Bad(f"the model has no such input; {hint}")

    def _from_json(self, field: Mapping[str, Any], value: Any, read: Read) -> Any:
        """As it is, but for files."""
        if takes_file(field) and isinstance(value, str) and value.startswith("@"):
            return _data_url(value[1:], read)
        if field.get("type") == "array" and isinstance(value, list):
            return [self._from_json(field.get("items", ANY), item, read) for item in value]
        return value

    def _from_texts(self, field: Mapping[str, Any], texts: Sequence[str], read: Read) -> Any:
        if field.get("type") == "array":
            items = field.get("items", ANY)
            if len(texts) == 1 and (whole := _json_list(texts[0])) is not None:
                return self._from_json(field, whole, read)
            return [_value(items, text, read) for text in texts]
        if len(texts) > 1:
            raise _Bad(f"given {len(texts)} times, but it takes one value")
        return _value(field, texts[0], read)


def takes_file(field: Mapping[str, Any]) -> bool:
    return field.get("type") == "string" and field.get("format") == "uri"


def is_secret(field: Mapping[str, Any]) -> bool:
    return bool(field.get("x-cog-secret")) or field.get("format") == "password"


def _value(field: Mapping[str, Any], text: str, read: Read) -> Any:
    """One text as one value of the field."""
    if takes_file(field):
        return _file(text, read)
    secret = is_secret(field)
    if text.startswith("@@"):
        text = text[1:]
    elif text.startswith("@"):
        text = _text(text[1:], read)
        if secret or field.get("type") != "string":
            text = text.removesuffix("\n")
    kind = field.get("type")
    if text == "null" and field.get("nullable") and kind != "string" and "anyOf" not in field:
        return None
    try:
        return _KINDS[kind](text) if isinstance(kind, str) and kind in _KINDS else _any(field, text)
    except ValueError as error:
        raise _Bad(f"{error}, not {_shown(text)}" if not secret else str(error)) from None


def _file(text: str, read: Read) -> str:
    if text.startswith("@"):
        return _data_url(text[1:], read)
    if URL.match(text):
        return text
    raise _Bad(f"takes a file: write @{text} to send one from here, or a URL (http, https, data)")


def _data_url(source: str, read: Read) -> str:
    if not isinstance(read, ReadsFiles):
        return data_url(source, _content(source, read))
    try:
        return read.file_input(source)
    except OSError as error:
        raise _unreadable(source, error) from error


def data_url(source: str, data: bytes) -> str:
    """The data URL of a file's content."""
    content = memoryview(data)
    pieces = [f"data:{guess_mime(source)};base64,"]
    pieces += [str(base64.b64encode(content[at : at + PIECE]), "ascii") for at in range(0, len(content), PIECE)]
    return "".join(pieces)


def _text(source: str, read: Read) -> str:
    try:
        return _content(source, read).decode()
    except UnicodeDecodeError:
        raise _Bad(f"{_named(source)} is not UTF-8 text, which this input needs") from None


def _content(source: str, read: Read) -> bytes:
    try:
        return read(source)
    except OSError as error:
        raise _unreadable(source, error) from error


def _unreadable(source: str, error: OSError) -> _Bad:
    hint = "; a text that begins with @ is written with @@"
    return _Bad(f"{_named(source)} can't be read: {error.strerror or error}{hint}")


def _integer(text: str) -> int | float:
    if INTEGER.fullmatch(text.strip()):
        try:
            return int(text)
        except ValueError:  # beyond 4,300 digits
            raise ValueError("has too many digits") from None
    try:
        number = _number(text)
    except ValueError:
        raise ValueError("must be a whole number") from None
    if not float(number).is_integer():
        raise ValueError("must be a whole number")
    return int(number)


def _number(text: str) -> int | float:
    if INTEGER.fullmatch(text.strip()):
        return int(text)
    try:
        number = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError("must be a finite number")
    return number


def _boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in (*TRUE, *FALSE):
        raise ValueError("must be true or false")
    return word in TRUE


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object")
    return value


def _array(text: str) -> list[Any]:
    value = _json_list(text)
    if value is None:
        raise ValueError("must be a JSON list")
    return value


_KINDS: Final[Mapping[Any, Callable[[str], Any]]] = {
    "string": str,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _object,
    "array": _array,
}


def _any(field: Mapping[str, Any], text: str) -> Any:
    """A value of a union: of its first type that takes the text, strings last. Without types: JSON, else a text."""
    told = [member.get("type") for member in field.get("anyOf") or ()]
    kinds = [kind for kind in told if isinstance(kind, str)]  # of newer documents it may be a list: anything
    if text == "null" and field.get("nullable") and "string" not in kinds:
        return None
    for kind in kinds:
        if kind in _KINDS and kind != "string":
            try:
                return _KINDS[kind](text)
            except ValueError:
                continue
    if "string" in kinds:
        return text
    if kinds:
        raise ValueError(f"must be one of {', '.join(map(str, kinds))}")
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _unsendable(value: Any) -> str | None:
    """Why a value has no form in JSON, if it has none. Nothing is copied: a file may be in it."""
    if isinstance(value, str):
        return None if value.isascii() or _is_utf8(value) else "is not UTF-8 text"
    if isinstance(value, float):
        return None if math.isfinite(value) else "holds a number that is out of range"
    inner = (*value, *value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((fault for fault in map(_unsendable, inner) if fault is not None), None)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _json_list(text: str) -> list[Any] | None:
    if not text.lstrip().startswith("["):
        return None
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def resolved(field: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """The field with its reference followed (choices stand in a component of their own), its items too."""
    whole = dict(field)
    for reference in (field, *field.get("allOf", ())):
        name = str(reference.get("$ref", "")).rpartition("/")[2]
        if name in schemas:
            whole = {**schemas[name], **whole}
    if isinstance(whole.get("items"), dict):
        whole["items"] = resolved(whole["items"], schemas)
    return whole


def _named(source: str) -> str:
    return "stdin" if source == STDIN else source


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
