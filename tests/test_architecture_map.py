"""The figures of ``make map``: those that must be 0 are, and a tree that has faults shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture_map import PACKAGE, REASONS, ROOT, Graph, Tree, traced


@pytest.fixture(scope="module")
def ours() -> Tree:
    return Tree(ROOT)


def test_no_arrow_leads_upwards(ours: Tree) -> None:
    assert ours.between_rooms(typed=True).upwards == []


def test_folders_form_no_circle(ours: Tree) -> None:
    assert ours.between_folders().circles == []


def test_files_form_no_circle_when_they_are_imported(ours: Tree) -> None:
    assert ours.between_files(typed=False).circles == []


def test_circles_for_the_type_checker_alone_are_known(ours: Tree) -> None:
    assert ours.between_files(typed=True).circles == [
        ["state/prediction.py", "state/prediction_errors.py"],  # an error has its prediction, which raises it
        ["sdk/_constraints.py", "sdk/_parameters.py"],  # rules are applied to the parameter that is being made
        ["worker/cancel/gate.py", "worker/cancel/thread_gate.py"],  # the gate knows those of its threads
    ]


def test_a_small_file_with_one_importer_has_its_reason(ours: Tree) -> None:
    assert set(ours.satellites) == set(REASONS)


def test_floors() -> None:
    graph = Graph([("top", "middle"), ("top", "ground"), ("middle", "ground")])
    assert graph.floors == {"top": 3, "middle": 2, "ground": 1}
    assert graph.circles == []
    assert graph.upwards == []


def test_one_arrow_upwards_makes_a_circle_and_hides_no_floor() -> None:
    graph = Graph([("top", "middle"), ("top", "ground"), ("middle", "ground"), ("ground", "top")])
    assert graph.circles == [["ground", "middle", "top"]]
    assert graph.upwards == [("ground", "top")]
    assert graph.floors == {"top": 3, "middle": 2, "ground": 1}


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "edge.py": "from cog_trio.core.table import Row\nfrom cog_trio import core\n",
        "core/__init__.py": "from .table import Row\n",
        "core/table.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from cog_trio.edge import Edge\n",
        "core/tool.py": "def use():\n    import cog_trio.core.row\n",
        "core/row.py": "x = 1\n" * 60,
    }
    for name, text in files.items():
        path = tmp_path / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    tree = Tree(tmp_path)
    assert [tuple(found) for found in tree.imports] == [
        ("core/__init__.py", "core/table.py", False),
        ("core/table.py", "edge.py", True),
        ("core/tool.py", "core/row.py", False),
        ("edge.py", "core/__init__.py", False),
        ("edge.py", "core/table.py", False),
    ]
    assert tree.rooms == ["core/", "edge.py"]
    assert tree.between_rooms(typed=True).circles == [["core/", "edge.py"]]
    assert tree.between_rooms(typed=False).circles == []
    assert tree.satellites == {"edge.py": "core/table.py"}


@pytest.mark.process
def test_a_prediction_is_followed() -> None:
    found = traced(ROOT)
    assert None not in found.values()
    assert 1 < (found["files"] or 0) <= (found["changes"] or 0) < (found["own"] or 0) < (found["calls"] or 0)
    assert 0 < (found["acquiring"] or 0) < (found["to_permit"] or 0) < (found["calls"] or 0)
