"""docs/install.md: what it names exists, and its commands for a laptop and for one server work, in a clean clone.

The commands are taken from the page. Places of the system (/opt, /etc, /var) become folders of the test, `sudo` runs
what follows it, and `systemctl` starts what the unit says.
"""

import contextlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from tests.panel.compose import Compose, example
from tests.waiting import free_port, until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/install.md").read_text(encoding="utf-8")
PLACES = ("/opt/berth", "/etc/berth", "/var/lib/berth", "/var/backups/berth", "/usr/local/bin", "/etc/systemd/system")


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert found, title
    return found[1]


def commands(title: str) -> list[str]:
    """The shell blocks of a section."""
    return re.findall(r"```sh\n(.*?)```", section(title), flags=re.DOTALL)


# --- what it names --------------------------------------------------------------------------------------------------
def test_links_lead_somewhere() -> None:
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^##? (.*)$", PAGE, re.M)
    }
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        else:
            assert (ROOT / "docs" / target.split("#")[0]).exists(), target


def test_the_readme_leads_somewhere_and_its_picture_can_be_read() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)#]+)\)", readme)
    assert len(targets) > 10
    assert [target for target in targets if not (ROOT / target).exists()] == []
    picture = ElementTree.parse(ROOT / "docs/flow.svg").getroot()
    names = {element.tag.split("}")[1]: (element.text or "") for element in picture}
    assert names["title"] and names["desc"] and "prefers-color-scheme: dark" in names["style"]


def test_settings_commands_and_targets_exist() -> None:
    known = (ROOT / "docs/settings.md").read_text(encoding="utf-8") + (ROOT / "docker/env.example").read_text(
        encoding="utf-8"
    )
    for name in set(re.findall(r"\b(BERTH_[A-Z_]+|DATABASE_URL|REDIS_URL)\b", PAGE)):
        assert re.search(rf"\b{name}\b", known), name
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"^(?:sudo -u berth )?make(?: -C \S+)? ([a-z]+)\b|`make ([a-z]+)`", PAGE, re.M)):
        target = "".join(target)
        assert re.search(rf"^{target}:", makefile, re.M), target
    for name in set(re.findall(r"(?:manage\.py|^berth) ([a-z][a-z-]+)", PAGE, re.M)):
        assert (ROOT / f"panel/management/commands/{name}.py").exists(), name
    services = Compose(example()).services
    for line in re.findall(r"docker compose -f docker/compose.yml (.*)", PAGE):
        for word in re.findall(r"\b(?:logs|run --rm|stop) ([a-z ]+?)(?:`| python| *#|$)", line):
            assert set(word.split()) <= set(services), line


def test_images_to_carry_are_those_of_the_compose_file() -> None:
    line = re.search(r"docker save ([^|]+)\|", PAGE)
    assert line
    assert set(line[1].split()) == {one.spec["image"] for one in Compose(example()).services.values()}


