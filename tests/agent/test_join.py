"""Joining as the agent sees it: which certificate it speaks to, what it writes, whose jobs it keeps."""

from __future__ import annotations

import hashlib
import json
import shutil
import ssl
import stat
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from panel.fleet import wire
from panel.fleet.agent import config, guard, join, pins, seat
from panel.fleet.agent.client import Away, Client, Rejected
from panel.fleet.agent.config import Config, ConfigError
from panel.fleet.agent.journal import Busy, Journal
from tests.agent.conftest import Host, marked
from tests.e2e.joined import certificate

pytestmark = pytest.mark.slow


class FakeHttps:
    """A panel that only takes joins, by https. `seen` are the requests that got through."""

    def __init__(self, folder: Path, name: str = "panel") -> None:
        self.cert, self.key = certificate(folder, name=name)
        self.host_id, self.seen = 7, []
        self.sources: list[str] | None = None
        panel = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                panel.seen.append((self.path, dict(self.headers), body))
                said = wire.JoinReply(
                    host_id=panel.host_id, token="t0ken", host_name="gpu-1", install_sources=panel.sources
                )
                reply = said.model_dump_json()
                self.send_response(200)
                self.end_headers()
                self.wfile.write(reply.encode())

            def log_message(self, *args: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.url = f"https://127.0.0.1:{self.server.server_address[1]}"

    @property
    def pin(self) -> str:
        return pins.pin_of(ssl.PEM_cert_to_DER_cert(self.cert.read_text()))


@contextmanager
def serving(panel: FakeHttps) -> Iterator[FakeHttps]:
    thread = threading.Thread(target=panel.server.serve_forever, daemon=True)
    thread.start()
    try:
        yield panel
    finally:
        panel.server.shutdown()
        panel.server.server_close()


@pytest.fixture
def https(tmp_path: Path) -> Iterator[FakeHttps]:
    with serving(FakeHttps(tmp_path)) as panel:
        yield panel


def test_a_pin_is_the_public_keys_as_openssl_says(tmp_path: Path) -> None:
    cert, _key = certificate(tmp_path)
    key = subprocess.run(["openssl", "x509", "-in", cert, "-pubkey", "-noout"], capture_output=True, check=True).stdout
    der = subprocess.run(["openssl", "pkey", "-pubin", "-outform", "DER"], input=key, capture_output=True, check=True)
    data = ssl.PEM_cert_to_DER_cert(cert.read_text())
    assert pins.pin_of(data) == "sha256:" + hashlib.sha256(der.stdout).hexdigest()
    assert pins.fits(data, pins.pin_of(data))
    assert pins.fits(data, "sha256:" + hashlib.sha256(data).hexdigest()), "the whole certificate will do"
    assert not pins.fits(data, "sha256:" + "0" * 64)
    assert not pins.fits(None, pins.pin_of(data)) and not pins.fits(b"\x30\x82", pins.pin_of(data))


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_torn_certificate_is_no_crash(tmp_path: Path, cut: int) -> None:
    data = ssl.PEM_cert_to_DER_cert(certificate(tmp_path)[0].read_text())
    assert not pins.fits(data[:cut], pins.pin_of(data))


def test_the_pinned_panel_is_joined_and_the_pin_is_kept(tmp_path: Path, https: FakeHttps) -> None:
    folder = tmp_path / "agent"
    reply = join.join(folder, join.Panel(https.url, pin=https.pin), "C0DE")
    assert reply.host_name == "gpu-1"
    loaded = config.load(folder, {})
    assert (loaded.panel_pin, loaded.token, loaded.host_id) == (https.pin, "t0ken", 7)
    assert stat.S_IMODE((folder / "token").stat().st_mode) == 0o600
    ((path, headers, body),) = https.seen
    assert (path, headers[wire.WIRE_HEADER]) == ("/agent/v1/join", str(wire.WIRE_VERSION))
    assert b"C0DE" in body
    Client(loaded).call("POST", "join", body=b"{}")  # the same way later


def test_another_certificate_gets_neither_code_nor_token(tmp_path: Path, https: FakeHttps) -> None:
    with pytest.raises(ConfigError, match="not the one that was pinned"):
        join.join(tmp_path / "agent", join.Panel(https.url, pin="sha256:" + "0" * 64), "C0DE")
    settings = Config(folder=tmp_path, panel=https.url, token="t0ken", panel_pin="sha256:" + "0" * 64)
    with pytest.raises(Away):
        Client(settings).call("POST", "report", body=b"{}")
    assert not https.seen and not (tmp_path / "agent/token").exists()


def test_without_a_pin_a_self_made_certificate_is_refused_and_an_authority_file_helps(
    tmp_path: Path, https: FakeHttps
) -> None:
    with pytest.raises(ConfigError, match="CERTIFICATE_VERIFY_FAILED"):
        join.join(tmp_path / "agent", join.Panel(https.url), "C0DE")
    assert not https.seen
    join.join(tmp_path / "agent", join.Panel(https.url, ca_file=str(https.cert)), "C0DE")
    assert config.load(tmp_path / "agent", {}).ca_file == str(https.cert)


@pytest.mark.parametrize("pin", ["sha256:xyz", "md5:" + "0" * 64, "sha256:" + "A" * 64, "0" * 64])
def test_a_pin_that_is_none_is_refused(tmp_path: Path, pin: str) -> None:
    with pytest.raises(ConfigError, match="--pin"):
        join.join(tmp_path / "agent", join.Panel("https://panel.example", pin=pin), "C0DE")
    folder = tmp_path / "agent"
    folder.mkdir(exist_ok=True)
    (folder / "agent.json").write_text(json.dumps({"panel": "https://panel.example", "panel_pin": pin}))
    (folder / "agent.json").chmod(0o600)
    with pytest.raises(ConfigError, match="panel_pin"):
        config.load(folder, {}, with_panel=False)


def test_plain_http_needs_loopback_or_a_word_of_the_owner(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be https"):
        join.join(tmp_path / "agent", join.Panel("http://10.0.0.1:8080"), "C0DE")
    config.check_panel_url("http://10.0.0.1:8080", plain_http=True)
    config.check_panel_url("http://127.0.0.1:8080")


def test_the_owners_limits_survive_a_join(tmp_path: Path, https: FakeHttps) -> None:
    folder = tmp_path / "agent"
    join.join(folder, join.Panel(https.url, pin=https.pin), "C0DE")
    path = folder / "agent.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "max_jobs": 3, "remote_code": False}))
    join.join(folder, join.Panel(https.url, pin=https.pin), "C0DE")
    loaded = config.load(folder, {})
    assert (loaded.max_jobs, loaded.remote_code) == (3, False)


def test_a_host_takes_the_package_sources_that_the_panel_names_as_it_joins(tmp_path: Path, https: FakeHttps) -> None:
    """A panel that is somebody else's later can lead it to no other; what the owner says counts more."""
    folder = tmp_path / "agent"
    join.join(folder, join.Panel(https.url, pin=https.pin), "C0DE")
    assert config.load(folder, {}).install_sources is None, "an older panel says nothing of it"
    https.sources = ["https://packages.example/simple"]
    join.join(folder, join.Panel(https.url, pin=https.pin), "C0DE")
    assert config.load(folder, {}).install_sources == ["https://packages.example/simple"]
    order = wire.InstallTask(variant="cpu", index_url="https://evil.example/simple")
    with pytest.raises(guard.Refused, match="source_not_allowed"):
        guard.check_install(order, True, config.load(folder, {}).install_sources)
    guard.check_install(wire.InstallTask(variant="cpu"), True, config.load(folder, {}).install_sources)
    https.sources = ["https://evil.example"]
    join.join(folder, join.Panel(https.url, pin=https.pin), "C0DE")
    assert config.load(folder, {}).install_sources == ["https://packages.example/simple"]


def joined(host: Host, panel: FakeHttps) -> None:
    """The host joins; its owner then says where models may lie."""
    join.join(host.dir, join.Panel(panel.url, pin=panel.pin), "C0DE")
    path = host.dir / "agent.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_roots": [str(host.models)]}))


