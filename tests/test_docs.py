"""The documentation: links lead somewhere, and what it tells to type exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.rows import ROWS

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def _name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), link


@pytest.mark.process
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    """Every page is in the navigation, every link and anchor leads somewhere."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "-f",
            ROOT / "docs/site/mkdocs.yml",
            "-d",
            tmp_path / "site",
        ],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "tutorial" / "first-model.html").is_file()
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text()
        assert all("\\|" not in row for row in re.findall(r"<t[dh]\b.*?</t[dh]>", text, re.DOTALL)), page
        prose = re.sub(r"<(pre|code|script)\b.*?</\1>", "", text, flags=re.DOTALL)
        assert not re.search(r"```|^\s*(<p>)?[|] |^(<p>)?[-*] |\]\(|\*\*", prose, re.MULTILINE), (
            f"{page} shows its markup"
        )


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"`?\bmake ([a-z]+(?:-[a-z]+)*)`", page.read_text())}
    assert {"serve", "test", "check", "system", "test-all"} <= targets
    assert named <= targets


def test_nothing_else_lies_at_the_top() -> None:
    wanted = {"cog_trio", "tests", "scenarios", "docs", "pyproject.toml", "Makefile", "README.md", "LICENSE"}
    made = {"dist", "build", "blurred.png", "training.json"}  # the last two by the commands of README and how-to
    assert {path.name for path in ROOT.iterdir() if not path.name.startswith(".")} - made == wanted


def test_files_that_the_architecture_names_are_there() -> None:
    page = (ROOT / "docs" / "design" / "architecture.md").read_text()
    named = set(re.findall(r"`(\w[\w/]*\.py)`", page))
    assert len(named) > 30
    assert [name for name in sorted(named) if not (ROOT / "cog_trio" / name).is_file()] == []
    assert len(page.split()) <= 1_800, "it is the first page, to be read at once"


def test_every_page_of_the_reference_and_of_the_design_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for folder in ("tutorial", "how-to", "reference", "design"):
        for page in (ROOT / "docs" / folder).glob("*.md"):
            assert f"(docs/{folder}/{page.name})" in readme


def test_every_decision_that_is_named_has_a_record() -> None:
    rows = {row for row in ROWS if row.startswith("D")}
    files = [*PAGES, *(file for folder in ("cog_trio", "tests", "scenarios") for file in (ROOT / folder).rglob("*.py"))]
    for file in files:
        assert set(re.findall(r"(?<![\w\\])D\d{1,2}\b|(?<=test_)D\d{1,2}(?=_)", file.read_text())) <= rows, file


@pytest.mark.parametrize("example", ["hello", "image", "text", "concurrent", "train"])
def test_each_example_has_its_cog_yaml(example: str) -> None:
    assert (ROOT / "docs" / "examples" / example / "cog.yaml").is_file()
