"""How pages are read as programs (scenarios/pages.py)."""

from __future__ import annotations

import pytest

from scenarios.pages import BadPage, Block, Segment, blocks, like, segments

PAGE = """# A page

<!-- a comment for nobody -->
```python title="predict.py"
class Runner: ...
```

1. In a list:

   <!-- fails: 2 -->
   ```sh
   cog-trio serve nothing
   ```

<!-- run:
echo hidden
-->

<!-- no-run: needs docker -->

```dockerfile
FROM scratch
```
"""


def test_blocks_have_their_line_language_title_and_marks() -> None:
    assert list(blocks(PAGE)) == [
        Block(4, "python", "class Runner: ...\n", "predict.py", {}),
        Block(11, "sh", "cog-trio serve nothing\n", None, {"fails": "2"}),
        Block(15, "sh", "echo hidden", None, {}),
        Block(21, "dockerfile", "FROM scratch\n", None, {"no-run": "needs docker"}),
    ]


@pytest.mark.parametrize(
    "text",
    ["```sh\nls", "<!-- no-run: x -->\nText.\n", "<!-- fails: 1 -->\n", "<!-- without end"],
    ids=["open block", "text behind a mark", "mark at the end", "open comment"],
)
def test_a_wrong_page_is_refused(text: str) -> None:
    with pytest.raises(BadPage):
        list(blocks(text))


def test_servers_are_cut_out_of_commands() -> None:
    assert segments("export A=1\ncog-trio serve a.py\n\nB=2 cog-trio serve b.py  # why\ncurl x\n") == [
        Segment("export A=1", False),
        Segment("cog-trio serve a.py", True),
        Segment("B=2 cog-trio serve b.py  # why", True),
        Segment("curl x", False),
    ]
    assert segments("cog-trio server\n") == [Segment("cog-trio server", False)]


@pytest.mark.parametrize(
    ("wanted", "seen", "same"),
    [
        ("a b\n", "a b", True),
        ('{"a": 1}', '{"a":1}\n', True),
        ("a...z", "abc xyz", True),
        ("a...z", "abc xy", False),
        ("1+1", "11", False),
    ],
)
def test_output_is_compared_but_for_spaces_and_dots(wanted: str, seen: str, same: bool) -> None:
    assert like(wanted, seen) is same
