"""The sending of webhooks: one task a prediction, one request at a time, the terminal one last.

``Webhooks`` belongs to the service, and so do its tasks. ``follow`` starts one for a prediction whose creator named a
receiver; it watches the prediction as any other reader does, so a receiver that is slow, wrong or gone costs neither
the slot nor the model a moment: what comes while a request is out is in the next one. What is sent when, and what an
answer means, is in ``webhook_policy.py``. Updates are sent once, for better or worse; the terminal webhook is built
once and tried up to 13 times.

httpx is loaded for the first webhook, and one client serves all. Tasks are shielded: they end by themselves, or by
``close``, which every shutdown comes to; what is given up then is logged with its id. Payloads on their way are
bounded in number and bytes, for a receiver and in all (``WebhookBacklog``): a receiver that is down must neither fill
the memory nor take the retries of others.
"""

from __future__ import annotations

import logging
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import trio

from cog_trio._version import __version__
from cog_trio.net.http_client import ClientUnusable, error_reason, open_body, open_client
from cog_trio.service.webhook_policy import (
    FOLLOWED,
    MAX_REDIRECTS,
    RETRIES,
    Headers,
    Progress,
    bearer,
    is_retried,
    may_have_token,
    place,
    redirect,
    sign,
    signing_key,
    wait_before,
)
from cog_trio.state.event_log import Change, Observer
from cog_trio.state.internal_errors import INTERNAL_ERROR, Where, contain
from cog_trio.state.prediction import Prediction, utcnow
from cog_trio.state.snapshot import WebhookEvent

if TYPE_CHECKING:
    import httpx

log: Final = logging.getLogger("cog_trio.webhook")

TRY_LIMIT: Final = 30.0  # seconds for one request, redirects included
BODY_LIMIT: Final = 64 * 2**10  # bytes of an answer's body that are read, so that its connection can be used again
BODY_TIME: Final = 1.0  # seconds for them
CLOSE_LIMIT: Final = 5.0  # seconds for the closing of the client
CONNECTIONS: Final = 1000  # at once
TOTAL_NUMBER: Final = 10_000  # payloads on their way at once
TOTAL_BYTES: Final = 256 * 2**20
RECEIVER_NUMBER: Final = 5_000  # and of these, to one host and port
RECEIVER_BYTES: Final = 128 * 2**20
UPDATES: Final = 0.5  # of all this may be updates: a terminal webhook finds room that they can't take
TOO_MUCH: Final = "too much is on its way to that receiver, or in all"
SIGNED_AT_ONCE: Final = 2**20  # bytes; the digest of more is taken in a thread
AGENT: Final = f"cog-trio/{__version__}".encode()


