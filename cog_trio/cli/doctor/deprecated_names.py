"""Names of Cog that still work but should be replaced, and the edits that replace them where nothing is unclear.

Each rule reads one ``PythonSource`` and yields findings. A rule gives edits only if the old name is bound once, the new
one never, and no text spells it; else it says what to do and leaves it to people. Old models run unchanged, so nothing
here is a problem. One rule is about an annotation that is as loose as old models have it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from cog_trio.cli.doctor.findings import Edit, Finding
from cog_trio.cli.doctor.python_source import Import, PythonSource
from cog_trio.config.yaml_source import read_yaml

COG: Final = ("cog", "cog.predictor")
BASES: Final = ("BasePredictor", "Predictor")  # of Cog; the second is the name that 0.1 had
MOVED: Final[Mapping[str, Mapping[str, str]]] = {
    "cog.server.exceptions": {"CancelationException": "cog"},
    "cog.base_predictor": {"BasePredictor": "cog"},
    "cog.server.scope": {"current_scope": "cog", "emit_metric": "cog"},
}
ENVIRONMENTS: Final = frozenset({"site-packages", "venv", "env", "node_modules", "__pycache__"})  # nobody's model
TEXTS: Final = "of texts"
BARE: Final[Mapping[str, tuple[str, str]]] = {  # what to write in place of a bare iterator, and how that is read
    "ConcatenateIterator": ("ConcatenateIterator[str]", TEXTS),
    "AsyncConcatenateIterator": ("AsyncConcatenateIterator[str]", TEXTS),
    "Iterator": ("Iterator[...]", "of anything"),
    "AsyncIterator": ("AsyncIterator[...]", "of anything"),
    "Generator": ("Iterator[...]", TEXTS),
    "AsyncGenerator": ("AsyncIterator[...]", TEXTS),
}
UNCLEAR: Final = "; done by hand, since the name is used in more than one way"


@dataclass(frozen=True)
class Subject:
    """What is looked at: one file, and how the model is named in it."""

    source: PythonSource
    name: str | None  # of the class or function that the reference names; None: it names the file alone
    imported_elsewhere: bool  # another file of the model imports this one
    train: bool = False  # the reference is that of the training: neither run nor predict is looked for


Rule = Callable[[Subject], Iterator[Finding]]


def deprecated(subject: Subject) -> Iterator[Finding]:
    """All that is deprecated in one file, in the order of the rules."""
    for rule in RULES:
        yield from rule(subject)


def _modules(subject: Subject) -> Iterator[Finding]:
    """Old modules whose names have moved."""
    source = subject.source
    for node in source.nodes:
        if not isinstance(node, ast.ImportFrom) or node.level or node.module is None or node.module not in MOVED:
            continue
        moved = MOVED[node.module]
        homes = {moved.get(alias.name, "") for alias in node.names}
        text = f"{node.module} is a module of older releases; import from cog"
        edits: tuple[Edit, ...] = ()
        if homes == {"cog"} and source.utf8:
            start = source.at(node.lineno, node.col_offset)
            head = b"from " + node.module.encode() + b" "
            if source.data.startswith(head, start):
                edits = (Edit(source.path, start + 5, start + len(head) - 1, "cog"),)
        yield Finding("deprecated", source.where(node), text + ("" if edits else UNCLEAR), edits)


def _bases(subject: Subject) -> Iterator[Finding]:
    """``BasePredictor``, imported from cog or reached through it."""
    source = subject.source
    for found in source.imports(*COG, "cog.base_predictor"):
        if found.alias.name not in BASES:
            continue
        old = found.alias.name
        text = f"{old} is deprecated; derive from BaseRunner"
        edits = _renamed(source, found, old, "BaseRunner")
        yield Finding("deprecated", source.where(found.alias), text + ("" if edits else UNCLEAR), edits)
    for name in _cog_names(source):
        for node in source.nodes:
            if isinstance(node, ast.Attribute) and node.attr in BASES and _is(node.value, name):
                edit = source.replace(node, node.attr, "BaseRunner")
                yield Finding(
                    "deprecated",
                    source.where(node),
                    f"{node.attr} is deprecated; derive from BaseRunner",
                    (edit,) if edit else (),
                )


def _metrics(subject: Subject) -> Iterator[Finding]:
    """``emit_metric(name, value)``, which became a method of the scope."""
    source = subject.source
    for found in source.imports("cog", "cog.server.scope"):
        if found.alias.name != "emit_metric":
            continue
        text = "emit_metric is deprecated; write current_scope().record_metric(name, value)"
        edits = _scoped(source, found)
        yield Finding("deprecated", source.where(found.alias), text + ("" if edits else UNCLEAR), edits)


def _leftovers(subject: Subject) -> Iterator[Finding]:
    """Names without a mechanical successor."""
    texts = {
        "ExperimentalFeatureWarning": "nothing raises ExperimentalFeatureWarning any more; remove its filter",
        "File": "File is deprecated; take Path, which can be read as a file on disk",
    }
    for found in subject.source.imports("cog", "cog.types"):
        if found.alias.name in texts:
            yield Finding("deprecated", subject.source.where(found.alias), texts[found.alias.name])


def _class_name(subject: Subject) -> Iterator[Finding]:
    """A class ``Predictor`` that the reference finds without naming it."""
    source = subject.source
    model = _model(subject)
    if subject.name is not None or model is None or model.name != "Predictor":
        return
    edits: tuple[Edit, ...] = ()
    clear = not subject.imported_elsewhere and not source.introspects and b"_Predictor__" not in source.data
    if clear and _free(source, "Predictor", "Runner"):
        edits = _all(
            source.rename(model, "Runner"),
            *(source.replace(use, "Predictor", "Runner") for use in source.uses("Predictor")),
        )
    text = "the class name Predictor is deprecated, call it Runner"
    yield Finding("deprecated", source.where(model), text + ("" if edits else UNCLEAR), edits)


def _method_name(subject: Subject) -> Iterator[Finding]:
    """``predict`` of the model's class."""
    source = subject.source
    model = _model(subject)
    if model is None or subject.train:
        return
    methods = [node for node in model.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    predict = [node for node in methods if node.name == "predict"]
    if not predict or any(node.name == "run" for node in methods):
        return  # both: that is no matter of names, the model does not load
    edits: tuple[Edit, ...] = ()
    calls = [node for node in source.nodes if isinstance(node, ast.Attribute) and node.attr == "predict"]
    inside = set(ast.walk(model))
    nested = {
        node for found in inside if isinstance(found, ast.ClassDef) and found is not model for node in ast.walk(found)
    }
    own = [node for node in calls if _is(node.value, "self") and node in inside - nested]
    firsts = {node.args.args[0].arg for node in methods if node.args.args}
    others = [node for node in calls if node not in own and _may_be(source, node.value, {model.name, "self", *firsts})]
    clear = len(predict) == 1 and not others and not subject.imported_elsewhere and _plain_bases(source, model)
    named = source.introspects or any(use in inside for use in source.uses("predict"))
    taken = any(
        (isinstance(node, ast.Attribute) and node.attr == "run" and _is(node.value, "self"))
        or (node in model.body and "run" in {name.id for name in ast.walk(node) if isinstance(name, ast.Name)})
        for node in inside
        if isinstance(node, (ast.Attribute, ast.Assign, ast.AnnAssign))
    )
    if clear and not named and not taken and not {"predict", "run"} & source.spoken:
        edits = _all(source.rename(predict[0], "run"), *(source.replace(node, "predict", "run") for node in own))
    text = f"{model.name}.predict() is deprecated, rename it to run()"
    yield Finding("deprecated", source.where(predict[0]), text + ("" if edits else UNCLEAR), edits)


def _bare_iterators(subject: Subject) -> Iterator[Finding]:
    """An output that is annotated as an iterator of nobody knows what."""
    method = model_method(subject)
    annotation = None if method is None else method.returns
    match annotation:
        case ast.Name(id=name) | ast.Attribute(attr=name) if name in BARE:
            better, read = BARE[name]
            text = f"{name} does not say what its items are, so it is read as {read}: write {better}"
            yield Finding("hint", subject.source.where(annotation), text)
        case _:
            return


RULES: Final[tuple[Rule, ...]] = (
    _modules,
    _bases,
    _metrics,
    _leftovers,
    _class_name,
    _method_name,
    _bare_iterators,
)


def model_method(subject: Subject) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The function whose signature is the model's, if it is written in this file."""
    names = ("train",) if subject.train else ("run", "predict")
    model = _model(subject)
    if model is None:
        body, names = subject.source.tree.body, names if subject.name is None else (subject.name,)
    else:
        body = model.body
    functions = [node for node in body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return next((node for name in names for node in functions if node.name == name), None)


def _model(subject: Subject) -> ast.ClassDef | None:
    """The class of the model, if it is written in this file; as the loader chooses it."""
    classes = {node.name: node for node in subject.source.nodes if isinstance(node, ast.ClassDef)}
    if subject.name is not None:
        return classes.get(subject.name)
    return classes.get("Runner") or classes.get("Predictor")


def _renamed(source: PythonSource, found: Import, old: str, new: str) -> tuple[Edit, ...]:
    """Edits for an import and all uses of its name; none where that is unclear."""
    head = source.replace(found.alias, old, new)
    if found.alias.asname is not None:
        return _all(head)
    if not _free(source, old, new):
        return ()
    return _all(head, *(source.replace(use, old, new) for use in source.uses(old)))


def _scoped(source: PythonSource, found: Import) -> tuple[Edit, ...]:
    calls = [
        node.func for node in source.nodes if isinstance(node, ast.Call) and not node.keywords and len(node.args) == 2
    ]
    uses = source.uses("emit_metric")
    if found.alias.asname or not _free(source, "emit_metric") or any(use not in calls for use in uses):
        return ()
    known = "current_scope" in source.bound
    if known and len(found.node.names) == 1:
        return ()  # nothing would be left to import
    new = "current_scope().record_metric"
    head = _without(source, found) if known else source.replace(found.alias, "emit_metric", "current_scope")
    return _all(head, *(source.replace(use, "emit_metric", new) for use in uses))


def _without(source: PythonSource, found: Import) -> Edit | None:
    """The edit that takes a name out of an import, with the comma behind or before it."""
    names = found.node.names
    place = names.index(found.alias)
    first, last = (names[place], names[place + 1]) if place == 0 else (names[place - 1], found.alias)
    if place == 0:
        start, end = source.at(first.lineno, first.col_offset), source.at(last.lineno, last.col_offset)
    else:
        assert first.end_lineno is not None
        assert first.end_col_offset is not None
        assert last.end_lineno is not None
        assert last.end_col_offset is not None
        start = source.at(first.end_lineno, first.end_col_offset)
        end = source.at(last.end_lineno, last.end_col_offset)
    return Edit(source.path, start, end, "") if source.utf8 and b"#" not in source.data[start:end] else None


def _free(source: PythonSource, old: str, *new: str) -> bool:
    """Whether a name is bound once, by what is about to change, and the new ones are bound nowhere."""
    return source.bound[old] == 1 and not any(source.bound[name] for name in new) and old not in source.spoken


def _all(*edits: Edit | None) -> tuple[Edit, ...]:
    """All edits, or none if one of them can't be made."""
    return tuple(edit for edit in edits if edit is not None) if all(edits) else ()


def _cog_names(source: PythonSource) -> set[str]:
    """What ``import cog`` is called in the file."""
    return {
        alias.asname or alias.name
        for node in source.nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "cog"
    }


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _plain_bases(source: PythonSource, model: ast.ClassDef) -> bool:
    """Whether the class derives from Cog's classes alone, which neither bring nor need the method."""
    cog = {found.local for found in source.imports(*COG, "cog.base_predictor")}
    return all(
        (isinstance(base, ast.Name) and base.id in cog)
        or (
            isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name) and base.value.id in _cog_names(source)
        )
        for base in model.bases
    )


def _may_be(source: PythonSource, node: ast.expr, names: set[str]) -> bool:
    """Whether an expression may be the model or its class: one of its names, ``super()``, a call of a name, or a name
    that is bound to such a call."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in {*names, "super", "cls"}
    if not isinstance(node, ast.Name):
        return False
    assigned = (
        found.value
        for found in source.nodes
        if isinstance(found, (ast.Assign, ast.AnnAssign, ast.NamedExpr))
        for target in (found.targets if isinstance(found, ast.Assign) else [found.target])
        if _is(target, node.id)
    )
    return node.id in names or any(isinstance(value, ast.Call) and _may_be(source, value, names) for value in assigned)


def imported_elsewhere(folder: Path, file: Path, limit: int = 1_000) -> bool:
    """Whether another Python file of the folder imports this one; also true when that can't be told: there are too many
    files, or one can't be read."""
    stem = file.stem.encode()
    for number, other in enumerate(sorted(folder.rglob("*.py"))):
        if number == limit:
            return True
        foreign = any(part.startswith(".") or part in ENVIRONMENTS for part in other.relative_to(folder).parts)
        if other == file or foreign or not other.is_file():
            continue
        try:
            lines = other.read_bytes().splitlines()
        except OSError:
            return True
        if any(stem in line for line in lines if line.lstrip().startswith((b"import", b"from"))):
            return True
    return False


def older_key(path: Path) -> Iterator[Finding]:
    """A finding if the document says ``predict``, with the edit that says ``run``.

    Raises:
      BadFile: it is not YAML.
    """
    mark = read_yaml(path).fields().get("predict")
    if mark is None or mark.empty:
        return
    data = path.read_bytes()
    edits: tuple[Edit, ...] = ()
    document = yaml.compose(data, yaml.SafeLoader)
    for key, value in document.value if isinstance(document, yaml.MappingNode) else ():
        if value.start_mark.index == mark.node.start_mark.index:  # not one that came by a merge
            text = data.decode("utf-8", "replace")  # of UTF-16, which YAML may be too, the word is not found
            start = len(text[: key.start_mark.index].encode())
            if data[start : start + 7] == b"predict":
                edits = (Edit(path, start, start + 7, "run"),)
    yield Finding("deprecated", f"{path.name}:{mark.line}", "predict is the older spelling of run", edits)
