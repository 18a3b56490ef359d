"""Vendored files are what vendor.lock says, come with a licence, and pages load nothing from outside."""

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENDOR = ROOT / "static/vendor"
OWN = [*(ROOT / "static/panel").iterdir(), *(ROOT / "templates").rglob("*.html")]


def lock() -> dict[str, list[str]]:
    lines = (VENDOR / "vendor.lock").read_text().splitlines()
    rows = [line.split() for line in lines if line and not line.startswith("#")]
    return {row[0]: row[1:] for row in rows}


def test_every_vendored_file_is_locked_and_unchanged() -> None:
    there = {
        str(file.relative_to(VENDOR))
        for file in VENDOR.rglob("*")
        if file.is_file() and file.name not in ("vendor.lock", "LICENSE")
    }
    assert there == set(lock())
    for name, (_package, _version, digest, _upstream) in lock().items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name


def test_folders_name_their_version_and_hold_a_licence() -> None:
    for name, (_package, version, _digest, _upstream) in lock().items():
        folder = VENDOR / name.split("/")[0]
        assert folder.name.endswith(f"-{version}")
        assert (folder / "LICENSE").stat().st_size > 300


def test_icons_that_templates_use_are_in_the_sprite() -> None:
    sprite = (VENDOR / "tabler-icons-3.51.0/icons.svg").read_text()
    have = set(re.findall(r'<symbol id="([^"]+)"', sprite))
    templates = "\n".join(f.read_text() for f in (ROOT / "templates").rglob("*.html"))
    code = "\n".join(
        f.read_text() for d in ("panel", "deployments", "models_catalog") for f in (ROOT / d).rglob("*.py")
    )
    used = set(re.findall(r"""\{% icon ["']([^"']+)["']""", templates))
    used |= set(re.findall(r"""\bicon\(["']([^"']+)["']""", code))
    assert used and used <= have, used - have


def test_nothing_comes_from_another_address() -> None:
    """Example addresses that a person reads are fine; what a browser would load by itself is not."""
    loads = re.compile(r"""(?:src|href|action)=["'](?:https?:)?//|url\(["']?(?:https?:)?//|@import""")
    for file in OWN:
        assert not loads.search(file.read_text()), file.name


def test_templates_hold_nothing_inline() -> None:
    inline = re.compile(r"<style|<script(?![^>]*\ssrc=)|\sstyle=|\son[a-z]+=|hx-on|hx-vars|js:")
    for file in (ROOT / "templates").rglob("*.html"):
        found = inline.search(file.read_text())
        assert not found, f"{file.name}: {found}"
