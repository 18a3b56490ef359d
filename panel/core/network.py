"""What follows from the address that the panel listens on: its URLs and the Host names it answers to (no look-ups)."""

import ipaddress
import socket
from collections.abc import Iterable

import psutil

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
INSIDE = ("docker", "br-", "veth", "virbr", "cni", "flannel")  # networks of containers and virtual machines


def bracketed(host: str) -> str:
    """An IPv6 address as it stands in a URL and in a Host header."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def public_url(host: str, port: int) -> str:
    """The address to print: this machine's name when it listens everywhere."""
    address = ipaddress.ip_address(host)
    name = "localhost" if address.is_loopback else socket.gethostname() if address.is_unspecified else bracketed(host)
    return f"http://{name}:{port}"


def other_urls(host: str, port: int) -> list[str]:
    """When it listens everywhere: its addresses in numbers, for people whose machine does not know its name."""
    if not ipaddress.ip_address(host).is_unspecified:
        return []
    found = [
        entry.address
        for interface, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and not interface.startswith(INSIDE)
    ]
    return [f"http://{address}:{port}" for address in found if not ipaddress.ip_address(address).is_loopback]


def listen_addresses(host: str, port: int) -> list[tuple[str, int]]:
    """Where to listen: the bound address, and loopback beside it when that is one address of the outside."""
    address = ipaddress.ip_address(host)
    if address.is_loopback or address.is_unspecified:
        return [(host, port)]
    return [(host, port), ("127.0.0.1", port)]


def internal_url(host: str, port: int) -> str:
    """How a process on this machine reaches it: always by loopback."""
    return f"http://{bracketed(loopback(host))}:{port}"


def loopback(host: str) -> str:
    """The loopback address that a panel bound to `host` answers on (a socket on :: takes IPv4 as well)."""
    return host if ipaddress.ip_address(host).is_loopback else "127.0.0.1"


def allowed_hosts(host: str, more: Iterable[str]) -> list[str]:
    """Loopback always; the bound address; when bound to all, this machine's name and every address it has."""
    names = [*LOOPBACK_NAMES, bracketed(host)]
    if ipaddress.ip_address(host).is_unspecified:
        names.append(socket.gethostname())
        for addresses in psutil.net_if_addrs().values():
            names += [
                bracketed(entry.address.split("%")[0])
                for entry in addresses
                if entry.family in (socket.AF_INET, socket.AF_INET6)
            ]
        names.remove(bracketed(host))
    return list(dict.fromkeys(name.lower() for name in (*names, *map(bracketed, more)) if name))
