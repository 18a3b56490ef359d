"""Whom a download may connect to. A name is looked up once for each connection, all its addresses are checked, and the
connection goes to a checked one: nothing is sent, and no hello of TLS, to an address that may not be called.

The hub itself is where the order says, also in a private network. What it leads to may be in one only where the hub is
in one too, or where this host's owner named that address: else a public hub could make this machine call others near
it.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpcore

from panel.core import outbound
from panel.fleet.agent.config import is_loopback
from panel.fleet.agent.download_trouble import Trouble

PRIVATE = tuple(ipaddress.ip_network(text.strip()) for text in outbound.PRIVATE.split(","))
Place = tuple[str, int]  # a host's name or number, and a port


def place_of(address: str) -> Place:
    parts = urlsplit(address)
    return parts.hostname or "", parts.port or {"https": 443}.get(parts.scheme, 80)


class Peers(httpcore.NetworkBackend):
    """Makes the connections of a download. `named`: what this host's owner allowed. Used by several threads."""

    def __init__(self, endpoint: str, named: Sequence[str] = ()) -> None:
        self._hub = place_of(endpoint)
        self._named = {place_of(address) for address in named if "://" in address}
        self._loopback = is_loopback(self._hub[0])
        self._inside = False  # whether the hub is in a private network, as far as is known
        self._plain = httpcore.SyncBackend()
        if _is_number(self._hub[0]):
            self._note([self._hub[0]])

    def check(self, address: str) -> None:
        """What can be said of an address before its name is looked up; all there is to say where a proxy does that."""
        host, port = place_of(address)
        wrong = outbound.looks_wrong(host, self._policy(host, port))
        if wrong:
            raise _forbidden(host, wrong)

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Raises Trouble, or httpcore.ConnectError and ConnectTimeout."""
        failed: Exception = httpcore.ConnectError(f"{host} has no address")
        for number in self._checked(host, port):
            try:
                return self._plain.connect_tcp(number, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as exc:
                failed = exc
        raise failed

    def _checked(self, host: str, port: int) -> list[str]:
        try:
            told = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as exc:
            raise httpcore.ConnectError(str(exc)) from exc
        numbers = list(dict.fromkeys(str(entry[4][0]) for entry in told))[: outbound.MOST_ADDRESSES]
        policy = self._policy(host, port)
        for number in numbers:  # one bad one is enough: which of them is called would be chance
            wrong = outbound.why_not(number.partition("%")[0], policy)
            if wrong:
                raise _forbidden(host, wrong)
        if (host, port) == self._hub:
            self._note(numbers)
        return numbers

    def _note(self, numbers: Iterable[str]) -> None:
        public = outbound.Policy(loopback=True)
        self._inside |= any(outbound.why_not(number.partition("%")[0], public) == "private" for number in numbers)

    def _policy(self, host: str, port: int) -> outbound.Policy:
        free = self._inside or (host, port) == self._hub or (host, port) in self._named
        return outbound.Policy(private=PRIVATE if free else (), loopback=self._loopback)


def _forbidden(host: str, why: str) -> Trouble:
    # "private" is said of what a hub leads to alone: the hub itself may be there.
    return Trouble("address_not_allowed", fatal=True, host=host[:200], why="elsewhere" if why == "private" else why)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
