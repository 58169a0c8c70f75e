"""A pipe in a cell of a table: GitHub wants it written ``\\|``, inside code too, and shows ``|``.

Python-Markdown takes a pipe inside code as it is, and would show the backslash, which nobody could copy into a shell.
"""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Before a page is rendered: rows of tables lose the backslashes inside code; fenced blocks keep theirs."""
    lines = []
    fenced = False
    for line in markdown.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        row = line.startswith("|") and not fenced
        lines.append(re.sub(r"`[^`]+`", lambda code: code[0].replace("\\|", "|"), line) if row else line)
    return "\n".join(lines)
