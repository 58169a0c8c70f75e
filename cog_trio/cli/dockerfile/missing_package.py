"""What to do about a package that a model imports and that is not installed here.

A package belongs into the requirements of the model first, since an image is built from them, and is installed here
from there. ``doctor``, ``run`` and ``serve`` say it with the same words.
"""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Final

from cog_trio.cli.dockerfile.build_section import Build, read_build
from cog_trio.cli.dockerfile.requirements import normalized
from cog_trio.config.cog_yaml import FILE, BadModel
from cog_trio.config.yaml_source import BadFile

MISSING: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
REQUIREMENTS: Final = "requirements.txt"
PACKAGES: Final = {  # that have another name than what is imported; all others are taken to have the same
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dotenv": "python-dotenv",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def missing_package_advice(cause: str, folder: str | Path, config_file: str = FILE) -> str | None:
    """What to do, in one line; None if a load or a setup has failed for another reason.

    Args:
      cause: why it has failed.
      folder: the model's, with its cog.yaml if there is one.
    """
    found = MISSING.search(cause)
    if found is None:
        return None
    module = found[1].partition(".")[0]
    package = PACKAGES.get(module, module)
    build = None
    if config_file == FILE and (Path(folder) / FILE).is_file():
        with suppress(BadModel, BadFile):  # doctor tells it
            build = read_build(Path(folder))
    if build is None:
        return f"install it beside cog-trio: pip install {package}"
    install = _install(build, Path(folder))
    if normalized(package) in build.names or normalized(module) in build.names:
        return f"install here what the model requires: {install}"
    if build.python_packages and not build.requirements:
        return f"add {package} to python_packages of {FILE}, then install it here: {install} {package}"
    file = Path(folder) / (build.requirements[0] if build.requirements else REQUIREMENTS)
    named = "" if build.requirements else f" and python_requirements: {REQUIREMENTS} to build of {FILE}"
    return f"add {package} to {file}{named}, then install it here: pip install -r {shlex.quote(str(file))}"


def _install(build: Build, folder: Path) -> str:
    files = [f"-r {shlex.quote(str(folder / name))}" for name in build.requirements[:1]]
    return f"pip install {' '.join([*files, *map(shlex.quote, build.pip_words)])}"