def test_caddys_lines_are_accepted(tmp_path: Path) -> None:
    if shutil.which("caddy") is None:
        pytest.skip("caddy is not installed")
    found = re.search(r"```caddy\n(.*?)```", PAGE, flags=re.DOTALL)
    assert found
    (tmp_path / "Caddyfile").write_text(found[1])
    argv = ["caddy", "validate", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"]
    env = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# --- what it does ---------------------------------------------------------------------------------------------------
SHIMS = {
    "sudo": 'while [ $# -gt 0 ]; do case "$1" in -u) shift 2 ;; *) break ;; esac; done\nexec "$@"\n',
    "useradd": "exit 0\n",
    "chown": "exit 0\n",
    # owners and groups of the page do not exist here
    "install": 'a=""; while [ $# -gt 0 ]; do case "$1" in -o|-g) shift 2 ;; *) a="$a $1"; shift ;; esac; done\nexec /usr/bin/install $a\n',
    "journalctl": 'while [ $# -gt 0 ]; do case "$1" in -u) u=$2; shift 2 ;; -n) shift 2 ;; *) shift ;; esac; done\ntail -n 20 "$WALK/$u.log"\n',
    "systemctl": r"""
unit() { sed -n "s/^$1=-\{0,1\}//p" "$WALK/etc/systemd/system/$name.service"; }
begin() {
  cd "$(unit WorkingDirectory)"
  set -a; . "$WALK$(unit EnvironmentFile)"; set +a
  eval "setsid $(unit ExecStart) >>'$WALK/$name.log' 2>&1 </dev/null &"
  echo $! >"$WALK/$name.pid"
}
end() { pid=$(cat "$WALK/$name.pid"); kill "$pid"; while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done; }
act=$1; shift; [ "${1:-}" != --now ] || shift; name=${1:-}
case "$act" in
  daemon-reload) ;;
  enable | start) begin ;;
  stop) end ;;
  restart) end; begin ;;
  *) exit 1 ;;
esac
""",
}


class Walk:
    """A person at a machine of their own, who pastes what the page says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        shims = folder / "shims"
        for place in (shims, *(folder / place[1:] for place in PLACES if place != "/opt/berth"), folder / "home"):
            place.mkdir(parents=True, exist_ok=True)
        for name, text in SHIMS.items():
            (shims / name).write_text(f"#!/bin/sh\n{text}")
            (shims / name).chmod(0o755)
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("BERTH_", "DATABASE_", "REDIS_", "DJANGO_"))
        }
        path = f"{shims}:{folder}/usr/local/bin:{os.environ['PATH']}"
        self.env = {
            **kept,
            "PATH": path,
            "HOME": str(folder / "home"),
            "WALK": str(folder),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def clone(self, name: str) -> Path:
        into = self.folder / name
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(into)], check=True, env=self.env)
        return into

    def here(self, text: str) -> str:
        for place in sorted(PLACES, key=len, reverse=True):
            text = text.replace(place, f"{self.folder}{place}")
        return text.replace("127.0.0.1:8080", f"127.0.0.1:{self.port}")

    def paste(self, text: str, cwd: Path, **env: str) -> str:
        argv = ["bash", "-e", "-o", "pipefail", "-c", self.here(text)]
        done = subprocess.run(
            argv, cwd=cwd, env={**self.env, **env}, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, f"{self.here(text)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    def alive(self) -> bool:
        with contextlib.suppress(OSError):
            asked = http.client.HTTPConnection("127.0.0.1", self.port, timeout=3)
            asked.request("GET", "/healthz")
            return asked.getresponse().status == 200
        return False

    def log(self) -> str:
        log = self.folder / "berth-panel.log"
        return log.read_text() if log.exists() else ""

    def end(self) -> None:
        pid = self.folder / "berth-panel.pid"
        with contextlib.suppress(psutil.Error, FileNotFoundError):
            process = psutil.Process(int(pid.read_text()))
            process.terminate()
            process.wait(60)


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    one = Walk(tmp_path_factory.mktemp("walk"))
    yield one
    one.end()


@pytest.mark.integration
@pytest.mark.slow
def test_a_laptop(walk: Walk) -> None:
    """`make up` to the first admin's link, `make doctor`, `make down`; and what a machine without internet needs."""
    berth = walk.clone("laptop")
    first = commands("A laptop")[0]
    assert first == "make up\n"
    env = {**walk.env, "BERTH_BIND": f"127.0.0.1:{walk.port}"}
    said = walk.folder / "up.log"
    with said.open("wb") as out:
        up = subprocess.Popen(first.split(), cwd=berth, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        until(lambda: "Ctrl-C stops it" in said.read_text() or up.poll() is not None, timeout=200, why="it is up")
        assert up.poll() is None and f"http://localhost:{walk.port}/first-admin/" in said.read_text(), said.read_text()
        until(lambda: reported(walk, berth), timeout=30, why="the agent of this machine reports")
        rest = commands("A laptop")[1].splitlines()
        assert [line.split("#")[0].strip() for line in rest] == ["make doctor", "make engine", "make down"]
        down = walk.paste(rest[2], berth, BERTH_BIND=env["BERTH_BIND"])
        assert "Stopped." in down
        assert up.wait(30) == 0, said.read_text()
        assert (berth / "var" / "secret.key").exists()
    finally:
        if up.poll() is None:
            os.killpg(up.pid, signal.SIGTERM)
            up.wait(60)
    walk.paste(commands("Without internet")[0], berth)
    assert len(list((berth / "wheels").glob("*.whl"))) > 30


def reported(walk: Walk, berth: Path) -> bool:
    argv = ["make", "doctor"]
    env = {**walk.env, "BERTH_BIND": f"127.0.0.1:{walk.port}"}
    return subprocess.run(argv, cwd=berth, env=env, capture_output=True, check=False).returncode == 0


@pytest.mark.integration
@pytest.mark.slow
def test_one_server_without_internet(walk: Walk) -> None:
    """From nothing to the first admin's link; then a backup, a restore, an upgrade. Packages come from the carried folder."""
    wheels = walk.folder / "laptop" / "wheels"
    assert wheels.is_dir(), "the walk for a laptop comes first"
    berth = walk.clone("opt/berth")
    carried = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels)}
    assert all(f"{name}=" in commands("Without internet")[1] for name in carried)
    said = walk.paste("\n".join(commands("One server")), berth, **carried)
    assert "✓ python" in said and "✗" not in said
    until(walk.alive, timeout=120, why=f"the panel answers\n{walk.log()}")
    link = re.compile(r"https://berth\.example\.org/first-admin/\S+")
    until(lambda: link.search(walk.log()), timeout=60, why="the journal shows the first admin's link")
    assert (walk.folder / "etc/systemd/system/berth-panel.service").read_text().count("KillMode=process") >= 1

    walk.paste("printf 'correct horse battery\\n' | berth createadmin ada", berth)
    backup, restore = commands("Backup and restore")
    walk.paste(backup, berth)
    (file,) = (walk.folder / "var/backups/berth").glob("*.tar.gz")
    assert file.stat().st_mode & 0o077 == 0
    with tarfile.open(file) as archive:
        assert "secret.key" in archive.getnames()
    walk.paste("printf 'correct horse battery\\n' | berth createadmin bob", berth)
    assert "Restored" in walk.paste(restore, berth)
    until(walk.alive, timeout=120, why=f"the panel answers again\n{walk.log()}")
    names = walk.paste(
        "berth shell --no-imports -c 'from panel.accounts.models import User; print(*User.objects.values_list(\"username\", flat=True))'",
        berth,
    )
    assert names.split() == ["ada"]

    walk.paste("\n".join(commands("Upgrade")), berth, **carried)
    until(walk.alive, timeout=120, why=f"the new version answers\n{walk.log()}")
    assert len(list((walk.folder / "var/backups/berth").glob("*.tar.gz"))) == 2
