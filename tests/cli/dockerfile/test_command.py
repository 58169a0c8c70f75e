"""``cog-trio dockerfile``: what it writes, what hadolint says about it, and one line for each wrong cog.yaml."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import CliRunner, Result

from cog_trio.cli.dockerfile.command import command

HADOLINT: Final = shutil.which(
    "hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
)

# click before 8.2 mixes the streams unless it is told not to
APART: Final[dict[str, Any]] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
PLAIN: Final = "run: run.py:Runner\n"
PACKAGES: Final = PLAIN + (
    "build:\n  python_version: 3.11\n  gpu: true\n  cuda: '12.1'\n"
    "  system_packages: [ffmpeg, tini, ffmpeg, 'git=1:2.39.5-0']\n"
    "  python_packages: ['numpy==1.26.4', 'httpx[http2]>=0.27,<1']\n  run:\n    - echo one > /one\n"
    "    - |\n      echo two \\\n        > /two\n    - command: cat /run/secrets/pip\n"
    "      mounts: [{type: secret, id: pip, target: /run/secrets/pip}]\n  environment: ['A=b c']\n"
)
REQUIREMENTS: Final = "predict: predict.py\ntrain: train.py:train\nconcurrency: {max: 3}\n" + (
    "build: {python_requirements: more/requirements.txt, pre_install: ['true']}\n"
    "environment: ['GREETING=he said \"hi\" \\ for $5', 'EMPTY=']\n"
)
HASHED: Final = PLAIN + "build: {python_requirements: hashed.txt}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "requirements.txt").write_text(
        "numpy==1.26.4  # a/b\n-r base.txt\n--constraint=../limits.txt\n--index-url https://pypi.org/simple\n\n"
        "cog_trio[cli]\\\n  ==0.1.0\ntorch @ https://example.org/torch.whl\ngit+https://example.org/x@v1\n"
        "; python_version < '3'\n"
    )
    (tmp_path / "more" / "base.txt").write_text("-r requirements.txt\nsix\n")
    (tmp_path / "limits.txt").write_text("six<2\ncog-trio<9\n")
    (tmp_path / "limited.txt").write_text("-c limits.txt\nsix\n")
    (tmp_path / "hashed.txt").write_text(f"six==1.16.0 \\\n  --hash=sha256:{'0' * 64}\n")
    (tmp_path / "cog_trio-0.1.0-py3-none-any.whl").touch()
    return tmp_path


def _run(folder: Path, text: str, *arguments: str) -> Result:
    (folder / "cog.yaml").write_text(text)
    return CliRunner(**APART).invoke(command, [str(folder), *arguments], standalone_mode=False)


def _lines(result: Result) -> list[str]:
    assert result.exception is None, result.exception
    return result.stdout.replace("\\\n", "").splitlines()


def test_the_contract_of_cog(folder: Path) -> None:
    """spec container runtime: port 5000, /sbin/tini, the server module, /src, variables, /var/run/cog."""
    lines = _lines(_run(folder, REQUIREMENTS))
    for line in (
        "FROM python:3.13-slim-bookworm",
        "EXPOSE 5000",
        'ENTRYPOINT ["/sbin/tini", "--"]',
        'CMD ["python", "-m", "cog_trio.server.http"]',
        "WORKDIR /src",
        "COPY . /src",
        "ENV COG_PREDICT_TYPE_STUB=predict.py     COG_TRAIN_TYPE_STUB=train.py:train     COG_MAX_CONCURRENCY=3",
        "ENV PYTHONUNBUFFERED=1     PIP_DISABLE_PIP_VERSION_CHECK=1     "
        r'GREETING="he said \"hi\" \\ for \$5"     EMPTY=""',
        "RUN install -d -m 1777 /var/run/cog",
    ):
        assert line in lines
    assert not any(line.startswith("USER") for line in lines)


def test_layers_stand_in_the_order_of_how_seldom_they_change(folder: Path) -> None:
    lines = _lines(_run(folder, PACKAGES, "--user", "1234"))
    order = ["FROM", "ENV PYTHON", "ARG A", "RUN apt-get", "RUN python -m pip", "RUN echo one", "RUN echo two"]
    order += [
        "RUN --mount",
        "RUN install",
        "WORKDIR",
        "COPY --chown",
        "USER",
        "EXPOSE",
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    ]
    found = [next(number for number, line in enumerate(lines) if line.startswith(start)) for start in order]
    assert found == sorted(found)
    assert 'ARG A="b c"' in lines
    assert "COPY --chown=1234:1234 . /src" in lines
    assert "USER 1234:1234" in lines
    (apt,) = (line for line in lines if "apt-get" in line)
    assert "apt-get install -y --no-install-recommends tini ffmpeg git=1:2.39.5-0 " in apt
    assert "rm -rf /var/lib/apt/lists/*" in apt
    (pip,) = (line for line in lines if "pip install" in line)
    assert pip.endswith("--no-cache-dir cog-trio==0.1.0 numpy==1.26.4 'httpx[http2]>=0.27,<1'")
    assert "RUN --mount=type=secret,id=pip,target=/run/secrets/pip cat /run/secrets/pip" in lines


def test_requirements_files_are_followed_and_installed_in_one_go(folder: Path) -> None:
    """They name cog-trio themselves, so nothing else does."""
    lines = _lines(_run(folder, REQUIREMENTS))
    assert [line for line in lines if line.startswith("COPY [")] == [
        'COPY ["more/requirements.txt", "/tmp/cog-trio/more/requirements.txt"]',
        'COPY ["more/base.txt", "/tmp/cog-trio/more/base.txt"]',
        'COPY ["limits.txt", "/tmp/cog-trio/limits.txt"]',
    ]
    assert "RUN python -m pip install --no-cache-dir -r /tmp/cog-trio/more/requirements.txt" in lines


def test_a_constraint_on_cog_trio_does_not_install_it(folder: Path) -> None:
    lines = _lines(_run(folder, PLAIN + "build: {python_requirements: limited.txt}\n"))
    assert "RUN python -m pip install --no-cache-dir cog-trio==0.1.0 -r /tmp/cog-trio/limited.txt" in lines


def test_hashed_requirements_are_installed_by_themselves(folder: Path) -> None:
    pips = [line for line in _lines(_run(folder, HASHED)) if "pip install" in line]
    assert len(pips) == 2
    assert pips[0].endswith("-r /tmp/cog-trio/hashed.txt")
    assert pips[1].endswith("cog-trio==0.1.0     && python -m pip check")


def test_runtime_and_base_can_be_named(folder: Path) -> None:
    digest = f"registry:5000/python@sha256:{'a' * 64}"
    lines = _lines(_run(folder, PLAIN, "--base", digest, "--runtime", "cog_trio-0.1.0-py3-none-any.whl"))
    assert f"FROM {digest}" in lines
    assert 'COPY ["cog_trio-0.1.0-py3-none-any.whl", "/tmp/cog-trio/"]' in lines
    assert "RUN python -m pip install --no-cache-dir /tmp/cog-trio/cog_trio-0.1.0-py3-none-any.whl" in lines


def test_same_input_same_bytes_and_only_its_own_file_is_overwritten(folder: Path) -> None:
    file = folder / "Dockerfile"
    assert _run(folder, PACKAGES, "-o", str(file)).exception is None
    first = file.read_bytes()
    assert _run(folder, PACKAGES, "-o", str(file)).exception is None
    assert file.read_bytes() == first == _run(folder, PACKAGES).stdout_bytes
    file.write_text("FROM scratch\n")
    assert "--force" in str(_run(folder, PACKAGES, "-o", str(file)).exception)
    assert file.read_text() == "FROM scratch\n"
    assert _run(folder, PACKAGES, "-o", str(file), "--force").exception is None
    assert file.read_bytes() == first
    assert "can't write" in str(_run(folder, PACKAGES, "-o", str(folder)).exception)


def test_what_cogs_build_would_do_and_this_does_not_is_told(folder: Path) -> None:
    text = PACKAGES + "future: 1\nenvironment: [PATH=/x]\n"
    told = _run(folder, text.replace("cuda:", "sdk_version: '0.16'\n  novel: 1\n  cuda:")).stderr.splitlines()
    assert all(line.startswith("cog-trio: warning: ") for line in told)
    for words in ("cog.yaml:3: build.python_version: write it in quotes", "build.gpu: the image has no CUDA",
                  "build.cuda: no CUDA", "build.sdk_version: ", "build.novel is unknown", "future is unknown",
                  "environment sets PATH, which belongs to the image"):  # fmt: skip
        assert sum(words in line for line in told) == 1, words
    assert len(told) == 7


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("build: {}\n", "names no model"),
        ("runn: x.py\n", "did you mean run"),
        ("build: []\n", "cog.yaml:2: build must be a mapping"),
        ("build: {python_version: 3.9}\n", "build.python_version is 3.9, but cog-trio needs Python 3.10"),
        ("build: {python_version: latest}\n", "build.python_version must be a version"),
        ("build: {system_package: [git]}\n", "did you mean system_packages"),
        ("build: {system_packages: git}\n", "build.system_packages must be a list"),
        ("build:\n  system_packages:\n    - git; rm -rf /\n", r"cog.yaml:4: build.system_packages\[0\] must be"),
        ("build: {python_packages: [a], python_requirements: limits.txt}\n", "keep python_requirements"),
        ('build: {python_packages: ["a\\nRUN b"]}\n', "on one line"),
        ("build: {python_requirements: gone.txt}\n", "cog.yaml:2: build.python_requirements names gone.txt"),
        ("build: {python_requirements: ../limits.txt}\n", "no such file"),
        ("build: {python_requirements: local.txt}\n", "local.txt:2: .* is a path"),
        ("build: {python_requirements: [a]}\n", "must be the name of a file"),
        ("build:\n  run:\n    - |\n      echo one\n      echo two\n", r"build.run\[0\] has a line that does not"),
        ("build: {run: [{mounts: []}]}\n", "with command in it"),
        ("build: {run: ['']}\n", "must be a command"),
        ("build: {run: ['echo a \\ ']}\n", "would join it with what comes after it"),
        ("build: {run: ['cat <<EOF']}\n", "begins a here-document"),
        ("build: {python_packages: ['--index-url http://host']}\n", "option of pip"),
        ("build: {python_packages: ['torch --pre']}\n", "option of pip"),
        ("build: {run: [{command: x, mounts: [{type: bind, id: a, target: b}]}]}\n", "must be secret"),
        ("build: {run: [{command: x, mounts: [{type: secret, id: 'a,b', target: b}]}]}\n", "needs a id"),
        ("build: {gpu: 'yes'}\n", "build.gpu must be true or false"),
        ("environment: [\"A=x\\ny\"]\n", "control character"),
    ],
)  # fmt: skip
def test_wrong_build_is_one_line_with_file_line_and_key(folder: Path, text: str, words: str) -> None:
    (folder / "local.txt").write_text("six\n-e ./package\n")
    result = _run(folder, text if text.startswith(("runn", "build: {}")) else f"run: run.py\n{text}")
    assert result.stdout == ""
    with pytest.raises(Exception, match=words) as caught:
        raise result.exception or AssertionError("no error")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line", [".", "./a", "-e .", "-e a", "--editable=a", "a/b.whl", "b.whl", "file:b", "x @ file:///b", "/a"]
)
def test_paths_in_requirements_are_refused(folder: Path, line: str) -> None:
    (folder / "local.txt").write_text(f"{line}\n")
    result = _run(folder, PLAIN + "build: {python_requirements: local.txt}\n")
    assert "local.txt:1" in str(result.exception)


@pytest.mark.parametrize("arguments", [["--base", "a b"], ["--base", "-x"], ["--runtime", "gone.whl"], ["--user", "0"]])
def test_wrong_flags_are_refused(folder: Path, arguments: list[str]) -> None:
    assert type(_run(folder, PLAIN, *arguments).exception).__name__ == "BadParameter"


@pytest.mark.process
@pytest.mark.parametrize("text", [PLAIN, PACKAGES, REQUIREMENTS, HASHED])
def test_hadolint_finds_nothing(folder: Path, text: str) -> None:
    if HADOLINT is None:
        pytest.skip("hadolint is not installed")
    for arguments in ([], ["--user", "1000"]):
        done = subprocess.run(
            [HADOLINT, "--no-color", "-"],
            input=_run(folder, text, *arguments).stdout,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, ""), done.stderr
