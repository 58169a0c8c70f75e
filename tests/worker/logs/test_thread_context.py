"""Threads and pools carry the context of whoever gave them work."""

from __future__ import annotations

import decimal
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from cog_trio.worker.logs.thread_context import carry

LIMIT = 20.0  # seconds
var: ContextVar[str] = ContextVar("var", default="nobody's")


@pytest.fixture(autouse=True)
def carried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", ThreadPoolExecutor.submit)
    carry((var,))
    token = var.set("mine")
    yield
    var.reset(token)


def seen_by(make: Callable[[Callable[[], None]], threading.Thread]) -> str:
    seen: list[str] = []
    thread = make(lambda: seen.append(var.get()))
    thread.start()
    thread.join(LIMIT)
    assert "run" not in vars(thread)
    return seen[0]


@pytest.mark.covers("worker:W42")
def test_W42_threads_timers_and_subclasses() -> None:
    class Sub(threading.Thread):
        def __init__(self, target: Callable[[], None]) -> None:
            super().__init__()
            self.what = target

        def start(self) -> None:
            super().start()

        def run(self) -> None:
            self.what()

    assert seen_by(lambda target: threading.Thread(target=target)) == "mine"
    assert seen_by(lambda target: threading.Timer(0, target)) == "mine"
    assert seen_by(Sub) == "mine"


def test_a_run_that_was_set_on_the_object_stays() -> None:
    seen: list[str] = []
    thread = threading.Thread()
    run = lambda: seen.append(var.get())  # noqa: E731
    thread.run = run  # type: ignore[method-assign]
    thread.start()
    thread.join(LIMIT)
    assert seen == ["mine"]
    assert thread.run is run


def test_the_threads_changes_stay_in_the_thread() -> None:
    thread = threading.Thread(target=lambda: var.set("changed"))
    thread.start()
    thread.join(LIMIT)
    assert var.get() == "mine"


def test_a_thread_that_can_not_start_is_left_as_it_was() -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join(LIMIT)
    with pytest.raises(RuntimeError, match="only be started once"):
        thread.start()
    assert "run" not in vars(thread)


@pytest.mark.covers("worker:W42")
def test_W42_a_pools_job_is_its_submitters_and_its_threads_are_nobodys() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(var.get).result(LIMIT) == "mine"
        assert copy_context().run(lambda: (var.set("other"), pool.submit(var.get).result(LIMIT))[1]) == "other"
        assert list(pool.map(lambda _: var.get(), range(2))) == ["mine", "mine"]
        born = ThreadPoolExecutor(1, initializer=lambda: begun.append(var.get()))
        begun: list[str] = []
        with born:
            born.submit(int).result(LIMIT)
        assert begun == ["nobody's"]


def test_submit_passes_arguments_and_errors() -> None:
    def both(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(both, 1, fn=2, self=3).result(LIMIT) == ((1,), {"fn": 2, "self": 3})
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 / 0).result(LIMIT)
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(int)


def test_variables_of_the_models_own_are_inherited_as_in_any_program() -> None:
    """What a thread does to its decimal context, a mutable object in such a variable, must not change its starter's."""
    own: ContextVar[str] = ContextVar("own", default="unset")
    own.set("set")

    def calculate() -> str:
        decimal.getcontext().prec = 5
        return own.get()

    with decimal.localcontext(decimal.Context(prec=20)):
        thread = threading.Thread(target=calculate)
        thread.start()
        thread.join(LIMIT)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(calculate).result(LIMIT) == "unset"
            assert pool.submit(lambda: decimal.getcontext().prec).result(LIMIT) == 5  # the thread's own, as in any pool
        assert decimal.getcontext().prec == 20


def test_a_pool_keeps_what_its_initializer_has_set() -> None:
    own: ContextVar[str] = ContextVar("own", default="unset")
    with ThreadPoolExecutor(1, initializer=lambda: own.set("by the initializer")) as pool:
        assert pool.submit(own.get).result(LIMIT) == "by the initializer"


def test_wrapped_once_with_their_signatures() -> None:
    before = threading.Thread.start, ThreadPoolExecutor.submit
    carry((var,))
    assert before == (threading.Thread.start, ThreadPoolExecutor.submit)
    assert list(inspect.signature(threading.Thread.start).parameters) == ["self"]
    assert list(inspect.signature(ThreadPoolExecutor.submit).parameters) == ["self", "fn", "args", "kwargs"]
