"""A row of the table of settings: what its flag and variable are called, how their text is read, what it means."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cog_trio.config.parsers import Parser


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
