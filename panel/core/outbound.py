"""May the panel itself call this address? The one check in front of every connection to a place that others named.

A name is looked up once, every address that it means is checked, and the connection goes to the checked address, so
that a name cannot mean one thing at the check and another at the call. Public addresses may be called; private ones
only in the ranges that an admin allowed (BERTH_PRIVATE_RANGES); the panel's own machine only where everything is on
it; the link-local ones, where clouds keep their credentials, and those that mean nobody, never.

Pure: no settings are read here, the policy is handed in.
"""

import asyncio
import ipaddress
import re
import socket
from dataclasses import dataclass

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# What teams' own networks look like; 100.64/10 is that of overlay networks.
PRIVATE = "10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10, fc00::/7"
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")  # NAT64: an IPv4 address in its last four bytes
# Of a network's own, though no register calls them so: NAT64 within it, site-local, and IPv4 as IPv6 once was.
_LOCAL = tuple(map(ipaddress.ip_network, ("64:ff9b:1::/48", "fec0::/10", "::/96")))
_METADATA = ipaddress.ip_address("fd00:ec2::254")  # lies in a private range, and is a cloud's own
MOST_ADDRESSES = 16  # of one name


class Forbidden(Exception):
    """The panel does not call this address; `code` says why (no_address, loopback, link_local, private, reserved)."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Policy:
    """What may be called beside public addresses."""

    private: tuple[Network, ...] = ()
    loopback: bool = False


def why_not(address: Address | str, policy: Policy) -> str:
    """Why this address is not called; "" when it may be."""
    found = _meant(ipaddress.ip_address(address) if isinstance(address, str) else address)
    if found.is_loopback:
        return "" if policy.loopback else "loopback"
    if found.is_link_local or found == _METADATA:
        return "link_local"
    if found.is_multicast or found.is_unspecified or (found.version == 4 and found.is_reserved):
        return "reserved"
    if any(found.version == network.version and found in network for network in policy.private):
        return ""
    return "" if found.is_global and not any(found in network for network in _LOCAL) else "private"


def _meant(address: Address) -> Address:
    """The IPv4 address that an IPv6 one stands for."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour
    if inner is None and address in _TRANSLATED:
        inner = ipaddress.IPv4Address(address.packed[12:])
    return inner or address


def looks_wrong(host: str, policy: Policy) -> str:
    """The same before anything is looked up: an address that is not called, or a name that is really a number."""
    try:
        return why_not(ipaddress.ip_address(host), policy)
    except ValueError:
        pass
    last = host.rstrip(".").rpartition(".")[2]
    if not last or re.fullmatch(r"[0-9]+|0[xX][0-9a-fA-F]*", last):  # 127.1, 2130706433: resolvers read them as IPv4
        return "no_address"
    return "" if policy.loopback or host.rstrip(".").lower().rpartition(".")[2] != "localhost" else "loopback"


async def pinned(host: str, port: int, policy: Policy) -> list[str]:
    """The addresses to connect to, all of them allowed. Raises Forbidden, or OSError when there are none."""
    if wrong := looks_wrong(host, policy):
        raise Forbidden(wrong)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))[:MOST_ADDRESSES]
    for address in addresses:  # one bad one is enough: which of them is called would be chance
        if wrong := why_not(address, policy):
            raise Forbidden(wrong)
    return addresses