def test_another_hosts_memory_is_dropped_and_what_lives_is_left_to_be_stopped(host: Host, https: FakeHttps) -> None:
    joined(host, https)
    table, living, over = host.table(), str(uuid.uuid4()), str(uuid.uuid4())
    table.order(living, host.task(host.engine("time.sleep(600)")))
    table.order(over, host.task(host.engine("sys.exit(0)", "quick.py")))
    table.until(living, "running")
    table.until(over, "ended")
    table.jobs.journal.bury([over])
    table.die()
    https.host_id = 8
    join.join(host.dir, join.Panel(https.url, pin=https.pin), "C0DE")
    journal = Journal(host.dir)
    assert [path.name for path in journal.jobs.iterdir()] == [living] and marked(living)
    assert journal.load_rev() == 0 and not journal.buried(over)
    again = host.table()
    try:
        again.converge()  # the new host's work does not know it
        assert again.until(living, "ended").stop_asked
    finally:
        again.die()


def test_a_host_does_not_leave_a_panel_whose_jobs_still_run(host: Host, https: FakeHttps, tmp_path: Path) -> None:
    joined(host, https)
    table, living = host.table(), str(uuid.uuid4())
    table.order(living, host.task(host.engine("time.sleep(600)")))
    table.until(living, "running")
    table.die()
    with serving(FakeHttps(tmp_path, "other")) as other, pytest.raises(ConfigError, match="still run here"):
        join.join(host.dir, join.Panel(other.url, pin=other.pin), "C0DE")
    assert not other.seen


def test_a_seat_is_one_folder_on_one_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = tmp_path / "one"
    Journal(one).lock()
    assert seat.seat(one) == seat.seat(one)
    assert seat.instance(one) != seat.instance(one), "each start has a name of its own"
    shutil.copytree(one, tmp_path / "two")
    assert seat.seat(tmp_path / "two") != seat.seat(one)
    before = seat.seat(one)
    monkeypatch.setattr(seat, "kernel_boot", lambda: "another")
    assert seat.seat(one) != before


def test_a_refusal_says_what_the_panel_said() -> None:
    error = Rejected(426, '{"code": "link.version", "message": "Too old.", "hint": "Run it."}')
    assert (error.code, str(error)) == ("link.version", "426 link.version: Too old. Run it.")
    assert str(Rejected(502, "<html>" + "x" * 900)).startswith("502 <html>")
    assert Rejected(500, "[1]").code == ""


def test_the_version_is_that_of_the_project() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "panel.fleet.agent", "--version"], capture_output=True, text=True, check=True
    )
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    assert f'\nversion = "{done.stdout.strip()}"\n' in text


def test_a_join_waits_for_no_agent_that_runs_and_the_code_is_not_used_up(host: Host, https: FakeHttps) -> None:
    table = host.table()
    try:
        with pytest.raises(Busy):
            join.join(host.dir, join.Panel(https.url, pin=https.pin), "C0DE")
    finally:
        table.die()
    assert not https.seen and not (host.dir / "token").exists()
