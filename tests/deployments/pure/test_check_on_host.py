"""What a host tells of its disks and limits: the newest report first, then what came with the engine's answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deployments.checklist import on_host

NOW = datetime(2026, 12, 1, 16, tzinfo=UTC)
OLD = NOW - timedelta(days=3)
LIVE = {"shm_mib": 64_000, "open_files": 1 << 20, "log_mib": 10, "cache_mib": 50_000}
SAID = {"shm_mib": 64_000, "open_files": 1024, "disks": {"log": 50_000, "cache": 10}}


@pytest.mark.parametrize(
    ("facts", "said", "at", "env", "codes"),
    [
        (LIVE, SAID, OLD, {}, ["check.disk_log"]),
        (LIVE, {}, None, {}, ["check.disk_log"]),
        (LIVE, SAID, OLD, {"VLLM_CACHE_ROOT": "/small"}, ["check.disk_log", "check.disk_cache"]),
        ({"shm_mib": None}, SAID, OLD, {}, ["check.few_files", "check.disk_cache", "check.host_then"]),
        ({}, SAID, NOW, {}, ["check.few_files", "check.disk_cache"]),
        ({}, {}, OLD, {}, []),
        ({"log_mib": 10}, {"disks": "nonsense"}, OLD, {}, ["check.disk_log"]),
    ],
    ids=["live", "never-asked", "cache-elsewhere", "old-agent", "old-agent-now", "silent", "nonsense"],
)
def test_the_newest_counts(
    facts: dict[str, Any], said: dict[str, Any], at: datetime | None, env: dict[str, str], codes: list[str]
) -> None:
    told = on_host.told(facts, said, at, env)
    assert [found.code for found in on_host.findings(told, 1, NOW)] == codes
