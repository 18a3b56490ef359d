"""What a machine that joins is given: the bundle, the script, the units, packages; and the pages around them."""

import hashlib
import http.server
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from panel.accounts.models import User
from panel.fleet.joining import agent_bundle, panel_tls
from panel.fleet.joining import services as joining
from panel.fleet.models import Host, JoinCode
from tests.e2e.joined import certificate

ALONE = """
import importlib, pkgutil, sys
class Forbidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("django", "celery", "redis", "psycopg", "deployments"):
            raise ImportError(name)
sys.meta_path.insert(0, Forbidden())
import panel.fleet.agent, panel.fleet.door
for package in (panel.fleet.agent, panel.fleet.door):
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "__main__":
            importlib.import_module(f"{package.__name__}.{module.name}")
import models_catalog.inspect.scan
print(panel.fleet.agent.__file__)
"""


def test_the_bundle_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    first = agent_bundle.bundle()
    code = "import django; django.setup(); from panel.fleet.joining import agent_bundle as b; print(b.bundle().sha256)"
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONHASHSEED": "7", "TZ": "Asia/Tokyo"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout.strip() == first.sha256 == hashlib.sha256(first.data).hexdigest(), done.stderr


def test_the_agent_and_the_door_run_from_the_bundle_alone(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(agent_bundle.bundle().data)) as archive:
        archive.extractall(tmp_path)
        names = archive.namelist()
    assert not [name for name in names if name.startswith(("deployments", "panel/accounts", "tests")) or ".." in name]
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", ALONE], cwd="/", capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))
    about = json.loads((tmp_path / "berth.json").read_text())
    assert about["wire"] == 1 and "--hash=sha256:" in (tmp_path / "requirements.txt").read_text()


# --- the script ---------------------------------------------------------------------------------------------------------


def test_the_script_is_whole_and_names_what_it_fetches(settings: Any) -> None:
    settings.BERTH_PUBLIC_URL = "https://berth.example.org"
    text = agent_bundle.script()
    assert not re.findall(r"@[A-Z0-9_]+@", text), "a place was not filled"
    assert agent_bundle.bundle().sha256 in text and "PANEL='https://berth.example.org'" in text
    assert agent_bundle.script_sha256() == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "url", ["https://a'b.example", "https://a$(reboot)", "https://a`x`", "https://a b", "https://a%n"]
)
def test_an_address_that_could_be_read_as_a_command_stands_in_no_script(settings: Any, url: str) -> None:
    settings.BERTH_PUBLIC_URL = url
    with pytest.raises(agent_bundle.PanelError, match=r"join\.address"):
        agent_bundle.script()


@pytest.mark.parametrize("shell", [name for name in ("sh", "dash", "bash", "busybox") if shutil.which(name)])
def test_shells_can_read_it(shell: str, tmp_path: Path) -> None:
    path = tmp_path / "berth-join.sh"
    path.write_text(agent_bundle.script())
    argv = [shell, "sh"] if shell == "busybox" else [shell]
    assert subprocess.run([*argv, "-n", path]).returncode == 0
    said = subprocess.run([*argv, path, "--help"], capture_output=True, text=True)
    assert said.returncode == 0 and "--keep-engines" in said.stdout and "set -eu" not in said.stdout


if shutil.which("shellcheck"):  # no part of the lock: where it is installed it is asked

    def test_shellcheck_has_nothing_to_say(tmp_path: Path) -> None:
        path = tmp_path / "berth-join.sh"
        path.write_text(agent_bundle.script())
        done = subprocess.run(["shellcheck", "-s", "sh", path], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "args", [["--no-such"], ["A", "B"], ["--dir"], ["--dir", "/tmp/a b", "X"], ["--user", "no-such", "X"]]
)
def test_what_makes_no_sense_is_refused_before_anything_is_done(args: list[str], tmp_path: Path) -> None:
    path = tmp_path / "berth-join.sh"
    path.write_text(agent_bundle.script())
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        ["sh", path, *args], capture_output=True, text=True, env={"HOME": str(home), "PATH": os.environ["PATH"]}
    )
    assert done.returncode == 1 and done.stderr.startswith("berth-join:")
    assert not list(home.iterdir())


