"""The check of the language finds what it looks for, where people read it."""

from __future__ import annotations

from tests.language import faults, prose_of_page, prose_of_source


def test_docstrings_and_comments_are_looked_at_and_strings_are_not() -> None:
    source = '"""Text that is no JSON."""\nvalue = "is no JSON"  # as D7 says\n'
    assert [fault.split(":")[0] for fault in faults(prose_of_source(source))] == ["line 1", "line 2"]


def test_pages_are_looked_at_and_their_code_is_not() -> None:
    page = "It is no wall.\n```text\nit is no wall\n```\nThere is no need; it is no longer `anew`.\n"
    assert [fault.split(":")[0] for fault in faults(prose_of_page(page))] == ["line 1"]
