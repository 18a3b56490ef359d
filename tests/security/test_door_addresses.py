"""Whatever a host says of its door, the panel connects to the address that it checked, and to no other."""

import asyncio
import ssl
from typing import Any

import pytest

from panel.fleet import doors
from panel.fleet.door.deadline import Limit
from panel.fleet.door.limits import Limits
from panel.fleet.door.upstream import Address, Pool, Unreachable


async def opened(monkeypatch: pytest.MonkeyPatch, where: Any, address: Address) -> list[tuple[str, Any]]:
    """(host, name in TLS) of every connection that was tried; none of them succeeds."""
    tried: list[tuple[str, Any]] = []

    async def create_connection(self: Any, factory: Any, host: str, port: int, **more: Any) -> Any:
        tried.append((host, more.get("server_hostname")))
        assert (more["ssl"] is not None) == bool(address.certificate)
        assert more["ssl"] is None or more["ssl"].minimum_version == ssl.TLSVersion.TLSv1_3
        raise ConnectionRefusedError("nobody")

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "create_connection", create_connection)
    with pytest.raises(Unreachable):
        pool = Pool(Limits(), where)
        await pool.connect(address, Limit(pool.rounds))
    return tried


async def test_the_checked_addresses_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    async def where(host: str, port: int) -> list[str]:
        assert (host, port) == ("gpu.example", 8443)
        return ["10.0.0.7", "fd00::7"]

    found = await opened(monkeypatch, where, Address("gpu.example", 8443, "c" * 64))
    assert found == [("10.0.0.7", "gpu.example"), ("fd00::7", "gpu.example")]


async def test_an_engine_on_this_machine_needs_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    async def where(host: str, port: int) -> list[str]:
        raise AssertionError("nobody asks")

    assert await opened(monkeypatch, where, Address("127.0.0.1", 18_100)) == [("127.0.0.1", None)]


@pytest.mark.parametrize("host", ["127.0.0.1", "169.254.169.254", "localhost", "0x7f.1", "::ffff:10.0.0.1%lo", "::1"])
async def test_a_forbidden_address_is_never_called(monkeypatch: pytest.MonkeyPatch, host: str, settings: Any) -> None:
    settings.BERTH_PUBLIC_URL = "https://berth.example.org"
    settings.BERTH_PRIVATE_RANGES = ()
    assert await opened(monkeypatch, doors.where, Address(host, 8443, "c" * 64)) == []


def test_the_web_process_has_the_check() -> None:
    from panel.asgi import door

    assert door._pool._where is doors.where
