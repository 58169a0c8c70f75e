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

from cog_trio import __version__
from cog_trio.cli.dockerfile.build_section import read_build
from cog_trio.cli.dockerfile.command import command
from cog_trio.cli.wheel import pack

HADOLINT: Final = shutil.which(
    "hadolint", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
)

# click before 8.2 mixes the streams unless it is told not to
APART: Final[dict[str, Any]] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
RUNTIME: Final = "cog-trio==0.1.0"  # else a wheel is written, since the tests do not run on a release
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
OPTIONS: Final = PLAIN + (
    "build: {python_packages: [torch --pre, ./cog_trio-0.1.0-py3-none-any.whl], run: ['curl https://x > /x']}\n"
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
    return CliRunner(**APART).invoke(command, [str(folder), "--runtime", RUNTIME, *arguments], standalone_mode=False)


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
    assert "RUN python -m pip install --no-cache-dir '/tmp/cog-trio/cog_trio-0.1.0-py3-none-any.whl[cog]'" in lines


def test_a_release_is_required_by_its_version_with_what_cogs_sdk_brings(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "is_from_index", lambda: True)
    (folder / "cog.yaml").write_text(PLAIN)
    result = CliRunner(**APART).invoke(command, [str(folder)], standalone_mode=False)
    assert f"RUN python -m pip install --no-cache-dir 'cog-trio[cog]=={__version__}'" in _lines(result)
    assert result.stderr == ""


def test_a_cog_trio_that_no_index_has_is_written_beside_as_a_wheel(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "is_from_index", lambda: False)
    wheel = pack.pack_own()
    (folder / wheel.name).unlink()
    (folder / "cog.yaml").write_text(PLAIN)
    result = CliRunner(**APART).invoke(command, [str(folder)], standalone_mode=False)
    lines = _lines(result)
    assert f'COPY ["{wheel.name}", "/tmp/cog-trio/"]' in lines
    assert f"RUN python -m pip install --no-cache-dir '/tmp/cog-trio/{wheel.name}[cog]'" in lines
    assert (folder / wheel.name).read_bytes() == wheel.data
    assert f"wrote {folder / wheel.name}, which the image installs" in result.stderr
    (folder / wheel.name).unlink()
    (folder / "cog.yaml").write_text(REQUIREMENTS)  # it requires cog-trio itself
    assert CliRunner(**APART).invoke(command, [str(folder)], standalone_mode=False).exception is None
    assert not (folder / wheel.name).exists()


@pytest.mark.parametrize(
    ("build", "tools"),
    [
        ("run: ['curl -sSL https://x | tar -xzf -']", "curl"),
        ("run: ['apt-get update && wget https://x', 'true; git clone https://y']", "git wget"),
        ("pre_install: ['cd /x && make -j4', '(xz -d x)']", "make xz-utils"),
        ("run: ['gcc -c x.c', 'g++ y.cc']", "build-essential"),
        ("run: ['pip install git+https://x/y']", "git"),
        ("python_packages: ['git+https://x/y@v1']", "git"),
        ("python_packages: ['y @ git+https://x/y']", "git"),
        ("python_requirements: more/requirements.txt", "git"),
        ("system_packages: ['git=1:2.39.5-0'], run: ['git clone https://y']", ""),
        ("run: ['echo git-lfs curly /opt/curl ./make libcurl; make-it --git x.wget']", ""),
    ],
)
def test_what_commands_and_requirements_call_is_installed(folder: Path, build: str, tools: str) -> None:
    """A slim image has none of it, where Cog's own base has."""
    (apt,) = (line for line in _lines(_run(folder, f"{PLAIN}build: {{{build}}}\n")) if "apt-get install -y" in line)
    given = "git=1:2.39.5-0 " if "git=" in build else ""
    assert f"--no-install-recommends tini {given}{tools}{' ' if tools else ''}    &&" in apt


def test_options_of_pip_go_into_a_requirements_file(folder: Path) -> None:
    packages = (
        '["torch==2.0 --extra-index-url https://h/whl --pre", "-f https://h/links", "--find-links=https://h/links",'
        " \"six; python_version < '4'\"]"
    )
    lines = _lines(_run(folder, f"{PLAIN}build: {{python_packages: {packages}}}\n"))
    file = "/tmp/cog-trio/python_packages.txt"
    wanted = "torch==2.0 'six; python_version < '\"'\"'4'\"'\"'' '--extra-index-url https://h/whl' --pre '--find-links https://h/links'"
    assert (
        f"RUN mkdir -p /tmp/cog-trio && printf '%s\\n' {wanted} > {file}     && "
        f"python -m pip install --no-cache-dir {RUNTIME} -r {file}"
    ) in lines


def test_a_package_with_a_hash_is_installed_apart_from_cog_trio(folder: Path) -> None:
    lines = _lines(_run(folder, f"{PLAIN}build: {{python_packages: ['six==1.16.0 --hash=sha256:{'0' * 64}']}}\n"))
    pips = [line for line in lines if "pip install" in line]
    assert f"'six==1.16.0 --hash=sha256:{'0' * 64}' > " in pips[0]
    assert pips[0].endswith("--no-cache-dir -r /tmp/cog-trio/python_packages.txt")
    assert pips[1].endswith(f"{RUNTIME}     && python -m pip check")


@pytest.mark.parametrize("how", ["packages", "requirements"])
def test_a_local_wheel_is_copied_before_it_is_installed(folder: Path, how: str) -> None:
    (folder / "wheels").mkdir()
    (folder / "wheels" / "own-1-py3-none-any.whl").touch()
    line = "./wheels/own-1-py3-none-any.whl[x]; python_version < '4'"
    (folder / "local.txt").write_text(f"{line}\n")
    value = f'python_packages: ["{line}"]' if how == "packages" else "python_requirements: local.txt"
    lines = _lines(_run(folder, f"{PLAIN}build: {{{value}}}\n"))
    copied = lines.index('COPY ["wheels/own-1-py3-none-any.whl", "/tmp/cog-trio/wheels/own-1-py3-none-any.whl"]')
    (installed,) = (number for number, text in enumerate(lines) if "pip install" in text)
    assert copied < lines.index("WORKDIR /tmp/cog-trio") < installed < lines.index("WORKDIR /")
    assert "own" in read_build(folder).names


def test_python_can_be_named_in_place_of_an_old_one(folder: Path) -> None:
    lines = _lines(_run(folder, f"{PLAIN}build: {{python_version: '3.8'}}\n", "--python", "3.11"))
    assert "FROM python:3.11-slim-bookworm" in lines


def test_no_variable_of_the_image_itself_is_set(folder: Path) -> None:
    names = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES")
    listed = ", ".join(f"{name}=/x" for name in names)
    result = _run(folder, f"{PLAIN}environment: [{listed}]\nbuild: {{environment: [{listed}]}}\n")
    assert "/x" not in result.stdout
    for name in names:
        assert sum(f" {name}" in line for line in result.stderr.splitlines()) == 2, name


@pytest.mark.process
def test_bytecode_of_pythons_own_library_is_compiled(folder: Path) -> None:
    (line,) = (line for line in _lines(_run(folder, PLAIN)) if "compileall" in line)
    script = (
        line.removeprefix("RUN ").replace("python -c", f"{sys.executable} -c").replace("python -m compileall", "echo")
    )
    said = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.split() == [
        "-q",
        "-x",
        "/(test|tests|idlelib|lib2to3|site-packages|dist-packages)/",
        os.path.dirname(os.__file__),
    ]


def test_the_file_may_have_another_name(folder: Path) -> None:
    (folder / "cog.yaml").write_text("this is: not used\n")
    (folder / "gpu.yaml").write_text(PLAIN)
    done = CliRunner().invoke(command, [str(folder), "-f", "gpu.yaml"])
    assert done.exception is None, done.output
    assert "FROM python:" in done.stdout


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
        ("build: {python_packages: ['torch --user']}\n", "holds --user, which is not an option"),
        ("build: {python_packages: ['torch -f']}\n", "holds -f, which is not an option"),
        ("build: {python_packages: ['torch -f wheels']}\n", "holds -f wheels, which is a path"),
        ("build: {python_packages: [gone-1-py3-none-any.whl]}\n", "names gone-1-py3-none-any.whl, but there is no"),
        ("build: {python_packages: [../up-1-py3-none-any.whl]}\n", "no such wheel"),
        ("build: {python_packages: [./package]}\n", "which is a path"),
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
    "line",
    [
        ".",
        "./a",
        "-e .",
        "-e a",
        "--editable=a",
        "a/b.whl",
        "/x.whl",
        "../x.whl",
        "b.whl",
        "file:b",
        "x @ file:///b",
        "/a",
    ],
)
def test_paths_in_requirements_are_refused(folder: Path, line: str) -> None:
    (folder / "local.txt").write_text(f"{line}\n")
    result = _run(folder, PLAIN + "build: {python_requirements: local.txt}\n")
    assert "local.txt:1" in str(result.exception)


@pytest.mark.parametrize("version", ["3.9", "latest", "3", ""])
def test_a_python_that_cog_trio_does_not_run_on_is_refused(folder: Path, version: str) -> None:
    assert 'like "3.12", 3.10 or newer' in str(_run(folder, PLAIN, "--python", version).exception)


@pytest.mark.parametrize("arguments", [["--base", "a b"], ["--base", "-x"], ["--runtime", "gone.whl"], ["--user", "0"]])
def test_wrong_flags_are_refused(folder: Path, arguments: list[str]) -> None:
    assert type(_run(folder, PLAIN, *arguments).exception).__name__ == "BadParameter"


@pytest.mark.process
@pytest.mark.parametrize("text", [PLAIN, PACKAGES, REQUIREMENTS, HASHED, OPTIONS])
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