# --- units --------------------------------------------------------------------------------------------------------------

VALUES = {"PANEL": "https://berth.example.org", "DIR": "/var/lib/berth-agent", "USER": "root"}


@pytest.mark.parametrize("name", ["berth-agent.service", "berth-agent.user.service", "berth-panel.service"])
def test_units_end_one_process_and_never_its_engines(name: str, tmp_path: Path) -> None:
    text = agent_bundle.unit(name, ROOT="/", PYTHON="/bin/true", **VALUES)
    lines = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    assert (lines["KillMode"], lines["Restart"], lines["OOMPolicy"]) == ("process", "always", "continue")
    # Each of these would reach the engines, or break them when only the agent is started again.
    for harmful in ("PrivateTmp", "PrivateDevices", "NoNewPrivileges", "ProtectClock", "MemoryMax", "DevicePolicy"):
        assert harmful not in lines
    if shutil.which("systemd-analyze") is None:  # then the unit was read, and no more
        return
    path = tmp_path / name.replace(".user", "")
    path.write_text(text.replace("/var/lib/berth-agent/berth-agent", "/bin/true"))
    argv = ["systemd-analyze", "verify", *(["--user"] if ".user" in name else []), path]
    done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)})
    about_ours = [line for line in done.stderr.splitlines() if path.name in line and "XDG" not in line]
    assert not about_ours, done.stderr


