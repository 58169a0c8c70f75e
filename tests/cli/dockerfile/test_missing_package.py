"""A package that is missing is to be named by the requirements first, then installed from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from cog_trio.cli.dockerfile.missing_package import missing_package_advice

CAUSE = "ModuleNotFoundError: No module named 'cv2.gapi'"


@pytest.mark.parametrize(
    ("yaml", "requirements", "advice"),
    [
        (None, None, "install it beside cog-trio: pip install opencv-python-headless"),
        (
            "run: m.py\nbuild:\n  python_requirements: requirements.txt\n",
            "numpy\n",
            "add opencv-python-headless to {0}/requirements.txt, then install it here: "
            "pip install -r {0}/requirements.txt",
        ),
        (
            "run: m.py\nbuild:\n  python_requirements: requirements.txt\n",
            "opencv_python-headless==4.1\n",
            "install here what the model requires: pip install -r {0}/requirements.txt",
        ),
        (
            "run: m.py\nbuild:\n  python_packages:\n    - numpy>=1\n",
            None,
            "add opencv-python-headless to python_packages of cog.yaml, then install it here: "
            "pip install 'numpy>=1' opencv-python-headless",
        ),
        (
            "run: m.py\n",
            None,
            "add opencv-python-headless to {0}/requirements.txt and python_requirements: requirements.txt to build of "
            "cog.yaml, then install it here: pip install -r {0}/requirements.txt",
        ),
    ],
)
def test_advice_follows_what_the_model_says_already(
    yaml: str | None, requirements: str | None, advice: str, tmp_path: Path
) -> None:
    if yaml is not None:
        (tmp_path / "cog.yaml").write_text(yaml)
    if requirements is not None:
        (tmp_path / "requirements.txt").write_text(requirements)
    assert missing_package_advice(CAUSE, tmp_path) == advice.format(tmp_path)


def test_other_causes_get_no_advice(tmp_path: Path) -> None:
    assert missing_package_advice("ImportError: cannot import name 'x' from 'cv2'", tmp_path) is None
