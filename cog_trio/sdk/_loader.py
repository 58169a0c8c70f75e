"""From a reference (``file.py:Name`` or ``file.py``) to the callable that makes predictions or trains.

User code is imported once, from the working directory, under its file's name, so that pickling and multiprocessing find
it. What a class defines is looked for along its bases up to the first of ours: `BaseRunner.run` is nobody's model.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, get_origin

from ._annotations import of_function, options, signature
from ._decorators import CONCURRENT, TRIO, is_async
from ._notice import notice, old_names
from ._runner import BasePredictor, BaseRunner
from .types import File, Path

OURS: Final = (BaseRunner, BasePredictor, object)
NURSERY: Final = "nursery"  # the parameter of ``setup`` that gets one
RESERVED: Final = frozenset({"cog", "coglet", "cog_trio", "__main__"})


@dataclass(frozen=True)
class LoadedCallable:
    """A callable of a model.

    ``call`` is what the worker calls; ``function`` is the one whose signature counts (they differ under a decorator
    that hides it); ``instance`` has ``setup`` and ``healthcheck``, None for a plain function.
    """

    call: Callable[..., Any]
    function: Callable[..., Any]
    instance: Any = None

    @property
    def owner(self) -> type | None:
        return None if self.instance is None else type(self.instance)

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @property
    def is_async(self) -> bool:
        """Coroutine function or async generator function, read from the unwrapped function."""
        return any(is_async(_plain(function)) for function in (self.call, self.function))

    @property
    def is_trio(self) -> bool:
        """``@cog.trio`` is on the function, or on the class that it is a method of."""
        return mark_of(self, TRIO) is True or getattr(self.owner, TRIO, False) is True


def predict_ref(ref: str) -> LoadedCallable:
    """The prediction of a reference; raises whatever the import raises, or says what is wrong with the object."""
    return predict_target(load_object(ref))


def train_ref(ref: str) -> LoadedCallable:
    """The training of a reference, see `predict_ref`."""
    return train_target(load_object(ref, train=True))


def load_object(ref: str, *, train: bool = False) -> Any:
    """Import a reference and choose its object; a class is instantiated.

    Raises:
      FileNotFoundError, AttributeError, TypeError, ValueError: if there is no such object, or it is not a model.
      BaseException: whatever user code raises.
    """
    file, _, name = ref.partition(":")
    with _one_argument(file):
        module = load_module(file)
        found = _named(module, file, name, train) if name else _choose(module, file, train)
        if inspect.isclass(found):
            if not train:
                method_name(found)
            elif not _defines(found, "train"):
                raise ValueError(f"{found.__name__} must define train()")
            return found()
    is_model = callable(found) or any(_defines(type(found), method) for method in ("run", "predict", "train"))
    if not is_model:
        raise TypeError(f"{ref} is neither a class nor a function, but {type(found).__name__}")
    return found


@contextmanager
def _one_argument(file: str) -> Iterator[None]:
    """While user code is imported, ``sys.argv`` has one element: models call argparse."""
    before = sys.argv
    sys.argv = [file]
    try:
        yield
    finally:
        sys.argv = before


def load_module(file: str) -> types.ModuleType:
    """Import a file by its path, relative to the working directory; a file already imported is taken as it is."""
    path = os.path.realpath(file)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"no such file: {file}")
    if (module := _imported(path)) is not None:
        return module
    stem = os.path.splitext(os.path.basename(path))[0].replace(".", "_")
    folder = os.path.dirname(path)
    if os.path.isfile(os.path.join(folder, "__init__.py")) and _imports_relatively(path):
        package = _package(folder)
        return _execute(f"{package.__name__}.{stem}", path, package)
    return _execute(_free_name(stem), path)


def _imported(path: str) -> types.ModuleType | None:
    """The module of a file. Looks into the dicts only: asking a lazy module for anything might import the world."""
    name = os.path.basename(path)
    for module in list(sys.modules.values()):
        if isinstance(module, types.ModuleType) and module.__dict__.get("__name__") != "__main__":
            file = module.__dict__.get("__file__")
            if isinstance(file, str) and os.path.basename(file) == name and os.path.realpath(file) == path:
                return module
    return None


def _imports_relatively(path: str) -> bool:
    """Such a file can't run outside of its package, so it is loaded as a member; others run as in Cog."""
    with open(path, "rb") as source:
        tree = ast.parse(source.read(), path)
    return any(isinstance(node, ast.ImportFrom) and node.level > 0 for node in ast.walk(tree))


def _free_name(name: str) -> str:
    taken = name in RESERVED or name in sys.stdlib_module_names
    return f"cog_model_{name}" if taken or name in sys.modules else name