def test_the_command_prints_units(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("units", user="berth")
    panel = capsys.readouterr().out
    assert "User=berth" in panel and 'manage.py" up' in panel and "@" not in panel
    call_command("units", agent=True, user="berth", dir="/srv/agent")
    assert 'ExecStart="/srv/agent/berth-agent"' in capsys.readouterr().out


# --- packages without an index --------------------------------------------------------------------------------------------


def tiny_wheel(folder: Path, name: str = "berth_tiny") -> Path:
    """A package with one module."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", "HERE = True\n")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", f"{name}.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n")
    return path


@pytest.fixture
def tiny(tmp_path: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A lock with one package of our own, and a server that gives what the panel's addresses give."""
    wheel = tiny_wheel(tmp_path / "index")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = f"# groups: agent panel\nberth-tiny==1.0 \\\n    --hash=sha256:{digest}\n"
    monkeypatch.setattr(agent_bundle, "lock_text", lambda: lock)
    agent_bundle.bundle.cache_clear()
    settings.BERTH_DATA = tmp_path / "data"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = Client().get(self.path)
            body = b"".join(found.streaming_content) if found.streaming else found.content
            self.send_response(found.status_code)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings.BERTH_PUBLIC_URL = f"http://127.0.0.1:{server.server_address[1]}"
    yield tmp_path
    server.shutdown()
    server.server_close()
    agent_bundle.bundle.cache_clear()


def install(tiny: Path) -> subprocess.CompletedProcess[str]:
    """The script up to the packages; no index can be reached."""
    path = tiny / "berth-join.sh"
    path.write_text(agent_bundle.script())
    env = {"HOME": str(tiny), "PATH": os.environ["PATH"], "BERTH_PYTHON": sys.executable}
    env |= {"PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    argv = ["sh", path, "CODE-CODE-CODE", "--dir", tiny / "host", "--no-service", "--no-start"]
    return subprocess.run(argv, capture_output=True, text=True, env=env, timeout=120)


@pytest.mark.slow
def test_a_host_without_an_index_gets_its_packages_from_the_panel(tiny: Path) -> None:
    call_command("agent-wheels", python=".".join(map(str, sys.version_info[:2])), find_links=str(tiny / "index"))
    done = install(tiny)
    assert "Fetching packages" in done.stdout, done.stdout + done.stderr
    (python,) = (tiny / "host/venvs").glob("*/bin/python")
    assert subprocess.run([python, "-c", "import berth_tiny"]).returncode == 0
    # The bundle's agent has no httpx there, so it cannot join; what matters here is how far it came.
    assert done.returncode == 1 and "has not joined" in done.stderr


@pytest.mark.slow
def test_without_packages_anywhere_the_script_says_what_to_do(tiny: Path) -> None:
    done = install(tiny)
    assert done.returncode == 1
    assert "manage.py agent-wheels --python" in done.stderr and "--arch" in done.stderr
    assert not (tiny / "host/agent").exists()


def test_only_packages_that_the_lock_names_are_given(tiny: Path) -> None:
    folder = agent_bundle.wheel_folder("cp311-x86_64")
    good, evil = tiny_wheel(folder), tiny_wheel(folder, "evil")
    assert good.exists() and evil.exists()
    assert list(agent_bundle.wheels("cp311-x86_64")) == [good.name]
    (tiny / "data/secret.whl").write_text("x")
    client = Client()
    assert client.get(f"/join/wheels/cp311-x86_64/{good.name}").status_code == 200
    for bad in (
        f"/join/wheels/cp311-x86_64/{evil.name}",
        "/join/wheels/../secret.whl",
        "/join/wheels/%2e%2e/secret.whl",
    ):
        assert client.get(bad).status_code == 404, bad
    assert client.get("/join/wheels/..").content == b"" or client.get("/join/wheels/..").status_code == 404


# --- how the panel's certificate is told ----------------------------------------------------------------------------------


def test_trust_follows_from_the_address_and_the_certificate(settings: Any, tmp_path: Path) -> None:
    settings.BERTH_TLS_CERT = ""
    settings.BERTH_PUBLIC_URL = "http://localhost:8080"
    assert panel_tls.trust().kind == "loopback"
    settings.BERTH_PUBLIC_URL = "http://10.0.0.5:8080"
    assert panel_tls.trust().kind == "plain"
    settings.BERTH_PUBLIC_URL = "https://127.0.0.1:9"
    assert panel_tls.trust().kind == "unknown", "nobody listens there"
    cert, _key = certificate(tmp_path)
    settings.BERTH_TLS_CERT = str(cert)
    found = panel_tls.trust()
    assert found.kind == "pinned" and found.pin.startswith("sha256:")
    assert panel_tls.authority_pem() == ""
    root = tmp_path / "root.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=Our Root"]
    subprocess.run([*made, "-keyout", tmp_path / "root.key", "-out", root], check=True, capture_output=True)
    settings.BERTH_TLS_CERT = str(root)
    assert panel_tls.trust().kind == "authority"
    assert panel_tls.authority_pem() in agent_bundle.script() and "BEGIN CERTIFICATE" in agent_bundle.script()


# --- pages --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(db: None, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)
    client = Client()
    client.force_login(User.objects.create_user(username="ada", password="harbour lights at nine", role="admin"))
    return client


def test_a_code_is_shown_once(admin: Client, settings: Any) -> None:
    settings.BERTH_PUBLIC_URL = "http://127.0.0.1:8080"
    made = admin.post("/hosts/new", {"host_name": "gpu-2"})
    code = made.context["code"]
    assert made.status_code == 200 and code in made.content.decode() and "no-store" in made["Cache-Control"]
    assert agent_bundle.script_sha256() in made.context["command"]
    row = JoinCode.objects.get()
    for page in ("/hosts/new", f"/hosts/codes/{row.pk}/"):
        assert code not in admin.get(page).content.decode()
    assert admin.post(f"/hosts/codes/{row.pk}/revoke").status_code == 302
    assert "taken back" in admin.get(f"/hosts/codes/{row.pk}/").content.decode()


def test_a_panel_without_tls_makes_no_code_for_others_unless_that_is_allowed(admin: Client, settings: Any) -> None:
    settings.BERTH_PUBLIC_URL = "http://10.0.0.5:8080"
    refused = admin.post("/hosts/new", {"host_name": "gpu-2"})
    assert refused.status_code == 422 and not JoinCode.objects.exists()
    assert "BERTH_URL" in refused.content.decode()
    settings.BERTH_JOIN_PLAIN_HTTP = True
    allowed = admin.post("/hosts/new", {"host_name": "gpu-2"})
    assert allowed.status_code == 200 and "Without TLS" in allowed.content.decode()
    assert "PLAIN_HTTP='yes'" in agent_bundle.script()


def test_a_certificate_file_that_is_none_is_said(admin: Client, settings: Any, tmp_path: Path) -> None:
    settings.BERTH_PUBLIC_URL = "https://berth.example.org"
    settings.BERTH_TLS_CERT = str(tmp_path / "none.pem")
    answer = admin.post("/hosts/new", {"host_name": "gpu-2"})
    assert answer.status_code == 422 and "BERTH_TLS_CERT" in answer.content.decode()


def test_a_name_that_a_host_has_asks_whether_it_is_that_one(admin: Client, settings: Any) -> None:
    settings.BERTH_PUBLIC_URL = "http://127.0.0.1:8080"
    host = Host.objects.create(name="gpu-1", token_hash="x")
    asked = admin.post("/hosts/new", {"host_name": "gpu-1"})
    assert asked.status_code == 422 and 'name="again"' in asked.content.decode()
    assert admin.post("/hosts/new", {"host_name": "gpu-1", "again": "on"}).status_code == 200
    assert JoinCode.objects.get().host == host


def test_the_list_of_codes_costs_the_same_for_many(admin: Client, django_assert_max_num_queries: Any) -> None:
    user = User.objects.get()
    for n in range(joining.codes.__defaults__[0]):
        joining.make_code(user, f"gpu-{n}")
    with django_assert_max_num_queries(12):
        assert admin.get("/hosts/new").status_code == 200


def test_expired_codes_say_so_and_end_the_wait(admin: Client) -> None:
    row, _code = joining.make_code(User.objects.get(), "gpu-2")
    page = f"/hosts/codes/{row.pk}/?part=wait"
    waiting = admin.get(page, headers={"HX-Request": "true"})
    assert waiting.status_code == 200 and "hx-get" in waiting.content.decode()
    JoinCode.objects.update(expires_at=row.created_at)
    over = admin.get(page, headers={"HX-Request": "true"})
    assert over.status_code == 286 and "expired" in over.content.decode() and "hx-get" not in over.content.decode()


# --- what the script looks at first ---------------------------------------------------------------------------------------

PYTHON = """#!/bin/sh
case "$*" in
  *"(3, 10)"*) exit {old} ;;
  *ensurepip*) exit 1 ;;
  *python%d*) echo python3.12-venv ;;
esac
"""


@pytest.mark.parametrize(("old", "said"), [(0, "apt install python3.12-venv"), (1, "Python 3.10 or newer is needed")])
def test_a_missing_python_or_venv_is_named(old: int, said: str, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "id", "uname", "cat", "tr", "sed", "stat", "grep", "mkdir", "readlink"):
        (tools / name).symlink_to(shutil.which(name) or "/bin/false")
    (tools / "python3").write_text(PYTHON.format(old=old))
    (tools / "python3").chmod(0o755)
    path = tmp_path / "berth-join.sh"
    path.write_text(agent_bundle.script())
    argv = [tools / "sh", path, "CODE", "--dir", tmp_path / "host", "--no-service"]
    done = subprocess.run(argv, capture_output=True, text=True, env={"HOME": str(tmp_path), "PATH": str(tools)})
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert not (tmp_path / "host").exists()


def test_a_folder_of_somebody_else_is_left_alone(tiny: Path) -> None:
    (tiny / "host").mkdir()
    (tiny / "host/letters.txt").write_text("mine")
    done = install(tiny)
    assert done.returncode == 1 and "is not empty" in done.stderr
    assert [path.name for path in (tiny / "host").iterdir()] == ["letters.txt"]
    path = tiny / "berth-join.sh"
    removed = subprocess.run(
        ["sh", path, "--remove", "--yes", "--dir", tiny / "host"],
        capture_output=True,
        text=True,
        env={"HOME": str(tiny), "PATH": os.environ["PATH"]},
    )
    assert removed.returncode == 1 and (tiny / "host/letters.txt").exists()