@dataclass(frozen=True)
class WebhookAnswer:
    """What came of one request."""

    status: int | None  # None: none came
    error: str = ""  # why none came
    retry_after: str | None = None

    @property
    def delivered(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    def __str__(self) -> str:
        return self.error if self.status is None else f"HTTP {self.status}"


@dataclass
class _Share:
    """What is on its way to one receiver."""

    number: int = 0
    size: int = 0  # bytes
    retrying: dict[WebhookSender, None] = field(default_factory=dict)  # in order; they wait for their next try


class WebhookBacklog:
    """The payloads that are on their way, from before their first try to their end.

    One that finds no room takes that of the oldest payload that waits for a retry: of its own receiver if that has its
    share, else of the receiver that has most. A receiver's only payload always fits its share, whatever its size.
    """

    def __init__(self) -> None:
        self.number = 0
        self.size = 0  # bytes
        self._shares: defaultdict[str, _Share] = defaultdict(_Share)
        self._held: dict[WebhookSender, int] = {}

    def has_room(self, place: str, size: int, part: float = 1.0) -> bool:
        """Whether a payload for this receiver fits in this part of all the room."""
        return self._fits_share(place, size, part) and self._fits_total(size, part)

    def make_room(self, place: str, size: int) -> bool:
        """Give up payloads that wait for a retry until one for this receiver fits; False if it does not even then."""
        while not self.has_room(place, size):
            victims = self._shares[place].retrying
            if self._fits_share(place, size):
                most = max((share for share in self._shares.values() if share.retrying), key=_size, default=None)
                victims = {} if most is None else most.retrying
            if not victims:
                return False
            victim = next(iter(victims))
            self._release(victim)
            victim.give_up(TOO_MUCH)
        return True

    @contextmanager
    def hold(self, sender: WebhookSender, size: int) -> Iterator[None]:
        """Count a payload while the block lasts, or until it is given up for another."""
        share = self._shares[sender.place]
        share.number, share.size = share.number + 1, share.size + size
        self.number, self.size = self.number + 1, self.size + size
        self._held[sender] = size
        try:
            yield
        finally:
            self._release(sender)

    @contextmanager
    def retrying(self, sender: WebhookSender) -> Iterator[None]:
        """The payload waits for its next try while the block lasts."""
        waiting = self._shares[sender.place].retrying
        waiting[sender] = None
        try:
            yield
        finally:
            waiting.pop(sender, None)

    def _fits_share(self, place: str, size: int, part: float = 1.0) -> bool:
        share = self._shares.get(place)
        if share is None:
            return True
        return share.number < RECEIVER_NUMBER * part and share.size + size <= RECEIVER_BYTES * part

    def _fits_total(self, size: int, part: float = 1.0) -> bool:
        return not self.number or (self.number < TOTAL_NUMBER * part and self.size + size <= TOTAL_BYTES * part)

    def _release(self, sender: WebhookSender) -> None:
        if (size := self._held.pop(sender, None)) is None:
            return
        share = self._shares[sender.place]
        share.number, share.size = share.number - 1, share.size - size
        self.number, self.size = self.number - 1, self.size - size
        share.retrying.pop(sender, None)
        if not share.number:
            del self._shares[sender.place]


def _size(share: _Share) -> int:
    return share.size


class Webhooks:
    """All webhooks of one service.

    ``start_soon`` starts tasks in its nursery. ``chance`` gives numbers from 0 to 1, ``transport`` stands in for the
    network.

    Raises:
      ValueError: if ``secret`` is not base64.
    """

    def __init__(
        self,
        start_soon: Callable[..., None],
        *,
        interval: float,
        token: str | None = None,
        secret: str | None = None,
        now: Callable[[], datetime] = utcnow,
        chance: Callable[[], float] = random.random,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.interval = interval
        self.token = bearer(token)
        self.now = now
        self.chance = chance
        self._key = None if secret is None else signing_key(secret)
        self._start_soon = start_soon
        self._transport = transport
        self._senders: set[WebhookSender] = set()
        self.failed = 0  # terminal webhooks that were given up
        self.lost = 0  # others that were not delivered
        self.backlog = WebhookBacklog()
        self._client: httpx.AsyncClient | None = None
        self._unusable = ""
        self._opening = False
        self._opened = trio.Event()
        self._closing = trio.Event()

    def follow(self, prediction: Prediction) -> None:
        """Tell a prediction's receiver about it, from now to its end. Nothing may have happened to it yet."""
        if prediction.webhook is not None and prediction.events:
            sender = WebhookSender(self, prediction, prediction.webhook)
            self._senders.add(sender)
            self._start_soon(self._run, sender, prediction, prediction.observe())

    async def _run(self, sender: WebhookSender, prediction: Prediction, observer: Observer) -> None:
        try:
            with contain(Where.WEBHOOK, sender.give_up, id=sender.id) as unit, sender.scope:
                body = await sender.send_updates(prediction, observer)
                del prediction, observer  # a receiver that is down for minutes keeps only the payload
                if body is not None:
                    await self._deliver(sender, body)
            if unit.failed or sender.scope.cancelled_caught:
                self._has_given_up(sender)
        finally:
            self._senders.discard(sender)
            sender.done.set()

    async def _deliver(self, sender: WebhookSender, body: bytes) -> None:
        if not self.backlog.make_room(sender.place, len(body)):
            sender.given_up = TOO_MUCH
            self._has_given_up(sender)
            return
        with self.backlog.hold(sender, len(body)):
            await sender.insist(body)

    def _has_given_up(self, sender: WebhookSender) -> None:
        self.failed += 1
        log.error("webhooks to %s were given up: %s", sender.place, sender.given_up, extra={"id": sender.id})

    @property
    def pending(self) -> int:
        """Of how many predictions something is still to be delivered."""
        return len(self._senders)

    async def wait_idle(self) -> None:
        """Wait until every webhook is delivered or given up."""
        while self._senders:
            await next(iter(self._senders)).done.wait()

    def close(self) -> None:
        """Give up what is not delivered, and let the client go. Repeatable."""
        self._closing.set()
        for sender in self._senders:
            sender.give_up("the service ends")

    def renew_secret(self, secret: str | None) -> None:
        """Sign by another secret from now on. Raises: as the constructor."""
        self._key = None if secret is None else signing_key(secret)

    async def signature(self, id: str, body: bytes) -> Headers:
        """The headers that sign a request made now; none without a secret."""
        if self._key is None:
            return ()
        arguments = self._key, id, int(self.now().timestamp()), body
        if len(body) <= SIGNED_AT_ONCE:
            return sign(*arguments)
        return await trio.to_thread.run_sync(sign, *arguments)

    async def client(self) -> httpx.AsyncClient:
        """The one client, opened at the first call; after a failure, at the next one again.

        Raises:
          ClientUnusable: if it can't be.
        """
        if not self._opening:
            self._opening, self._opened = True, trio.Event()
            self._start_soon(self._keep_client)
        await self._opened.wait()
        if self._client is None:
            raise ClientUnusable(self._unusable)
        return self._client

    async def _keep_client(self) -> None:
        try:
            with contain(Where.WEBHOOK, self._cannot_open), trio.CancelScope(shield=True) as scope:
                await self._lend_client(scope)
        finally:
            self._client = None
            self._opening = False
            self._opened.set()

    async def _lend_client(self, scope: trio.CancelScope) -> None:
        from http.cookiejar import DefaultCookiePolicy  # costs time, and httpx has it anyway

        try:
            async with open_client(connections=CONNECTIONS, transport=self._transport) as client:
                client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))  # receivers share the client
                self._client = client
                self._opened.set()
                await self._closing.wait()
                await self.wait_idle()
                scope.deadline = trio.current_time() + CLOSE_LIMIT
        except ClientUnusable as error:
            self._cannot_open(str(error))

    def _cannot_open(self, why: str) -> None:
        self._unusable = why


