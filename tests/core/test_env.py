"""Settings are parsed strictly; a wrong one is named in one sentence."""

from pathlib import Path

import pytest

from panel.core import env, network
from panel.core.env import SettingError
from panel.core.secret_key import data_secret
from panel.core.services_urls import database_settings, redis_urls, socket_folder


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:9000", ("::1", 9000)),
        ("localhost:80", ("127.0.0.1", 80)),
    ],
)
def test_address(monkeypatch, value: str, expected: tuple[str, int]) -> None:
    monkeypatch.setenv("X_BIND", value)
    assert env.address("X_BIND", "127.0.0.1:1") == expected


@pytest.mark.parametrize(
    "value", ["8080", "0.0.0.0", "host.example:80", "127.0.0.1:0", "127.0.0.1:70000", "[::1:9", ":9"]
)
def test_address_refused(monkeypatch, value: str) -> None:
    monkeypatch.setenv("X_BIND", value)
    with pytest.raises(SettingError, match=r"X_BIND=.* is not an address and a port"):
        env.address("X_BIND", "127.0.0.1:1")


@pytest.mark.parametrize("value", ["berth.example.org", "ftp://x", "https://", "https://x/?a=1"])
def test_url_refused(monkeypatch, value: str) -> None:
    monkeypatch.setenv("X_URL", value)
    with pytest.raises(SettingError, match="X_URL"):
        env.url("X_URL")


@pytest.mark.parametrize(
    ("parse", "value"),
    [
        (lambda: env.integer("X", 1, low=1, high=5), "6"),
        (lambda: env.integer("X", 1), "1.5"),
        (lambda: env.number("X", 1.0, low=0.5), "0.1"),
        (lambda: env.number("X", 1.0), "soon"),
        (lambda: env.boolean("X", False), "maybe"),
    ],
)
def test_wrong_values_name_the_setting(monkeypatch, parse, value: str) -> None:
    monkeypatch.setenv("X", value)
    with pytest.raises(SettingError, match=f"X='{value}' is not"):
        parse()


def test_a_secret_from_a_file(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    monkeypatch.setenv("X_FILE", str(tmp_path / "secret"))
    assert env.text("X") == "s3cret"
    monkeypatch.setenv("X", "nearer")
    assert env.text("X") == "nearer"


def test_a_secret_file_that_is_not_there(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("X_FILE", str(tmp_path / "none"))
    with pytest.raises(SettingError, match="X_FILE"):
        env.text("X")


def test_empty_means_unset_and_words_are_trimmed(monkeypatch) -> None:
    monkeypatch.setenv("X", "")
    assert env.integer("X", 7) == 7
    monkeypatch.setenv("X", " a, b ,,")
    assert env.words("X") == ["a", "b"]


def test_the_panels_secret_is_made_once_and_private(tmp_path: Path) -> None:
    first = data_secret(tmp_path / "data")
    assert len(first) >= 50
    assert data_secret(tmp_path / "data") == first
    assert (tmp_path / "data/secret.key").stat().st_mode & 0o077 == 0


def test_an_unusable_data_folder_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="BERTH_DATA"):
        data_secret(tmp_path / "file" / "data")


# --- what follows from the bind -------------------------------------------------------------------------------------
def test_loopback_answers_to_loopback_names_only() -> None:
    assert network.allowed_hosts("127.0.0.1", []) == ["localhost", "127.0.0.1", "[::1]"]
    assert network.public_url("127.0.0.1", 8080) == "http://localhost:8080"
    assert network.internal_url("::1", 8080) == "http://[::1]:8080"


def test_one_address() -> None:
    assert "192.0.2.7" in network.allowed_hosts("192.0.2.7", [])
    assert network.public_url("192.0.2.7", 80) == "http://192.0.2.7:80"
    assert network.internal_url("192.0.2.7", 80) == "http://127.0.0.1:80"
    assert network.listen_addresses("192.0.2.7", 80) == [("192.0.2.7", 80), ("127.0.0.1", 80)]


def test_addresses_in_numbers_without_loopback_and_containers(monkeypatch) -> None:
    class Entry:
        def __init__(self, address: str, family: int = network.socket.AF_INET) -> None:
            self.address, self.family = address, family

    cards = {
        "lo": [Entry("127.0.0.1")],
        "eth0": [Entry("192.0.2.7"), Entry("fe80::1%eth0", network.socket.AF_INET6)],
        "docker0": [Entry("172.17.0.1")],
    }
    monkeypatch.setattr(network.psutil, "net_if_addrs", lambda: cards)
    assert network.other_urls("0.0.0.0", 8080) == ["http://192.0.2.7:8080"]
    assert network.other_urls("127.0.0.1", 8080) == []


def test_all_addresses(monkeypatch) -> None:
    monkeypatch.setattr(network.socket, "gethostname", lambda: "Rack7")
    hosts = network.allowed_hosts("0.0.0.0", ["berth.example.org"])
    assert {"rack7", "berth.example.org", "127.0.0.1"} <= set(hosts)
    assert "0.0.0.0" not in hosts
    assert "*" not in hosts
    assert network.internal_url("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert network.listen_addresses("0.0.0.0", 80) == [("0.0.0.0", 80)]


# --- servers --------------------------------------------------------------------------------------------------------
def test_database_url() -> None:
    found = database_settings("postgresql://me:p%40ss@db.example:5433/berth?sslmode=require", Path("/x"))
    assert (found["NAME"], found["USER"], found["PASSWORD"]) == ("berth", "me", "p@ss")
    assert (found["HOST"], found["PORT"], found["OPTIONS"]["sslmode"]) == ("db.example", "5433", "require")


def test_another_database_is_refused() -> None:
    with pytest.raises(SettingError, match="PostgreSQL only"):
        database_settings("mysql://x/y", Path("/x"))


def test_redis_urls_spell_a_socket_for_each_library() -> None:
    assert redis_urls("redis://h:1/0", Path("/x")) == ("redis://h:1/0", "redis://h:1/0")
    assert redis_urls("", Path("/x")) == ("unix:///x/run/valkey.sock", "redis+socket:///x/run/valkey.sock")


def test_socket_folder_is_short_and_the_same_for_everyone(tmp_path: Path) -> None:
    long = Path("/" + "x" * 120)
    assert socket_folder(Path("/short")) == Path("/short/run")
    assert len(str(socket_folder(long))) < 80
    assert socket_folder(long) == socket_folder(long) != socket_folder(long / "y")
