"""The rules of webhooks: what is due when, how long to wait, where a redirect leads, what a signature is."""

from __future__ import annotations

import base64
import math
from datetime import datetime, timedelta, timezone
from typing import Final

import pytest
from standardwebhooks import Webhook

from cog_trio.service.webhook_policy import (
    LARGEST_BACKOFF,
    Progress,
    backoff,
    bearer,
    is_retried,
    may_have_token,
    place,
    redirect,
    retry_after,
    sign,
    signing_key,
    wait_before,
)
from cog_trio.state.snapshot import ALL_EVENTS, WebhookEvent

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


def progress(*events: WebhookEvent) -> Progress:
    return Progress(frozenset(events) or ALL_EVENTS, 0.5)


# Progress


def test_nothing_is_due_without_news() -> None:
    assert progress().due == math.inf
    assert not progress().news


@pytest.mark.covers("D13")
def test_D13_the_first_output_is_due_at_once_and_the_next_after_the_interval() -> None:
    mine = progress()
    mine.note(output=True)
    assert mine.due == -math.inf
    mine.told(10.0)
    assert mine.due == math.inf
    mine.note(output=True)
    assert mine.due == 10.5


@pytest.mark.covers("D13")
def test_D13_output_and_logs_share_the_interval() -> None:
    mine = progress()
    mine.note(output=True)
    mine.told(10.0)
    mine.note(logs=True)
    mine.note(output=True)
    assert mine.due == 10.5
    mine.told(10.5)
    assert not mine.news


@pytest.mark.covers("D13")
def test_D13_the_first_output_does_not_wait_for_logs() -> None:
    mine = progress()
    mine.note(logs=True)
    mine.told(10.0)
    mine.note(logs=True)
    assert mine.due == 10.5
    assert not mine.fixed
    mine.note(output=True)
    assert mine.due == -math.inf
    assert mine.fixed


def test_what_nobody_asked_for_is_no_news() -> None:
    logs, outputs, neither = (
        progress(WebhookEvent.LOGS),
        progress(WebhookEvent.OUTPUT),
        progress(WebhookEvent.START, WebhookEvent.COMPLETED),
    )
    for mine in (logs, neither):
        mine.note(output=True)
        assert not mine.news
    for mine in (outputs, neither):
        mine.note(logs=True)
        assert not mine.news
    logs.note(logs=True)
    logs.told(10.0)
    logs.note(logs=True)
    assert logs.due == 10.5
    assert logs.fixed


def test_an_update_that_waits_is_not_made_due_by_more() -> None:
    mine = progress()
    assert not mine.fixed
    mine.note(output=True)
    mine.told(10.0)
    assert not mine.fixed
    mine.note(logs=True)
    assert mine.fixed


# Waits


@pytest.mark.covers("http:W41")
def test_W41_numbers_of_the_reference_and_up_to_a_fifth_more() -> None:
    waits = [backoff(retry, 0.0) for retry in range(1, 13)]
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 102.4, 102.4]
    assert sum(waits) == pytest.approx(409.4)
    assert backoff(1, 1.0) == pytest.approx(0.24)
    assert backoff(12, 0.5) == pytest.approx(112.64)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 0.0),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 0.0),
        ("103", 102.4),
        ("9" * 5000, 102.4),
        ("-1", 0.0),
        ("1.5", 0.0),
        ("soon", 0.0),
        ("٣", 0.0),
        ("Fri, 02 Jan 2026 03:04:25 GMT", 20.0),
        ("Fri, 02 Jan 2026 03:04:25 -0000", 20.0),
        ("Friday, 02-Jan-26 03:04:25 GMT", 20.0),
        ("Fri Jan  2 03:04:25 2026", 20.0),
        ("Fri, 02 Jan 2026 03:00:00 GMT", 0.0),
        ("Fri, 02 Jan 2027 03:00:00 GMT", 102.4),
        ("Fri, 99 Jan 2026 03:00:00 GMT", 0.0),
    ],
)
def test_retry_after(text: str | None, seconds: float) -> None:
    assert retry_after(text, NOW) == seconds


FIELDS: Final = ("Mon,", "01", "Jan", "2026", "00", "00", "00", "GMT")
ABSURD: Final = ("", "-1", "0", "99", "99999999999999999999", "-99999999999999999999", "1e999", "nan", "inf", "+99999")