class WebhookSender:
    """What one receiver is told about one prediction."""

    def __init__(self, webhooks: Webhooks, prediction: Prediction, url: str) -> None:
        self.id = prediction.id
        self.place = place(url)
        self.scope = trio.CancelScope(shield=True)
        self.done = trio.Event()
        self.given_up: str | None = None  # why
        self._webhooks = webhooks
        self._url = url
        self._events = prediction.events
        self._headers: Headers = (
            (b"content-type", b"application/json"),
            (b"user-agent", AGENT),
            *prediction.trace,
        )
        self._progress = Progress(prediction.events, webhooks.interval)
        self._complained = False
        self._shown = 0  # hash of the last update

    def give_up(self, why: str) -> None:
        """Send nothing more. Repeatable; the first reason stands."""
        self.given_up = self.given_up or why
        self.scope.cancel()

    async def send_updates(self, prediction: Prediction, observer: Observer) -> bytes | None:
        """Send all webhooks but the terminal one; gives the body of that, if it is wanted."""
        changed = Change(0)
        while Change.FINISHED not in changed:
            if self._progress.due <= trio.current_time():
                await self._update(prediction)
                changed = observer.poll()
            else:
                changed = await self._next(prediction, observer)
            self._progress.note(output=Change.OUTPUT in changed, logs=Change.LOG in changed)
            if Change.STARTED in changed and WebhookEvent.START in self._events:
                await self._once(prediction.announcement())
        if self._progress.news:
            await self._update(prediction)
        return prediction.snapshot() if WebhookEvent.COMPLETED in self._events else None

    async def _next(self, prediction: Prediction, observer: Observer) -> Change:
        """What has happened, once it matters: a chunk that the next update will have anyway wakes nobody."""
        with trio.move_on_at(self._progress.due):
            if not self._progress.fixed:
                return await observer.wait()
            await prediction.wait_finished()
        return observer.poll()

    async def _update(self, prediction: Prediction) -> None:
        with suppress(ClientUnusable):  # told by the request itself
            await self._webhooks.client()  # before the payload is built: the first one takes a while
        self._progress.told(trio.current_time())
        body = prediction.snapshot(running=True)
        if hash(body) != self._shown:  # what came while the last one was made was in it already
            self._shown = hash(body)
            await self._once(body)

    async def _once(self, body: bytes) -> None:
        backlog = self._webhooks.backlog
        if backlog.has_room(self.place, len(body), UPDATES):
            with backlog.hold(self, len(body)):
                answer = await self._post(body, _new_id())
        else:
            await trio.lowlevel.checkpoint()
            answer = WebhookAnswer(None, TOO_MUCH)
        if not answer.delivered:
            self._webhooks.lost += 1
            level = logging.DEBUG if self._complained else logging.WARNING
            log.log(level, "a webhook to %s was lost: %s", self.place, answer, extra={"id": self.id})
            self._complained = True

    async def insist(self, body: bytes) -> None:
        """Send the terminal webhook until it is delivered, refused for good, or given up."""
        message = _new_id()
        for retry in range(1, RETRIES + 2):
            answer = await self._post(body, message)
            if answer.delivered:
                return
            if not is_retried(answer.status) or retry > RETRIES:
                text = "the terminal webhook to %s was given up after %d tries: %s"
                self._webhooks.failed += 1
                log.error(text, self.place, retry, answer, extra={"id": self.id})
                return
            wait = wait_before(
                retry, answer.status, answer.retry_after, chance=self._webhooks.chance(), now=self._webhooks.now()
            )
            text = "the terminal webhook to %s failed: %s; next try in %.1f s"
            log.warning(text, self.place, answer, wait, extra={"id": self.id})
            with self._webhooks.backlog.retrying(self):
                await trio.sleep(wait)

    async def _post(self, body: bytes, message: str) -> WebhookAnswer:
        with contain(Where.WEBHOOK, id=self.id):
            return await self._request(body, message)
        return WebhookAnswer(None, INTERNAL_ERROR)

    async def _request(self, body: bytes, message: str) -> WebhookAnswer:
        """One request, and those it is redirected to."""
        try:
            client = await self._webhooks.client()
        except ClientUnusable as error:
            return WebhookAnswer(None, str(error))
        import httpx

        headers = self._headers + await self._webhooks.signature(message, body)
        url = self._url
        deadline = trio.current_time() + TRY_LIMIT
        try:
            for _ in range(MAX_REDIRECTS + 1):
                token = self._webhooks.token if may_have_token(url, self._url) else ()
                options: Any = {"content": body, "headers": [*headers, *token], "timeout": None}
                request = client.build_request("POST", url, **options)
                with trio.move_on_at(deadline) as limit:
                    response = await client.send(request, stream=True, follow_redirects=False)
                if limit.cancelled_caught:
                    return WebhookAnswer(None, f"no answer within {TRY_LIMIT:g} s")
                answer = WebhookAnswer(response.status_code, retry_after=response.headers.get("retry-after"))
                await _read_rest(response)
                target = redirect(url, response.headers.get("location")) if answer.status in FOLLOWED else None
                if target is None:
                    return answer
                url = target
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            return WebhookAnswer(None, f"{type(error).__name__}: {error_reason(error)}")
        return answer


async def _read_rest(response: httpx.Response) -> None:
    """Read a short body, so that the connection can be used again; what it says, or how it ends, is of no interest."""
    import httpx

    size = 0
    with trio.move_on_after(BODY_TIME), suppress(httpx.HTTPError, httpx.StreamError):
        async with open_body(response, decoded=False) as pieces:
            async for piece in pieces:
                size += len(piece)
                if size > BODY_LIMIT:
                    break
    await response.aclose()


def _new_id() -> str:
    return f"msg_{os.urandom(16).hex()}"
