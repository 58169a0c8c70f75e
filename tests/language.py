"""The rules of language that a machine can hold: phrases that readers had to read twice, codes without a legend.

``python -m tests.language`` prints each place that breaks one; ``make check`` runs it.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
BANNED: Final[dict[str, str]] = {  # what is searched for -> what to write, and why
    r"(?<!here )\b(?:is|are) no (?!longer\b|more\b|matter\b|way\b|need\b|one\b)": "'is not a', as people say",
    r"\banew\b": "'again', or 'new': the word is archaic",
    r"\bis none of ours\b": "'is not ours': an inversion",
    r"\b[DW]\d{1,2}\b": "the rule in words: a stranger has no legend for the code",
    r"\brow \d+\b": "the rule in words: a stranger has no legend for the number",
}
PAGES: Final = sorted(
    page
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
    if page.parent.name != "changes" and "design" not in page.parts
)
SOURCES: Final = sorted(ROOT.glob("cog_trio/**/*.py"))


def prose_of_source(text: str) -> Iterator[tuple[int, str]]:
    """Docstrings and comments, with their lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def prose_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a Markdown page outside of blocks of code."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, re.sub(r"`[^`]*`", "", line)


def faults(prose: Iterator[tuple[int, str]]) -> list[str]:
    return [
        f"line {line}: {found.group()!r}: write {advice}"
        for line, text in prose
        for phrase, advice in BANNED.items()
        for found in re.finditer(phrase, text)
    ]


def main() -> int:
    """Print all faults; the exit code."""
    found = [
        f"{file.relative_to(ROOT)}, {fault}"
        for files, prose in ((SOURCES, prose_of_source), (PAGES, prose_of_page))
        for file in files
        for fault in faults(prose(file.read_text()))
    ]
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
