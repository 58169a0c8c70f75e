"""The policy of --input-hosts."""

from __future__ import annotations

import pytest

from cog_trio.net.host_policy import HostPolicy

PUBLIC = ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"]
INNER = [
    *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.5.5", "192.168.1.1", "169.254.169.254", "100.64.0.1"),
    *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12::1", "224.0.0.1", "ff02::1", "255.255.255.255"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::127.0.0.1", "2002:7f00:1::", "240.0.0.1"),
    *("fec0::1", "feff::1", "192.0.0.1", "192.0.0.8", "192.0.0.171", "198.18.0.1", "192.0.2.1", "203.0.113.9"),
    *("2001:db8::1", "2001::1", "3fff::1", "100::1", "64:ff9b:1::1", "64:ff9b::192.0.0.1", "5f00::1", "4000::1"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_allows(address: str) -> None:
    assert HostPolicy(["public"]).allows("h", address)


@pytest.mark.parametrize("address", INNER)
def test_public_refuses(address: str) -> None:
    assert not HostPolicy(["public"]).allows("h", address)


@pytest.mark.parametrize(
    ("patterns", "name", "address", "allowed"),
    [
        ("all", "h", "127.0.0.1", True),
        ("*", "h", "127.0.0.1", True),
        ("files.example.org", "files.example.org", "10.0.0.1", True),
        ("files.example.org", "FILES.example.org.", "10.0.0.1", True),
        ("files.example.org", "x.files.example.org", "8.8.8.8", False),
        ("files.example.org", "evil-files.example.org", "8.8.8.8", False),
        ("*.example.org", "a.b.example.org", "8.8.8.8", True),
        ("*.example.org", "example.org", "8.8.8.8", False),
        ("*.example.org", "evilexample.org", "8.8.8.8", False),
        ("10.1.0.0/16", "h", "10.1.2.3", True),
        ("10.1.0.0/16", "h", "10.2.2.3", False),
        ("10.1.2.3", "10.1.2.3", "10.1.2.3", True),
        ("fd00::/8", "h", "fd00::5", True),
        ("[::1]", "::1", "::1", True),
        ("10.1.0.0/16", "h", "::ffff:10.1.2.3", True),
        ("public,10.1.2.3", "h", "10.1.2.3", True),
        ("public,10.1.2.3", "h", "10.1.2.4", False),
        ("localhost", "127.0.0.1", "127.0.0.1", False),
        ("bücher.example", "xn--bcher-kva.example", "8.8.8.8", True),
    ],
)
def test_patterns(patterns: str, name: str, address: str, allowed: bool) -> None:
    assert HostPolicy(patterns.split(",")).allows(name, address) is allowed


@pytest.mark.parametrize("pattern", ["", "a b", "http://h", "h:80", "*.*.h", "a*", "10.0.0.0/40", "-a"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(ValueError, match="expected all, public"):
        HostPolicy([pattern])
