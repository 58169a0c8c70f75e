"""What a shell offers behind ``-i``: the names of the model's inputs, their values, and files behind ``@``.

A shell asks at each press of a key, so no worker is started: names, choices and types are read from the source of the
model. What can't be read so (inputs of a base class in another file, choices that are computed) is not offered.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cog_trio.config.cog_yaml import BadModel, find_model

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

METHODS: Final = {True: ("train",), False: ("run", "predict")}
CLASSES: Final = {True: ("train", "Trainer", "Runner", "Predictor"), False: ("Runner", "Predictor")}
FILES: Final = ("Path", "File")
MAX_SOURCE: Final = 2**20  # bytes of a file that is read for this
Function = ast.FunctionDef | ast.AsyncFunctionDef


def complete_input(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The ways to go on with ``NAME=VALUE``."""
    from click.shell_completion import CompletionItem

    train = context.command.name == "train" or context.info_name == "train"
    named = context.args or [context.params.get("model") or "."]  # click leaves MODEL behind when a value is missing
    inputs = dict(_inputs(named[0], context.params.get("config_file"), train))
    name, equals, value = incomplete.partition("=")
    if not equals:
        return [CompletionItem(f"{known}=") for known in inputs if known.startswith(name)]
    if value.startswith("@"):
        return [CompletionItem(f"{name}=@{path}") for path in _paths(value[1:])]
    offered = inputs.get(name, ())
    return [CompletionItem(f"{name}={choice}") for choice in offered if choice.startswith(value)]


def _inputs(model: str, config_file: str | None, train: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names of inputs and what their values may be, as far as that is known."""
    try:
        target = find_model(model, train_only=train, config_file=config_file)
    except BadModel:
        return
    reference = target.train if train else target.predict
    if reference is None:
        return
    file, _, name = reference.partition(":")
    path = target.folder / file
    try:
        if path.stat().st_size > MAX_SOURCE:
            return
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    function = _function(tree, (name,) if name else CLASSES[train], METHODS[train])
    if function is None:
        return
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    pairs = [*zip(positional, defaults, strict=True), *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    for argument, default in pairs:
        if argument.arg != "self":
            yield argument.arg, tuple(_values(argument.annotation, default))


def _function(tree: ast.Module, names: tuple[str, ...], methods: tuple[str, ...]) -> Function | None:
    found = {node.name: node for node in tree.body if isinstance(node, (ast.ClassDef, Function))}
    for name in names:
        node = found.get(name)
        if isinstance(node, Function):
            return node
        for member in node.body if node is not None else ():
            if isinstance(member, Function) and member.name in methods:
                return member
    return None


def _values(annotation: ast.expr | None, default: ast.expr | None) -> Iterator[str]:
    """What can be offered for one input: its choices, the two values of a truth, or the start of a file."""
    if isinstance(default, ast.Call):
        for keyword in default.keywords:
            if keyword.arg == "choices" and isinstance(keyword.value, (ast.List, ast.Tuple)):
                yield from _constants(keyword.value.elts)
    for node in ast.walk(annotation) if annotation is not None else ():
        if isinstance(node, ast.Subscript) and _named(node.value) == "Literal":
            inner = node.slice
            yield from _constants(inner.elts if isinstance(inner, ast.Tuple) else [inner])
        elif _named(node) == "bool":
            yield from ("true", "false")
        elif _named(node) in FILES:
            yield "@"


def _constants(nodes: list[ast.expr]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant):
            yield str(node.value)


def _named(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _paths(start: str) -> Iterator[str]:
    """Files and folders that begin so; a folder ends in a slash."""
    folder, name = os.path.split(start)
    try:
        entries = sorted(Path(folder or ".").expanduser().iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(name) and (name.startswith(".") or not entry.name.startswith(".")):
            yield os.path.join(folder, entry.name) + ("/" if entry.is_dir() else "")
