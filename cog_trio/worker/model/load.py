"""From a model's reference to what the worker runs: import, choose, describe, bind. Knows no socket.

`load` imports user code and raises whatever is wrong with it, as one error that names every bad parameter; all of that
is a failed setup. A `LoadedModel` holds the callable and everything that can be decided once: how it runs, how many at
a time, its document, and how each input that was left out gets its value. `bind` is all that is left for a run: each
declared parameter gets a real value, a left-out one a fresh copy of its default, never an ``Input(...)`` object.
"""

from __future__ import annotations

import copy
import json
import numbers
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import PurePath
from typing import Any, Final

from cog_trio.bridge import protocol
from cog_trio.bridge.protocol import Kind
from cog_trio.sdk import _loader as loader
from cog_trio.sdk import _ready_made as ready_made
from cog_trio.sdk._notice import notice_old_names
from cog_trio.sdk._urls import url_scheme
from cog_trio.sdk.schema import (
    MISSING,
    PREDICT,
    TRAIN,
    Parameter,
    Parameters,
    SchemaMode,
    Signature,
    describe_signature,
    document,
    notice,
)
from cog_trio.sdk.types import Path, Secret
from cog_trio.worker.model.input_values import URL_SCHEMES, coerce_value
from cog_trio.worker.model.output_fit import misfits

BUNDLED: Final = ".cog/openapi_schema.json"  # what Cog's build leaves in the working folder


