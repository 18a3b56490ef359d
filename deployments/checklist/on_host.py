"""What a host tells of shared memory, open files and disks: the newest report, else the engine's answer. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from deployments.checklist import static
from deployments.checklist.findings import Finding

NEWS = timedelta(hours=1)  # what was measured longer ago is said to be of then
CACHE_BY = ("VLLM_CACHE_ROOT", "XDG_CACHE_HOME", "HOME")  # variables that put what is compiled elsewhere


@dataclass(frozen=True)
class Told:
    """As `static.of_host` reads it; `at`: when it was measured, None: by the host's newest report."""

    values: Mapping[str, Any]
    at: datetime | None = None


def told(facts: Mapping[str, Any], said: Mapping[str, Any], at: datetime | None, env: Mapping[str, str]) -> Told:
    """`facts` are those of the newest report; `said` and `at` what came with the engine's answer, and when.

    The room for what is compiled is that of the answer where these settings put it elsewhere.
    """
    live: dict[str, Any] = {name: facts[name] for name in ("shm_mib", "open_files") if facts.get(name) is not None}
    disks = {name: facts[f"{name}_mib"] for name in ("log", "cache") if facts.get(f"{name}_mib") is not None}
    if any(name in env for name in CACHE_BY):
        disks.pop("cache", None)
    if not live and not disks:
        return Told(said, at)
    given = said.get("disks")
    known = given if isinstance(given, Mapping) else {}
    return Told({**said, **live, "disks": {**known, **disks}})


def findings(found: Told, gpus: int, now: datetime) -> list[Finding]:
    """What is wrong there, and how old that is where it is no news."""
    said = static.of_host(found.values, gpus)
    if found.values and found.at is not None and now - found.at > NEWS:
        said.append(Finding("note", "check.host_then", {"at": found.at.isoformat()}))
    return said