def _package(folder: str) -> types.ModuleType:
    """Import the package that a folder is, with those above it."""
    init = os.path.join(folder, "__init__.py")
    if (module := _imported(init)) is not None:
        return module
    parent_folder, name = os.path.split(folder)
    if os.path.isfile(os.path.join(parent_folder, "__init__.py")):
        parent = _package(parent_folder)
        return _execute(f"{parent.__name__}.{name}", init, parent, folder)
    return _execute(_free_name(name), init, None, folder)


def _execute(
    name: str, path: str, parent: types.ModuleType | None = None, folder: str | None = None
) -> types.ModuleType:
    search = None if folder is None else [folder]
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=search)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    if parent is not None:
        setattr(parent, name.rpartition(".")[2], module)
    return module


def _named(module: types.ModuleType, file: str, name: str, train: bool) -> Any:
    """The object of this name.

    Raises:
      AttributeError: there is none; the text says what is there.
    """
    try:
        return getattr(module, name)
    except AttributeError as error:
        if error.name != name or error.obj is not module:
            raise  # of a module with a __getattr__ of its own
        raise AttributeError(f"{file} defines no {name}{_offer(module, file, train)}") from None


def _offer(module: types.ModuleType, file: str, train: bool) -> str:
    """The classes and functions of a module that may be its model, or its training, and how the first is named."""
    names = ("train",) if train else ("run", "predict")
    own = [
        found
        for found in vars(module).values()
        if getattr(found, "__module__", None) == module.__name__ and getattr(found, "__name__", "_")[0] != "_"
    ]
    classes = [
        found.__name__ for found in own if inspect.isclass(found) and any(_defines(found, name) for name in names)
    ]
    functions = [found.__name__ for found in own if inspect.isfunction(found) and found.__name__ in names]
    models = classes + functions
    if not models:
        missing = "train" if train else "run"
        return f"; it has neither a class with a method {missing} nor a function {missing}: write one"
    kind = "the class" if classes else "the function"
    return f"; it has {kind} {models[0]}: name it by {os.path.basename(file)}:{models[0]}"


def _choose(module: types.ModuleType, file: str, train: bool) -> Any:
    """The object of a reference without a name."""
    if train:
        for name in ("train", "Trainer", "Runner", "Predictor"):
            found = getattr(module, name, None)
            if callable(found) and (not inspect.isclass(found) or _defines(found, "train")):
                return found
        raise AttributeError(f"{file} defines neither a function train nor a class with a method train")
    has_runner = hasattr(module, "Runner")
    has_predictor = getattr(module, "Predictor", BasePredictor) not in OURS  # not what ``from cog import *`` brings
    if not has_runner and not has_predictor:
        raise AttributeError(f"{file} defines neither Runner nor Predictor{_offer(module, file, train)}")
    fault: Exception | None = None
    if has_runner:
        runner = module.Runner
        fault = _runner_fault(runner)
        if fault is None:
            if has_predictor:
                notice(f"{file} defines Runner and Predictor; Runner is used")
            return runner
    if has_predictor:
        old_names.append("class Predictor")
        return module.Predictor
    assert fault is not None
    raise fault


def _runner_fault(runner: Any) -> Exception | None:
    if not inspect.isclass(runner):
        return None if callable(runner) else TypeError("Runner is neither a class nor a function")
    try:
        method_name(runner, quiet=True)
    except ValueError as error:
        return error
    return None


def _defines(cls: type, name: str) -> bool:
    """Whether an author defined the method: own or inherited, up to the first class of ours."""
    for base in cls.__mro__:
        if base in OURS:
            return False
        if name in vars(base):
            found = vars(base)[name]
            return callable(found) or isinstance(found, (staticmethod, classmethod))
    return False


def method_name(cls: type, *, quiet: bool = False) -> str:
    """``run`` or ``predict``: the method of a class that makes predictions.

    Raises:
      ValueError: if there is none, or both.
    """
    run, predict = _defines(cls, "run"), _defines(cls, "predict")
    if run and predict:
        raise ValueError(f"{cls.__name__} must define either run() or predict(), not both (also not by inheritance)")
    if not run and not predict:
        raise ValueError(f"{cls.__name__}: run or predict method not found; define run()")
    if not quiet:
        if predict:
            old_names.append("predict()")
        if BasePredictor in cls.__mro__:
            old_names.append("BasePredictor")
    return "run" if run else "predict"


def predict_target(found: Any) -> LoadedCallable:
    """The prediction of an instance or a function."""
    return _target(found, lambda cls: method_name(cls, quiet=True))


def train_target(found: Any) -> LoadedCallable:
    """The training of an instance or a function."""

    def name(cls: type) -> str:
        if not _defines(cls, "train"):
            raise ValueError(f"{cls.__name__} must define train()")
        return "train"

    return _target(found, name)


def _target(found: Any, name_of: Callable[[type], str]) -> LoadedCallable:
    cls = type(found)
    if inspect.isroutine(found) or isinstance(found, functools.partial):
        return LoadedCallable(found, _visible(found))
    if callable(found) and not any(_defines(cls, name) for name in ("run", "predict", "train")):
        return LoadedCallable(found, _visible(found))
    call = getattr(found, name_of(cls))
    return LoadedCallable(call, _visible(call), found)


