"""What the host is."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from panel.fleet.agent import facts
from panel.fleet.agent.gpus import Reading

GIB = 1 << 30


def test_this_host(tmp_path: Path) -> None:
    found = facts.collect([tmp_path], tmp_path, Reading(error="driver_missing"))
    assert found.hostname and found.os and found.kernel and found.machine and found.cpu_count >= 1
    assert 0 < found.ram_available_mib <= found.ram_total_mib <= psutil.virtual_memory().total >> 20
    assert [disk.path for disk in found.disks] == [str(tmp_path)]  # one file system, once
    assert found.disks[0].free_mib <= found.disks[0].total_mib
    assert found.gpu_error == "driver_missing" and found.gpus == []
    assert found.open_files and None not in (found.shm_mib, found.log_mib, found.cache_mib)
    assert found.log_mib is not None and found.log_mib <= found.disks[0].free_mib + 1024
    assert found.boot_time < found.agent_started and set(found.cpu_flags) <= set(facts.CPU_FLAGS)


def group(root: Path, name: str, **files: str) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file.replace("_", ".", 1)).write_text(text)
    return folder


def test_memory_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = group(tmp_path, "svc", memory_max=f"{2 * GIB}\n", memory_current=f"{GIB}\n")
    (parent / "memory.stat").write_text(f"anon 5\ninactive_file {GIB // 2}\n")
    own = group(tmp_path, "svc/agent", memory_max="max\n", memory_current="1\n")
    monkeypatch.setattr(facts, "_own_groups", lambda root: [(own, True), (parent, True)])
    total, available = facts.memory(tmp_path)
    assert total == 2 * GIB
    assert available == min(psutil.virtual_memory().total, GIB + GIB // 2)


@pytest.mark.parametrize("limit", ["max", str(1 << 62), "nonsense"])
def test_no_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    own = group(tmp_path, "agent", memory_max=limit)
    monkeypatch.setattr(facts, "_own_groups", lambda root: [(own, True)])
    assert facts.memory(tmp_path)[0] == psutil.virtual_memory().total


def test_cpu_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = group(tmp_path, "agent", cpu_max="150000 100000")
    monkeypatch.setattr(facts, "_own_groups", lambda root: [(own, True)])
    monkeypatch.setattr(facts.os, "sched_getaffinity", lambda pid: set(range(8)))
    assert facts.cpu_count(tmp_path) == 2
    (own / "cpu.max").write_text("max 100000")
    assert facts.cpu_count(tmp_path) == 8