@dataclass(frozen=True)
class LoadedModel:
    """A callable of a model, ready to be run."""

    call: Callable[..., Any]
    name: str  # as its author wrote it
    kind: Kind
    concurrency: int  # runs at once; over 1 only when async or trio
    streaming: bool  # @streaming: clients may be offered the output as it is made
    document: dict[str, Any]
    parameters: tuple[Parameter, ...]
    extra: bool  # **kwargs: unknown inputs are passed on
    inputs: protocol.Inputs  # the parent's table of the same parameters
    setup: Callable[..., Any] | None = None  # weights included; may give an awaitable, and in trio want a nursery
    healthcheck: Callable[[], Any] | None = None
    misfits: Mapping[type, str] = field(default_factory=dict)  # types that no output should have, and what to say then
    _supply: Mapping[str, Callable[[], Any]] = field(default_factory=dict, repr=False)

    @property
    def has_healthcheck(self) -> bool:
        return self.healthcheck is not None

    def bind(self, values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Arguments for ``call``: from values in the types that their parameters have, the rest from defaults.

        Raises:
          TypeError: if a required input is missing, which the parent has excluded.
        """
        args: list[Any] = []
        kwargs = dict(values) if self.extra else {}
        for parameter in self.parameters:
            name = parameter.name
            value = values[name] if name in values else self._supply[name]()
            if parameter.positional:
                kwargs.pop(name, None)
                args.append(value)
            else:
                kwargs[name] = value
                if parameter.python_name:
                    kwargs[parameter.python_name] = kwargs.pop(name)
        return args, kwargs


@dataclass(frozen=True)
class LoadedModels:
    """What one worker serves; the document is that of all of it."""

    predict: LoadedModel | None
    train: LoadedModel | None
    document: dict[str, Any]
    no_training: str | None = None  # why a train callable that was named is left out

    @property
    def main(self) -> LoadedModel:
        """The one that the worker is measured by: slots, health check, streaming."""
        model = self.predict or self.train
        assert model is not None
        return model

    @property
    def setups(self) -> list[Callable[..., Any]]:
        """What is called before the first run; a class that both are methods of is set up once."""
        return [model.setup for model in (self.predict, self.train) if model is not None and model.setup is not None]

    @property
    def kinds(self) -> set[Kind]:
        return {model.kind for model in (self.predict, self.train) if model is not None}

    def get(self, mode: protocol.Mode) -> LoadedModel | None:
        return self.train if mode is protocol.Mode.TRAIN else self.predict


def load_model(ref: str | None, *, train: bool = False, max_concurrency: int | None = None) -> LoadedModel:
    """Load one callable: the prediction of a reference, or its training.

    Args:
      max_concurrency: None stands for what ``@concurrent`` says, else 1.

    Raises:
      BaseException: whatever user code raises while it is imported; FileNotFoundError, AttributeError, TypeError or
        ValueError, telling what to write instead, if it is not a model.
    """
    models = load_models(None if train else ref, ref if train else None, max_concurrency=max_concurrency)
    model = models.train if train else models.predict
    assert model is not None
    return model


def load_models(
    predict_ref: str | None,
    train_ref: str | None,
    *,
    max_concurrency: int | None = None,
    concurrency_from: str = "max_concurrency",
) -> LoadedModels:
    """Load the prediction, the training, or both; a file and a class named by both references are taken once.

    A training that can't run in a worker beside the prediction is left out, with a warning: predictions are served.

    Args:
      concurrency_from: how ``max_concurrency`` was set, for the error about it.
    """
    if predict_ref is None and train_ref is None:
        raise ValueError("no model reference: set COG_PREDICT_TYPE_STUB, or run: in cog.yaml, to file.py:Name")
    folder = os.getcwd()
    if sys.path[:1] not in ([folder], [""]):
        sys.path.insert(0, folder)
    predict = None if predict_ref is None else loader.predict_ref(predict_ref)
    if train_ref is None:
        train = None
    elif predict is not None and train_ref == predict_ref and predict.instance is not None:
        train = loader.train_target(predict.instance)
    else:
        train = loader.train_ref(train_ref)
    for target in (predict, train):
        if target is not None and target.is_trio and not target.is_async:
            raise TypeError(f"{target.name}() is marked @cog.trio, so it must be async def")
    no_training = None
    if predict is not None and train is not None and (why := _obstacle_to_training(predict, train)) is not None:
        no_training = f"Trainings can't run: {why}"
        notice(no_training, about=train.function)
        train = None
    notice_old_names()
    targets = [(mode, target) for mode, target in ((PREDICT, predict), (TRAIN, train)) if target is not None]
    described = _describe(targets)
    shared = train is not None and predict is not None and train.instance is predict.instance
    made: dict[SchemaMode, LoadedModel] = {
        mode: _model(
            mode,
            target,
            described,
            _concurrency(target, None if mode is TRAIN and not target.is_async else max_concurrency, concurrency_from),
            own_setup=not (shared and mode is TRAIN),
        )
        for mode, target in targets
    }
    return LoadedModels(made.get(PREDICT), made.get(TRAIN), described.document, no_training)


def _obstacle_to_training(predict: loader.LoadedCallable, train: loader.LoadedCallable) -> str | None:
    """Why one worker can't run both, and what to change; None if it can.

    A worker has one event loop, of one kind. A plain ``train`` needs none: beside a loop it runs in a thread.
    """
    if train.is_async and predict.is_trio is not train.is_trio:
        marked, other = (predict, train) if predict.is_trio else (train, predict)
        return (
            f"{marked.name}() is marked @cog.trio, so {other.name}() must be async def and marked too, "
            "since one worker runs both on one event loop"
        )
    return None


def _kind(target: loader.LoadedCallable) -> Kind:
    if target.is_trio:
        return Kind.TRIO
    return Kind.ASYNC if target.is_async else Kind.SYNC


@dataclass(frozen=True)
class _Described:
    document: dict[str, Any]
    signatures: Mapping[SchemaMode, Signature]


def _describe(targets: list[tuple[SchemaMode, loader.LoadedCallable]]) -> _Described:
    """The document and the signatures: by COG_OPENAPI_SCHEMA, else from the code, else by what Cog's build left."""
    given = os.environ.get("COG_OPENAPI_SCHEMA")
    try:
        signatures = {
            mode: describe_signature(target.function, owner=target.owner, name=target.name) for mode, target in targets
        }
    except (TypeError, ValueError) as error:
        file = given or BUNDLED
        if not os.path.isfile(file):
            raise
        notice(f"the inputs are taken from {file}, since the code does not tell them: {error}")
        bundled = _read(file)
        return _Described(
            bundled,
            {
                mode: Signature(
                    ready_made.read_document(target.function, bundled, mode.input),
                    streaming=bool(bundled.get("paths", {}).get(mode.path, {}).get("post", {}).get("x-cog-streaming")),
                )
                for mode, target in targets
            },
        )
    if not given:
        return _Described(document(signatures.get(PREDICT), signatures.get(TRAIN)), signatures)
    named = _read(given)
    return _Described(named, {mode: _driven(mode, signature, named) for mode, signature in signatures.items()})


def _driven(mode: SchemaMode, signature: Signature, named: dict[str, Any]) -> Signature:
    """The signature by the document's word; one that knows predictions alone leaves a training as the code has it."""
    try:
        component = ready_made.component_of(named, mode.input)
    except ValueError as error:
        if mode is not TRAIN or PREDICT.input not in named.get("components", {}).get("schemas", {}):
            raise
        notice(f"{error}: the inputs of the training are taken from the code and not checked")
        return signature
    return Signature(ready_made.driven_by(signature.inputs, component), signature.output, signature.streaming)


def _read(file: str) -> dict[str, Any]:
    with open(file, encoding="utf-8") as source:
        found = json.load(source)
    if not isinstance(found, dict):
        raise ValueError(f"{file} is not an OpenAPI document")
    return found


def _model(
    mode: SchemaMode,
    target: loader.LoadedCallable,
    described: _Described,
    concurrency: int,
    *,
    own_setup: bool,
) -> LoadedModel:
    signature = described.signatures[mode]
    inputs = signature.inputs
    instance = target.instance
    healthcheck = None if instance is None else getattr(instance, "healthcheck", None)
    return LoadedModel(
        call=target.call,
        name=target.name,
        kind=_kind(target),
        concurrency=concurrency,
        streaming=signature.streaming,
        document=described.document,
        parameters=inputs.parameters,
        extra=inputs.extra,
        inputs=_table(mode, inputs),
        setup=_setup(target) if own_setup else None,
        healthcheck=healthcheck if callable(healthcheck) else None,
        misfits=misfits(signature.output),
        _supply={parameter.name: _supplier(parameter) for parameter in inputs.parameters},
    )


def _setup(target: loader.LoadedCallable) -> Callable[..., Any] | None:
    return loader.setup_call(target.instance, os.environ.get("COG_WEIGHTS"), trio=target.is_trio)


def _concurrency(target: loader.LoadedCallable, configured: int | None, configured_by: str) -> int:
    wanted = loader.concurrency_mark(target) if configured is None else configured
    if wanted is None:
        return 1
    if wanted > 1 and not target.is_async:
        asked = "@concurrent" if configured is None else configured_by
        raise ValueError(
            f"{asked} is {wanted}, but {target.name}() is a plain def, which runs one prediction at a time: "
            "write async def, or run several workers (--workers)"
        )
    return max(wanted, 1)


def _table(mode: SchemaMode, inputs: Parameters) -> protocol.Inputs:
    return protocol.Inputs(
        component=mode.input,
        fields=tuple(
            protocol.Input(
                name=parameter.name,
                kind=parameter.kind,
                many=parameter.many,
                required=parameter.required,
                nullable=parameter.accepts_null,
                inject_null=parameter.inject_null,
            )
            for parameter in inputs.parameters
        ),
        extra=inputs.extra,
    )


def _supplier(parameter: Parameter) -> Callable[[], Any]:
    """How a run gets the value of an input that was left out."""
    default = parameter.default
    if default is MISSING:
        return partial(_missing, parameter.name) if parameter.required else _none
    fresh = partial(_fresh, parameter)
    if parameter.kind == "file" or not isinstance(default, _IMMUTABLE):
        return fresh
    value = fresh()
    return lambda: value


_IMMUTABLE: Final = (str, int, float, bool, type(None), Enum, PurePath, Secret)


def _missing(name: str) -> Any:
    raise TypeError(f"input {name!r} is required and was not given")


def _none() -> Any:
    return None


def _fresh(parameter: Parameter) -> Any:
    try:
        value = copy.deepcopy(parameter.default)
    except Exception:  # noqa: BLE001 - an open file, a lock: an object that can only be shared
        value = parameter.default
    if parameter.many and isinstance(value, (list, tuple, set, frozenset)):
        return [_coerced(parameter, item) for item in value]
    return _coerced(parameter, value)


def _coerced(parameter: Parameter, value: Any) -> Any:
    """One default (or element of one) in the parameter's type."""
    if parameter.kind == "path" and isinstance(value, os.PathLike) and not isinstance(value, Path):
        return Path(value)
    if parameter.kind == "file" and isinstance(value, (str, os.PathLike)):
        name = os.fspath(value)
        if url_scheme(name) not in URL_SCHEMES:
            return Path(name).open("rb")
    if parameter.kind == "int" and not isinstance(value, int) and isinstance(value, numbers.Integral):
        return int(value)  # numpy's
    if parameter.kind == "float" and not isinstance(value, (int, float)) and isinstance(value, numbers.Real):
        return float(value)
    return coerce_value(parameter, value, {})