@pytest.mark.parametrize("field", range(len(FIELDS)))
@pytest.mark.parametrize("value", ABSURD)
def test_a_date_may_have_any_number_in_any_field(field: int, value: str) -> None:
    parts = [*FIELDS]
    parts[field] = value
    weekday, day, month, year, *time, zone = parts
    seconds = retry_after(f"{weekday} {day} {month} {year} {':'.join(time)} {zone}", NOW)
    assert 0.0 <= seconds <= LARGEST_BACKOFF


@pytest.mark.parametrize("text", ["-1", "-" + 400 * "9", "inf", "nan", "1e999", "0x10", "1_000", "\u0663", "\u00b2"])
def test_seconds_that_are_no_whole_number_say_nothing(text: str) -> None:
    assert retry_after(text, NOW) == 0.0


@pytest.mark.parametrize("text", [400 * "9", 20_000 * "9"])
def test_seconds_without_end_are_the_longest_wait(text: str) -> None:
    assert retry_after(text, NOW) == LARGEST_BACKOFF


@pytest.mark.covers("http:W41")
@pytest.mark.parametrize(
    ("status", "asked", "seconds"),
    [(429, "7", 7.0), (503, "7", 7.0), (503, "0", 0.2), (500, "7", 0.2), (None, None, 0.2), (429, "999", 102.4)],
)
def test_W41_retry_after_raises_the_wait_of_429_and_503(status: int | None, asked: str | None, seconds: float) -> None:
    assert wait_before(1, status, asked, chance=0.0, now=NOW) == seconds


def test_statuses_that_are_tried_again() -> None:
    again = [status for status in range(100, 600) if is_retried(status)]
    assert again == [429, 500, 502, 503, 504]
    assert is_retried(None)


# Redirects


@pytest.mark.parametrize(
    ("location", "target"),
    [
        (None, None),
        ("/b?c=d", "http://u:p@h:81/b?c=d"),
        ("b", "http://u:p@h:81/a/b"),
        ("//other/b", "http://other/b"),
        ("https://other/b", "https://other/b"),
        ("ftp://h/b", None),
        ("javascript:x", None),
        ("http://h:0/", None),
        ("http://h:99999/", None),
        ("http://[::1/", None),
    ],
)
def test_redirect(location: str | None, target: str | None) -> None:
    assert redirect("http://u:p@h:81/a/x", location) == target


@pytest.mark.covers("http:W39")
@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://h/other", True),
        ("http://H:80/", True),
        ("http://u:p@h/", True),
        ("https://h/", True),
        ("http://h:8080/", False),
        ("https://h:8443/", False),
        ("http://h.example/", False),
        ("http://other/", False),
    ],
)
def test_W39_token_goes_to_the_same_host_only(url: str, allowed: bool) -> None:
    assert may_have_token(url, "http://h/a") is allowed


@pytest.mark.covers("http:W39")
def test_W39_token_never_leaves_tls() -> None:
    assert not may_have_token("http://h/", "https://h/")
    assert not may_have_token("http://h:443/", "https://h/")
    assert may_have_token("https://h:443/", "https://h/")


@pytest.mark.covers("D42")
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pass@h.example/path?token=x#y", "https://h.example"),
        ("http://h:8080/x", "http://h:8080"),
        ("http://[::1]:81/x", "http://[::1]:81"),
    ],
)
def test_D42_logs_show_the_host_only(url: str, shown: str) -> None:
    assert place(url) == shown


# Signing, token


@pytest.mark.parametrize("secret", [SECRET, SECRET.removeprefix("whsec_")])
def test_signature_is_what_standard_webhooks_accept(secret: str) -> None:
    body = '{"id": "ä"}'.encode()
    now = int(datetime.now(timezone.utc).timestamp())
    headers = {name.decode(): value.decode() for name, value in sign(signing_key(secret), "msg_1", now, body)}
    assert sorted(headers) == ["webhook-id", "webhook-signature", "webhook-timestamp"]
    assert Webhook(SECRET).verify(body, headers) == {"id": "ä"}


def test_signature_of_a_known_message() -> None:
    """The example of the specification's own libraries."""
    key = signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = dict(sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'))
    assert headers[b"webhook-signature"] == b"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert headers[b"webhook-timestamp"] == b"1614265330"


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_?", "a"])
def test_secret_that_is_no_key(secret: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        signing_key(secret)


def test_bearer() -> None:
    assert bearer(None) == ()
    assert bearer("t0k3n") == ((b"authorization", b"Bearer t0k3n"),)
    assert bearer("") == ((b"authorization", b"Bearer"),)


def test_times_of_other_zones() -> None:
    zone = timezone(timedelta(hours=2))
    assert retry_after("Fri, 02 Jan 2026 03:04:25 GMT", NOW.astimezone(zone)) == 20.0
