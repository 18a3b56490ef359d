"""docker/compose.yml: what it says holds together, and what it runs runs, as processes in a network of their own."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.panel.compose import FOLDER, ROOT, SECRETS, Absent, Compose, example

COMPOSE = Compose(example())
KEYS = {
    "image", "build", "command", "init", "read_only", "tmpfs", "cap_drop", "cap_add", "security_opt", "env_file",
    "environment", "volumes", "networks", "restart", "depends_on", "healthcheck", "stop_grace_period", "stop_signal",
    "ports", "profiles", "shm_size",
}  # fmt: skip
ONCE = {"prepare", "backup"}  # they end by themselves


# --- what the file says -----------------------------------------------------------------------------------------------
def test_the_file_has_only_what_compose_knows() -> None:
    assert {key for key in COMPOSE.raw if not key.startswith("x-")} == {"name", "services", "networks", "volumes"}
    for name, service in COMPOSE.services.items():
        assert set(service.spec) <= KEYS, name
        assert ":" in service.spec["image"] or "build" in service.spec, name
        assert ":latest" not in service.spec["image"]


def test_what_is_named_exists() -> None:
    networks, volumes = COMPOSE.file["networks"], COMPOSE.file["volumes"]
    for name, service in COMPOSE.services.items():
        assert set(service.spec["networks"]) <= set(networks), name
        for mount in service.spec.get("volumes", []):
            source = mount.split(":")[0]
            assert source in volumes or source == "./certificates" or (FOLDER / source).exists(), mount
        for needed, how in service.spec.get("depends_on", {}).items():
            other = COMPOSE.services[needed]
            wanted = "service_completed_successfully" if needed in ONCE else "service_healthy"
            assert how["condition"] == wanted
            assert needed in ONCE or other.health, f"{name} waits for the health of {needed}"
        if service.spec.get("build"):
            assert (FOLDER / service.spec["build"]["context"] / service.spec["build"]["dockerfile"]).exists()


def test_everything_that_stays_has_a_health_check_and_comes_back() -> None:
    for name, service in COMPOSE.services.items():
        if name not in ONCE:
            assert service.health, name
            assert service.spec["restart"] == "unless-stopped", name
        assert isinstance(service.spec.get("command", []), list), f"{name}: a shell would keep signals from the program"


def test_rights_are_small() -> None:
    for name, service in COMPOSE.services.items():
        assert service.spec["read_only"] is True, name
        assert "no-new-privileges:true" in service.spec["security_opt"], name
        assert "privileged" not in service.spec
        assert name == "proxy" or "ports" not in service.spec, f"{name} must not be reached past the proxy"
    for name, service in COMPOSE.ours.items():
        assert service.spec["cap_drop"] == ["ALL"] and service.spec["init"] is True, name
    assert COMPOSE.file["networks"]["back"]["internal"] is True
    assert "back" not in COMPOSE.service("proxy").spec["networks"]


def test_secrets_are_asked_for_and_stand_in_no_file() -> None:
    for name in SECRETS:
        with pytest.raises(Absent, match=name):
            Compose({**example(), name: ""})
    text = (FOLDER / "compose.yml").read_text(encoding="utf-8")
    assert not re.search(r"(PASSWORD|SECRET_KEY): (?!\$\{)", text)


def test_settings_that_compose_gives_exist() -> None:
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    for service in COMPOSE.ours.values():
        given = service.spec["environment"]
        assert len(given) > 5
        assert [name for name in given if f"`{name}`" not in page] == []


def test_workers_are_those_that_up_starts() -> None:
    """Two ways to start the same programs must not drift apart."""
    from django.conf import settings

    from panel.supervisor import programs

    by_up = {part.name: part.argv[2:] for part in programs(settings, ROOT)}  # without `python -m`
    assert COMPOSE.service("web").command[2:] == by_up["web"]
    assert COMPOSE.service("worker").command == by_up["worker-loop"]
    assert COMPOSE.service("probe").command == by_up["worker-probe"]


@pytest.mark.parametrize("name", ["web", "worker", "prepare"])
def test_check_deploy_is_clean(name: str, tmp_path: Path) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("BERTH_", "DATABASE_", "REDIS_"))}
    env = {**kept, **COMPOSE.service(name).environment, "BERTH_DATA": str(tmp_path)}
    env["DJANGO_SETTINGS_MODULE"] = "panel.settings"
    argv = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


# --- what it runs ---------------------------------------------------------------------------------------------------
def namespace() -> list[str]:
    """A command that runs another one in a network and a mount namespace of its own; [] where that is not allowed."""
    unshare = shutil.which("unshare")
    argv = [unshare or "unshare", *([] if os.geteuid() == 0 else ["-U", "-r"]), "-n", "-m"]
    if unshare and subprocess.run([*argv, "ip", "link", "set", "lo", "up"], capture_output=True).returncode == 0:
        return argv
    return []


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("proxy", ["caddy", "nginx"])
def test_what_it_runs_runs(proxy: str, tmp_path: Path) -> None:
    """tests/panel/inside_compose.py, in a network where `database`, `broker` and `web` are names as in the set-up."""
    argv = namespace()
    if not argv:
        pytest.skip("this machine allows no network namespace")
    if shutil.which(proxy, path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip(f"{proxy} is not installed")
    env = {**os.environ, "BERTH_TEST_PROXY": proxy, "BERTH_TEST_FOLDER": str(tmp_path)}
    argv += [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "tests/panel/inside_compose.py"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-12000:] + done.stderr[-3000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout, done.stdout[-3000:]