def _visible(call: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose signature is the model's: behind a decorator that hides it, the one that it closes over."""
    raw = signature(call)
    parameters = list(raw.parameters.values())
    kinds = [parameter.kind for parameter in parameters]
    annotated = any(parameter.annotation is not parameter.empty for parameter in parameters)
    everything = kinds == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
    if annotated or not (everything or kinds == [inspect.Parameter.VAR_KEYWORD]):
        return call
    hidden = [value for value in _closure(_plain(call)) if inspect.isroutine(value)]
    if len(hidden) == 1:
        instance = getattr(call, "__self__", None)
        inner = hidden[0]
        if instance is not None and not isinstance(instance, type) and not inspect.ismethod(inner):
            return types.MethodType(inner, instance)
        return inner
    if everything:
        name = getattr(call, "__qualname__", repr(call))
        raise TypeError(f"{name} hides its inputs behind a decorator; put @functools.wraps(function) on the wrapper")
    return call


def _closure(function: Any) -> list[Any]:
    values = []
    for cell in getattr(function, "__closure__", None) or ():
        try:
            values.append(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    return values


def _plain(call: Any) -> Any:
    """What `inspect` can tell the kind of: the function of a method or partial, the ``__call__`` of an object."""
    while isinstance(call, functools.partial):
        call = call.func
    call = getattr(call, "__func__", call)
    return call if inspect.isroutine(call) or inspect.isclass(call) else type(call).__call__


def setup_call(instance: Any, weights: str | None, *, trio: bool = False) -> Callable[..., Any] | None:
    """``setup`` of an instance, ready to be called without arguments; None if its author wrote none.

    Under trio one argument is left to the caller: ``nursery``, by name, where there is a parameter of that name.

    Raises:
      TypeError: naming the parameters that nothing can be given for.
    """
    setup = getattr(instance, "setup", None)
    if instance is None or not callable(setup) or not (_defines(type(instance), "setup") or "setup" in _own(instance)):
        return None
    parameters = signature(setup).parameters
    unknown = [
        name
        for name, parameter in parameters.items()
        if name != "weights"
        and not (trio and name == NURSERY and parameter.kind is not parameter.POSITIONAL_ONLY)
        and parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if unknown:
        hint = f" ({NURSERY} is given to models that are marked @cog.trio)" if NURSERY in unknown and not trio else ""
        raise TypeError(
            f"setup() cannot be called, it has required parameters besides weights: {', '.join(unknown)}{hint}"
        )
    if trio and NURSERY in parameters and not is_async(_plain(setup)):
        raise TypeError(f"setup({NURSERY}) must be async def: there is no nursery where no event loop runs")
    if "weights" not in parameters:
        return setup  # type: ignore[no-any-return]
    value = weights_value(setup, weights)
    if parameters["weights"].kind is inspect.Parameter.POSITIONAL_ONLY:
        before = [p.default for p in list(parameters.values())[: list(parameters).index("weights")]]
        return functools.partial(setup, *before, value)
    return functools.partial(setup, weights=value)


def _own(instance: Any) -> dict[str, Any]:
    return getattr(instance, "__dict__", {})


def weights_type(setup: Callable[..., Any]) -> Any:
    """`Path`, `File` or None, by the annotation of ``weights``."""
    parameter = signature(setup).parameters.get("weights")
    if parameter is None or parameter.annotation is parameter.empty:
        return None
    owner = getattr(setup, "__self__", None)
    space = of_function(_plain(setup), None if owner is None else type(owner))
    members, _ = options(parameter.annotation, space)
    kinds = [member.type for member in members if isinstance(member.type, type) and get_origin(member.type) is None]
    if len(kinds) != len(members) or len(kinds) != 1:
        return None
    if issubclass(kinds[0], File):
        return File
    return Path if issubclass(kinds[0], os.PathLike) else None


def weights_value(setup: Callable[..., Any], weights: str | None) -> Any:
    """What ``setup`` gets as weights: a URL is not fetched, as `URLPath` it keeps its text."""
    if not weights:
        return None
    kind = weights_type(setup)
    if kind is Path:
        return Path.validate(weights)
    if kind is File:
        return File.validate(weights) if "://" in weights or weights.startswith("data:") else open(weights, "rb")
    return weights


def concurrency_mark(target: LoadedCallable) -> int | None:
    """What ``@concurrent`` says, if it is there."""
    value = mark_of(target, CONCURRENT)
    return None if value is None else int(value)


def mark_of(target: LoadedCallable, mark: str) -> Any:
    """The value of a decorator's mark on a callable of a model, None if it has none."""
    from .schema import marked

    for function in (target.call, target.function, _plain(target.call)):
        value = marked(function, mark)
        if value is not None:
            return value
    return None
