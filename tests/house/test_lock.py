"""The lock file holds what pyproject.toml asks for, with hashes, and can be taken apart by group."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from panel import lock

ROOT = Path(__file__).parents[2]
ENTRIES = lock.read(lock.LOCK.read_text(encoding="utf-8"))
ASKED = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]


@pytest.mark.parametrize("group", lock.GROUPS)
def test_every_requirement_is_locked_for_its_group(group: str) -> None:
    for line in (item for item in ASKED[group] if isinstance(item, str)):
        wanted = Requirement(line)
        pins = [entry.pin for entry in ENTRIES if entry.name == wanted.name.lower() and group in entry.groups]
        assert pins, f"{wanted.name} is not locked for {group}; run `python -m panel.lock write`"
        for pin in pins:
            assert wanted.specifier.contains(Requirement(pin).specifier.__iter__().__next__().version)


def test_one_version_of_everything() -> None:
    """Two entries of one name may exist only with markers that exclude each other."""
    names = [entry.name for entry in ENTRIES if Requirement(entry.pin).marker is None]
    assert len(names) == len(set(names))


def test_every_entry_has_hashes_and_no_registry_is_named() -> None:
    text = lock.LOCK.read_text(encoding="utf-8")
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry.text) for entry in ENTRIES)
    assert "--index" not in text
    assert "://" not in text


def test_selecting_takes_the_groups_entries_only() -> None:
    agent = lock.select(ENTRIES, ["agent"])
    assert "httpx==" in agent
    assert "django==" not in agent
    assert "django==" in lock.select(ENTRIES, ["agent", "panel"])


def test_an_unknown_group_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert lock.main(["select", "nothing"]) == 1
    assert "no such group: nothing" in capsys.readouterr().err


def test_an_entry_without_hash_is_refused() -> None:
    with pytest.raises(ValueError, match="no hash"):
        lock.read("# groups: agent\nhttpx==1.0\n")
