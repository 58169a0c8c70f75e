"""The health of a worker: its life as a table, the setup result, and what the health route shows.

``NEXT`` has the stored states only. BUSY is computed from the slots and UNHEALTHY lies over READY and BUSY for
one answer; neither is ever stored. READY and the finished setup result are published by one step, so that
nobody sees the one without the other. The texts of causes come from whoever found them.

Setup logs have the reference's form, one line each: ``[coglet::setup] text`` is what the model printed,
``[target] text`` the runtime's own. They are visible while setup runs and stay when it fails, the traceback and
the cause behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Final

import msgspec

from cog_trio._version import __version__
from cog_trio.state.bounded_text import BoundedText

COGLET: Final = "0.23.1"  # the release of the reference whose behaviour is ours
USER_TARGET: Final = "coglet::setup"
RUNTIME_TARGET: Final = "cog_trio"
READY_LINE: Final = "[coglet] Server ready"
FAILED_LINE: Final = "[coglet] Setup failed: "
MAX_OPEN_LINE: Final = 64 * 2**10  # characters of a line whose end does not come; then it is taken as it is


class HealthState(str, Enum):
    UNKNOWN = "UNKNOWN"
    STARTING = "STARTING"
    READY = "READY"
    SETUP_FAILED = "SETUP_FAILED"
    DEFUNCT = "DEFUNCT"


class HealthFact(Enum):
    """What can happen to the worker, as health sees it."""

    SPAWNED = "spawned"
    SET_UP = "set_up"  # setup() has returned, the slots are there
    SETUP_BROKE = "setup_broke"  # it raised, timed out, or the worker ended before it was ready
    LOST = "lost"  # the worker ended unasked, or no healthy slot is left
    RESPAWNED = "respawned"  # the same, or a later setup broke, and there will be another worker


NEXT: Final[Mapping[HealthState, Mapping[HealthFact, HealthState]]] = {
    HealthState.UNKNOWN: {HealthFact.SPAWNED: HealthState.STARTING},
    HealthState.STARTING: {
        HealthFact.SET_UP: HealthState.READY,
        HealthFact.SETUP_BROKE: HealthState.SETUP_FAILED,
        HealthFact.RESPAWNED: HealthState.STARTING,
    },
    HealthState.READY: {HealthFact.LOST: HealthState.DEFUNCT, HealthFact.RESPAWNED: HealthState.STARTING},
    HealthState.SETUP_FAILED: {},
    HealthState.DEFUNCT: {},
}


FINAL: Final = frozenset(state for state, row in NEXT.items() if not row)


class IllegalHealthTransition(Exception):
    """A step that the table does not have: our own bug."""


class SetupStatus(str, Enum):
    STARTING = "starting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class SetupResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """How setup went, as clients see it."""

    started_at: str  # RFC 3339, UTC
    status: SetupStatus
    completed_at: str | msgspec.UnsetType = msgspec.UNSET
    logs: str = ""


class SetupLog:
    """What came during setup, one line each. Text arrives in pieces; each source's unfinished line is shown last."""

    def __init__(self, limit: int) -> None:
        self._lines = BoundedText(limit)
        self._open: dict[str, str] = {}  # by source: a line whose end has not come
        self._last = ""  # stands outside the limit: the cause of a failure is never cut off

    def user(self, source: str, data: str) -> None:
        """Text of the model's."""
        whole, newline, rest = (self._open.pop(source, "") + data).rpartition("\n")
        if newline:
            for line in whole.split("\n"):
                self._lines.append(f"[{USER_TARGET}] {line}\n")
        if len(rest) > MAX_OPEN_LINE:
            self._lines.append(f"[{USER_TARGET}] {rest}\n")
        elif rest:
            self._open[source] = rest

    def runtime(self, target: str, message: str) -> None:
        """A message of ours or of the worker's runtime."""
        self._lines.append(f"[{target}] {message}\n")

    def close(self, last: str) -> None:
        """Nothing more comes: finish the open lines, add the last one."""
        for rest in self._open.values():
            self._lines.append(f"[{USER_TARGET}] {rest}\n")
        self._open.clear()
        self._last = last

    @property
    def text(self) -> str:
        rests = "".join(f"[{USER_TARGET}] {rest}\n" for rest in self._open.values())
        return (self._lines.text + rests + self._last).removesuffix("\n")


class WorkerHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """One worker of several, as clients see it."""

    status: str
    slots: int | msgspec.UnsetType = msgspec.UNSET
    busy: int | msgspec.UnsetType = msgspec.UNSET  # of these
    pid: int | msgspec.UnsetType = msgspec.UNSET
    cause: str | msgspec.UnsetType = msgspec.UNSET  # of its last end
    user_healthcheck_error: str | msgspec.UnsetType = msgspec.UNSET


