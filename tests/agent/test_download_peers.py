"""A download connects to what was checked and to nothing else: names that mean neighbours, redirects that lead to them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpcore
import pytest

from panel.fleet.agent.download_http import Session
from panel.fleet.agent.download_trouble import Trouble
from tests.agent.downloads import QUICK

HUB = "http://hub.example"


class Network:
    """Names mean these addresses; what is connected to is written down, and answers as `answers` say by name."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}
        self.connected: list[str] = []
        self.asked: list[str] = []
        self.answers: dict[str, bytes] = {}

    def look_up(self, host: str, port: int, *args: Any, **more: Any) -> list[Any]:
        self.asked.append(host)
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, port)) for number in self.names[host]]

    def connect(self, backend: Any, host: str, port: int, *args: Any, **more: Any) -> httpcore.NetworkStream:
        self.connected.append(host)
        answer = next((answer for name, answer in self.answers.items() if host in self.names.get(name, [name])), None)
        if answer is None:
            raise httpcore.ConnectError("nobody")
        return httpcore.MockStream([answer])


OK = b"HTTP/1.1 200 OK\r\nX-Repo-Commit: abc\r\nContent-Length: 0\r\n\r\n"


def leads_to(address: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {address}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    made = Network()
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", made.look_up)
    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", lambda *args, **more: made.connect(*args, **more))
    yield made


def refusal(session: Session, address: str = f"{HUB}/x") -> Trouble:
    with pytest.raises(Trouble) as caught:
        session.commit_of(address)
    return caught.value


def test_the_checked_address_is_called_and_no_name(network: Network) -> None:
    network.names["hub.example"] = ["9.9.9.9"]
    network.answers["hub.example"] = OK
    session = Session(HUB, patience=QUICK)
    assert session.commit_of(f"{HUB}/x") == "abc"
    assert (network.connected, network.asked) == (["9.9.9.9"], ["hub.example"])


@pytest.mark.parametrize(
    ("number", "why"),
    [("127.0.0.1", "loopback"), ("169.254.169.254", "link_local"), ("0.0.0.0", "reserved"), ("::1", "loopback"),
     ("fd00:ec2::254", "link_local"), ("::ffff:127.0.0.1", "loopback"), ("fe80::1%eth0", "link_local")],
)  # fmt: skip
@pytest.mark.parametrize("beside", [[], ["9.9.9.9"]], ids=["alone", "beside-a-good-one"])
def test_a_name_that_means_this_machine_or_a_clouds_keys_is_never_connected_to(
    network: Network, number: str, why: str, beside: list[str]
) -> None:
    network.names["hub.example"] = [*beside, number]
    found = refusal(Session(HUB, token="", patience=QUICK))
    assert (found.code, found.params["why"], found.fatal) == ("address_not_allowed", why, True)
    assert network.connected == [], "nothing was sent"


@pytest.mark.parametrize(
    "target", ["http://store.example/f", "http://10.0.0.9/f", "http://127.0.0.1:22/f", "http://store.example:22/f"]
)
def test_a_public_hub_leads_nobody_into_a_private_network(network: Network, target: str) -> None:
    network.names |= {"hub.example": ["9.9.9.9"], "store.example": ["10.0.0.9"], "10.0.0.9": ["10.0.0.9"]}
    network.answers = {"hub.example": leads_to(target)}
    found = refusal(Session(HUB, patience=QUICK))
    assert found.code == "address_not_allowed" and found.params["why"] in ("elsewhere", "loopback")
    assert network.connected == ["9.9.9.9"]


@pytest.mark.parametrize("how", ["inside", "inside-by-number", "named"])
def test_a_store_in_a_private_network_takes_a_word(network: Network, how: str) -> None:
    hub = "http://10.0.0.8" if how == "inside-by-number" else HUB
    network.names |= {"hub.example": ["10.0.0.8" if how == "inside" else "9.9.9.9"], "store.example": ["10.0.0.9"],
                      "10.0.0.8": ["10.0.0.8"]}  # fmt: skip
    network.answers = {hub.removeprefix("http://"): leads_to("http://store.example/f"), "store.example": OK}
    session = Session(hub, patience=QUICK, named=[HUB, "http://store.example/"] if how == "named" else ())
    assert session.commit_of(f"{hub}/x") == "abc"
    assert network.connected[-1] == "10.0.0.9"
    other = Session(hub, patience=QUICK, named=["http://store.example:8080/"])
    if how == "named":
        assert refusal(other).params["why"] == "elsewhere", "another port is another server"


def test_a_name_that_changes_its_meaning(network: Network) -> None:
    """Good at the first look, this machine at the next: each connection is checked for itself."""
    network.names["hub.example"] = ["9.9.9.9"]
    network.answers["hub.example"] = OK
    session = Session(HUB, patience=QUICK)
    assert session.commit_of(f"{HUB}/x") == "abc"
    network.names["hub.example"] = ["127.0.0.1"]
    session.client.close()
    again = Session(HUB, patience=QUICK)
    assert refusal(again).params["why"] == "loopback" and network.connected == ["9.9.9.9"]


def test_a_second_address_is_tried_where_the_first_is_silent(network: Network) -> None:
    network.names |= {"hub.example": ["9.9.9.9", "8.8.8.8"]}
    network.answers["8.8.8.8"] = OK
    network.names["8.8.8.8"] = ["8.8.8.8"]
    assert Session(HUB, patience=QUICK).commit_of(f"{HUB}/x") == "abc"
    assert network.connected == ["9.9.9.9", "8.8.8.8"]


def test_what_no_proxy_says_is_checked_all_the_same(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "hub.example")
    network.names |= {"hub.example": ["127.0.0.1"], "proxy.example": ["10.0.0.1"]}
    assert refusal(Session(HUB, patience=QUICK)).params["why"] == "loopback" and network.connected == []
    monkeypatch.setenv("NO_PROXY", "")
    network.answers["proxy.example:3128"] = OK
    refusal(Session(HUB, patience=QUICK))
    assert network.connected == ["proxy.example"], "a proxy looks names up itself, and it is the owner's"


def test_nothing_reaches_a_listener_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """With real sockets: a name that means loopback, and a listener that would see a connection."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.3)
    port = listener.getsockname()[1]
    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *args, **more: real("127.0.0.1", *args, **more))
    seen: list[Any] = []

    def accept() -> None:
        with contextlib.suppress(TimeoutError):
            seen.append(listener.accept())

    thread = threading.Thread(target=accept)
    thread.start()
    found = refusal(Session(f"http://rebound.example:{port}", patience=QUICK), f"http://rebound.example:{port}/x")
    thread.join()
    listener.close()
    assert found.params["why"] == "loopback" and seen == []


@pytest.mark.parametrize("address", ["http://x:99999/", "//["])
def test_a_redirect_to_no_address_at_all_is_told(network: Network, address: str) -> None:
    network.names["hub.example"] = ["9.9.9.9"]
    network.answers["hub.example"] = leads_to(address)
    told = refusal(Session(HUB, patience=QUICK))
    assert (told.code, told.params["what"], network.connected) == ("server_error", "redirect", ["9.9.9.9"])
