"""Where the panel looks for a hub: private networks take an admin's word, and a name goes where it was checked."""

import asyncio
import socket
from typing import Any

import httpcore
import pytest
from django.test import Client

from models_catalog.downloads import hubs
from models_catalog.downloads.asking import Asker, HubTrouble
from models_catalog.downloads.models import Source
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.core import env, outbound

USUAL = hubs.USUAL[Source.HUGGINGFACE]
TEAM = env.networks("NO_SUCH_SETTING", outbound.PRIVATE)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was connected to; nobody answers."""
    seen: list[str] = []

    def connect(self: Any, host: str, *args: Any, **more: Any) -> Any:
        seen.append(host)
        raise httpcore.ConnectError("nobody")

    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect)
    return seen


def mean(monkeypatch: pytest.MonkeyPatch, *numbers: str) -> None:
    async def look_up(self: Any, host: str, port: int, **more: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, port)) for number in numbers]

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", look_up)


def trouble(endpoint: str) -> HubTrouble:
    with pytest.raises(HubTrouble) as caught:
        Asker(hubs.HubAt(Source.HUGGINGFACE, endpoint), deadline_s=2.0).json("/api/models")
    return caught.value


@pytest.mark.parametrize(
    ("endpoint", "number", "ranges", "why"),
    [
        (USUAL, "9.9.9.9", "none", ""),
        (USUAL, "10.0.0.7", "none", "private"),
        (USUAL, "192.168.1.1", "none", "private"),
        (USUAL, "10.0.0.7", "10.0.0.0/8", ""),
        (USUAL, "192.168.1.1", "10.0.0.0/8", "private"),
        ("https://mirror.example", "10.0.0.7", "none", ""),
        ("https://10.0.0.7", "10.0.0.7", "none", ""),
        *((where, number, "10.0.0.0/8, 127.0.0.0/8, 169.254.0.0/16", why)
          for where in (USUAL, "https://mirror.example")
          for number, why in [("127.0.0.1", "loopback"), ("169.254.169.254", "link_local"), ("0.0.0.0", "reserved")]),
    ],
)  # fmt: skip
def test_where_a_hub_may_be(
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
    connected: list[str],
    endpoint: str,
    number: str,
    ranges: str,
    why: str,
) -> None:
    settings.BERTH_PRIVATE_RANGES = TEAM
    settings.BERTH_HUB_PRIVATE_RANGES = env.networks("NO_SUCH_SETTING", ranges)
    mean(monkeypatch, number)
    found = trouble(endpoint)
    if why:
        assert (found.code, found.params["why"], connected) == ("download.address_not_allowed", why, [])
    else:
        assert (found.code, connected) == ("download.offline", [number]), "it was called, at the checked address"


def test_a_mirror_outside_of_the_ranges_is_not_called(
    monkeypatch: pytest.MonkeyPatch, settings: Any, connected: list[str]
) -> None:
    settings.BERTH_PRIVATE_RANGES = ()
    mean(monkeypatch, "10.0.0.7")
    assert trouble("https://mirror.example").params["why"] == "private" and not connected


def test_one_private_address_of_a_public_name_is_enough(monkeypatch: pytest.MonkeyPatch, connected: list[str]) -> None:
    mean(monkeypatch, "9.9.9.9", "10.0.0.7")
    assert trouble(USUAL).params["why"] == "private" and not connected


def test_without_settings_no_hub_is_in_a_private_network() -> None:
    from panel import settings as written

    assert written.BERTH_HUB_PRIVATE_RANGES == ()


@pytest.mark.django_db
@pytest.mark.parametrize("number", ["10.0.0.7", "169.254.169.254", "127.0.0.1"])
def test_the_page_says_so(
    monkeypatch: pytest.MonkeyPatch, settings: Any, connected: list[str], otto: Actor, number: str
) -> None:
    settings.HF_ENDPOINT = USUAL
    mean(monkeypatch, number)
    browser = Client()
    browser.force_login(User.objects.get(username="otto"))
    page = browser.get("/models/downloads/new?repo=acme/tiny")
    assert page.status_code == 200 and not connected
    said = {
        "10.0.0.7": "BERTH_HUB_PRIVATE_RANGES",
        "169.254.169.254": "clouds keep their credentials",
        "127.0.0.1": "leads back",
    }
    assert said[number] in page.content.decode()