class _HealthBody(msgspec.Struct, frozen=True, omit_defaults=True):
    status: str
    setup: SetupResult | msgspec.UnsetType
    version: dict[str, str]
    user_healthcheck_error: str | msgspec.UnsetType = msgspec.UNSET
    draining: bool = False
    queued: int | msgspec.UnsetType = msgspec.UNSET
    respawns: int | msgspec.UnsetType = msgspec.UNSET
    workers: Sequence[WorkerHealth] | msgspec.UnsetType = msgspec.UNSET


_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class HealthSnapshot:
    """Health at one moment."""

    status: str  # of State, or BUSY, UNHEALTHY
    setup: SetupResult | None
    versions: Mapping[str, str]
    draining: bool = False
    user_healthcheck_error: str | None = None
    cause: str | None = None  # of SETUP_FAILED and DEFUNCT, and of a new start
    queued: int | None = None  # predictions that wait for a slot; None: there is no queue
    respawns: int | None = None  # workers that were started again; None: none ever is
    workers: Sequence[WorkerHealth] | None = None  # each alone; None: there is one

    def json(self) -> bytes:
        """The body of ``GET /health-check``."""
        unset: Any = msgspec.UNSET
        return _encode(
            _HealthBody(
                status=self.status,
                setup=unset if self.setup is None else self.setup,
                version=dict(self.versions),
                user_healthcheck_error=unset if self.user_healthcheck_error is None else self.user_healthcheck_error,
                draining=self.draining,
                queued=unset if self.queued is None else self.queued,
                respawns=unset if self.respawns is None else self.respawns,
                workers=unset if self.workers is None else self.workers,
            )
        )


@dataclass
class Health:
    """The stored health of one worker; changed by its methods only."""

    now: Callable[[], datetime]
    log_limit: int = 32 * 2**20
    state: HealthState = HealthState.UNKNOWN
    cause: str | None = None
    respawns: int = 0
    versions: dict[str, str] = field(default_factory=lambda: {"coglet": f"{COGLET}+trio.{__version__}"})

    def __post_init__(self) -> None:
        self.versions["cog_trio"] = __version__
        self.log = SetupLog(self.log_limit)
        self._started_at: str | None = None
        self._result: SetupResult | None = None

    def _step(self, fact: HealthFact) -> None:
        try:
            self.state = NEXT[self.state][fact]
        except KeyError:
            raise IllegalHealthTransition(f"health that is {self.state.value} can't be {fact.value}") from None

    def spawned(self) -> None:
        self._step(HealthFact.SPAWNED)
        self._begin()

    def _begin(self) -> None:
        self._started_at = self.now().isoformat()
        self._result = None

    def set_up(self) -> None:
        """The worker is ready: READY and the setup result, in one step."""
        self._step(HealthFact.SET_UP)
        self.log.close(READY_LINE)
        self._settle(SetupStatus.SUCCEEDED)

    def setup_broke(self, cause: str) -> None:
        """Setup will not succeed; ``cause`` is one line."""
        self._step(HealthFact.SETUP_BROKE)
        self.cause = cause
        self.log.close(FAILED_LINE + cause)
        self._settle(SetupStatus.FAILED)

    def lost(self, cause: str) -> None:
        """The worker is of no more use; ``cause`` is one line."""
        self._step(HealthFact.LOST)
        self.cause = cause

    def respawned(self, cause: str) -> None:
        """The worker is of no more use, and there will be another one; ``cause`` is one line."""
        self._step(HealthFact.RESPAWNED)
        self.cause = cause
        self.respawns += 1
        self.log = SetupLog(self.log_limit)
        self.log.runtime(RUNTIME_TARGET, f"started again: {cause}")
        self._begin()

    def _settle(self, status: SetupStatus) -> None:
        assert self._started_at is not None
        self._result = SetupResult(
            started_at=self._started_at, status=status, completed_at=self.now().isoformat(), logs=self.log.text
        )

    @property
    def setup(self) -> SetupResult | None:
        """The setup result; with the logs so far while setup runs, ``None`` without a worker."""
        if self._result is None and self._started_at is not None:
            return SetupResult(started_at=self._started_at, status=SetupStatus.STARTING, logs=self.log.text)
        return self._result

    def snapshot(self, *, busy: bool, draining: bool, user_healthcheck_error: str | None = None) -> HealthSnapshot:
        """What is shown: the stored state, under BUSY, under UNHEALTHY."""
        status, error = self.state.value, None
        if self.state is HealthState.READY:
            if user_healthcheck_error is not None:
                status, error = "UNHEALTHY", user_healthcheck_error
            elif busy:
                status = "BUSY"
        return HealthSnapshot(
            status=status,
            setup=self.setup,
            versions=self.versions,
            draining=draining,
            user_healthcheck_error=error,
            cause=self.cause,
        )
