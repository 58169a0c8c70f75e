"""Which hosts input files may be fetched from (``--input-hosts``).

A policy is a list of patterns, and what one of them allows is allowed: a name (``files.example.org``), the names
below one (``*.example.org``), an address or a network (``10.1.0.0/16``), ``public`` (every address that is neither
loopback nor link-local, private, reserved or multicast), ``all``. It is asked with the name of the URL and with the
address that is about to be connected to, for each connection: what DNS says, and where a redirect leads to, can't
get round it. An address counts as what it stands for: an IPv4 address in the clothes of IPv6 is one of IPv4.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final, TypeAlias

Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"
Network: TypeAlias = "ipaddress.IPv4Network | ipaddress.IPv6Network"

EXPECTED: Final = "all, public, a host, *.domain, an address or a network"
_NAME: Final = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
# The registries of special addresses (RFC 6890 and what came later), as a table of our own: what ``is_global`` says
# differs between releases of Python.
_NOT_PUBLIC: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8",  # this network
            *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"),  # private
            "100.64.0.0/10",  # shared by customers of a provider
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link-local, with the metadata services of clouds
            "192.0.0.0/24",  # protocol assignments
            *("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"),  # documentation
            "192.88.99.0/24",  # 6to4 relays, deprecated
            "198.18.0.0/15",  # benchmarks
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
        ),
    )
)
_PUBLIC_6: Final = ipaddress.IPv6Network("2000::/3")  # all that is allocated; the others are loopback, local, reserved
_NOT_PUBLIC_6: Final = tuple(
    map(
        ipaddress.ip_network,
        (
            "2001::/23",  # protocol assignments, with Teredo
            *("2001:db8::/32", "3fff::/20"),  # documentation
            "2002::/16",  # 6to4: what is meant is the IPv4 address in it
        ),
    )
)


class HostRefused(Exception):
    """The policy refuses a host; the text says which."""


class HostPolicy:
    """A policy.

    Raises:
      ValueError: for a pattern that is none.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._all = self._public = False
        self._networks: list[Network] = []
        self._names: set[str] = set()
        self._domains: list[str] = []  # with the dot before them
        for pattern in patterns:
            self._add(_normal(pattern))

    def _add(self, pattern: str) -> None:
        if pattern in ("all", "*"):
            self._all = True
        elif pattern == "public":
            self._public = True
        elif (network := _network(pattern)) is not None:
            self._networks.append(network)
        elif not _NAME.fullmatch(pattern):
            raise ValueError(f"expected {EXPECTED}")
        elif pattern.startswith("*."):
            self._domains.append(pattern[1:])
        else:
            self._names.add(pattern)

    def allows(self, name: str, address: str) -> bool:
        """Whether a URL with this host may be fetched from this address."""
        if self._all or self._knows(name):
            return True
        meant = _meant(ipaddress.ip_address(address.partition("%")[0]))
        if self._public and is_public(meant):
            return True
        return any(meant in network for network in self._networks)

    def may_allow(self, name: str) -> bool:
        """Whether a URL with this host could be fetched from some address: where names alone are allowed, no other
        name has to be looked up, and so nobody hears of it."""
        return self._all or self._public or bool(self._networks) or self._knows(name)

    def _knows(self, name: str) -> bool:
        host = _normal(name)
        return host in self._names or any(host.endswith(domain) for domain in self._domains)


def is_public(address: Address) -> bool:
    """Whether an address is one of the open internet."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC)
    return address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)


def _meant(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(address, ipaddress.IPv6Address):
        if (inner := address.ipv4_mapped or address.sixtofour) is not None:
            return inner
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def _normal(name: str) -> str:
    name = name.strip().lower().rstrip(".").removeprefix("[").removesuffix("]")
    if not name.isascii():
        try:
            return name.encode("idna").decode()
        except UnicodeError:
            return name
    return name


def _network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
