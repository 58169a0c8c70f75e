"""URLs as they are shown and published."""

from __future__ import annotations

import pytest

from cog_trio.net.urls import public_url, shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:pw@h:80/a/b.png?sig=secret#x", "http://h:80/a/b.png?..."),
        ("https://h/a", "https://h/a"),
        ("HTTPS://U@h", "https://h"),
        ("http://[::1/a", "http:..."),
        ("data:image/png;base64," + "A" * 10**6, "data:image/png;base64,..."),
        ("data:" + "x" * 500, "data:" + "x" * 192 + "..."),
    ],
)
def test_what_is_shown_of_a_url(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("url", "published"),
    [
        ("https://user:pw@h:80/a/b%23c.png?sig=secret", "https://h:80/a/b%23c.png"),
        ("https://h/a?x=1#part", "https://h/a#part"),
        ("http://[::1]:80/a", "http://[::1]:80/a"),
    ],
)
def test_what_is_published_of_a_url(url: str, published: str) -> None:
    assert public_url(url) == published
