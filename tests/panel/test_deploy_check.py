"""The set-up of docker/compose.yml, as far as it can be seen without Docker."""

import os
import re
import subprocess
import sys
from pathlib import Path

from panel import lock

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker/compose.yml").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "docker/env.example").read_text(encoding="utf-8")


def panel_environment() -> dict[str, str]:
    """What the compose file gives the panel, with the example's values and two secrets filled in."""
    values = dict(re.findall(r"^([A-Z_]+)=(.*)$", EXAMPLE, flags=re.MULTILINE))
    values |= {"BERTH_SECRET_KEY": "k" * 64 + "abcdefg", "POSTGRES_PASSWORD": "secret"}
    block = COMPOSE.split("\n  panel:\n")[1].split("\n  database:\n")[0].split("environment:\n")[1].split("volumes:")[0]
    pairs = re.findall(r"^ +([A-Z_]+): (.*)$", block, flags=re.MULTILINE)
    return {
        name: re.sub(r"\$\{(\w+)[^}]*\}", lambda found: values[found[1]], value).strip('"') for name, value in pairs
    }


def test_check_deploy_is_clean(tmp_path: Path) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("BERTH_", "DATABASE_", "REDIS_"))}
    env = {**kept, **panel_environment(), "BERTH_DATA": str(tmp_path), "DJANGO_SETTINGS_MODULE": "panel.settings"}
    env["BERTH_BIND"] = "0.0.0.0:8080"
    argv = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


def test_settings_that_compose_gives_exist() -> None:
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    assert len(panel_environment()) > 5
    assert [name for name in panel_environment() if f"`{name}`" not in page] == []


def test_images_copy_what_is_there() -> None:
    for name in ("panel", "agent"):
        text = (ROOT / f"docker/{name}.Dockerfile").read_text(encoding="utf-8")
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, flags=re.MULTILINE):
            for source in line.split()[:-1]:
                assert (ROOT / source).exists(), f"{name}.Dockerfile copies {source}"
        groups = re.findall(r"panel\.lock select ([a-z ]+) >", text)
        assert groups
        assert set(groups[0].split()) <= set(lock.GROUPS)
