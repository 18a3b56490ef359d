"""The panel calls nobody whom it should not: no name, number or translation leads it to itself or to a cloud's keys."""

import asyncio
import socket
from typing import Any

import pytest

from panel.core import env, outbound
from panel.core.outbound import Forbidden, Policy, pinned, why_not

TEAM = Policy(private=env.networks("NO_SUCH_SETTING", outbound.PRIVATE))


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1", "loopback"), ("127.8.9.1", "loopback"), ("::1", "loopback"), ("::ffff:127.0.0.1", "loopback"),
        ("64:ff9b::7f00:1", "loopback"), ("2002:7f00:1::", "loopback"), ("169.254.169.254", "link_local"),
        ("::ffff:169.254.169.254", "link_local"), ("fe80::1", "link_local"), ("fd00:ec2::254", "link_local"),
        ("0.0.0.0", "reserved"), ("::", "reserved"), ("224.0.0.1", "reserved"), ("ff02::1", "reserved"),
        ("255.255.255.255", "reserved"), ("192.0.2.1", "private"), ("198.18.0.1", "private"), ("2001:db8::1", "private"),
        ("10.1.2.3", ""), ("172.31.0.1", ""), ("172.32.0.1", ""), ("192.168.1.1", ""), ("100.100.1.1", ""),
        ("64:ff9b:1::a00:1", "private"), ("fec0::1", "private"), ("::127.0.0.1", "private"),
        ("fd12::1", ""), ("9.9.9.9", ""), ("2620:fe::fe", ""),
    ],
)  # fmt: skip
def test_addresses(address: str, why: str) -> None:
    assert why_not(address, TEAM) == why


def test_private_ranges_are_the_admins_word() -> None:
    one = Policy(private=env.networks("NO_SUCH_SETTING", "10.1.0.0/16"))
    assert [why_not(a, one) for a in ("10.1.2.3", "10.2.2.3", "192.168.1.1", "9.9.9.9")] == [
        "",
        "private",
        "private",
        "",
    ]
    assert why_not("10.1.2.3", Policy()) == "private"
    assert why_not("127.0.0.1", Policy(loopback=True)) == ""
    assert why_not("169.254.169.254", Policy(loopback=True)) == "link_local"


@pytest.mark.parametrize(
    "host", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "1.2.3.4.5", "10.", "x.0x7f", ".", ""]
)
def test_a_number_is_no_name(host: str) -> None:
    with pytest.raises(Forbidden, match="no_address"):
        asyncio.run(pinned(host, 443, TEAM))


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "localhost.", "x.localhost"])
def test_names_of_this_machine(host: str) -> None:
    with pytest.raises(Forbidden, match="loopback"):
        asyncio.run(pinned(host, 443, TEAM))


def answers(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Names mean these addresses; the names that were looked up."""
    asked: list[str] = []

    async def look_up(self: Any, host: str, port: int, **more: Any) -> list[Any]:
        asked.append(host)
        kind = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
        return [(kind[n], socket.SOCK_STREAM, 6, "", (address, port)) for n, address in enumerate(addresses)]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", look_up)
    return asked


def test_a_name_is_looked_up_once_and_the_checked_address_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answers(monkeypatch, "10.0.0.7", "10.0.0.7", "fd00::7")
    assert asyncio.run(pinned("gpu.example", 8443, TEAM)) == ["10.0.0.7", "fd00::7"]
    assert asked == ["gpu.example"]


@pytest.mark.parametrize("bad", ["127.0.0.1", "169.254.169.254", "::1", "0.0.0.0"])
def test_one_bad_address_of_a_name_is_enough(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    answers(monkeypatch, "10.0.0.7", bad)
    with pytest.raises(Forbidden):
        asyncio.run(pinned("rebinding.example", 8443, TEAM))
