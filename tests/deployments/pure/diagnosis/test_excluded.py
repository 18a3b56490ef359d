"""What a failure was not: said where it was measured, and never of a thing that the cause has to do with."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.codes_failed import EXCLUDED
from deployments.diagnosis.excluded import excluded

GPU = {"index": 0, "total_mib": 24_000, "free_mib": 22_000, "others": []}
KNOWN: dict[str, Any] = {
    "memory": {"before": {"gpus": [GPU, {**GPU, "index": 1, "free_mib": 21_000}]}},
    "oom_kills": 0,
    "host": {"driver": "580.95", "disks": [["/", 212.0], ["/models", 900.5]], "shm_gib": 16.0},
    "files": {"n": 5, "summed": True, "at": "2026-11-29T10:00:00+00:00"},
    "settings": 8,
    "port": 8104,
}
ALL = ["strangers", "files_read", "driver", "settings", "port", "disk", "ram", "shm"]


def said(
    known: dict[str, Any], cause: str = "mem.kv_lt_len", phase: str = "kvcache", engine: str = "vLLM"
) -> list[str]:
    found = excluded(known, cause, phase, engine=engine, version="0.32.0")
    assert all(code in EXCLUDED for code, _params in found)
    return [code.removeprefix("excluded.") for code, _params in found]


def test_everything_that_was_measured() -> None:
    assert said(KNOWN) == ALL
    told = dict(excluded(KNOWN, "mem.kv_lt_len", "kvcache", engine="vLLM", version="0.32.0"))
    assert told["excluded.strangers"] == {"free_mib": 21_000, "total_mib": 24_000}
    assert told["excluded.driver"] == {"driver": "580.95", "engine": "vLLM 0.32.0"}
    assert told["excluded.disk"] == {"gib": 212.0, "path": "/"}
    assert told["excluded.settings"] == {"n": 8} and told["excluded.port"] == {"port": 8104}


def test_an_old_run_says_what_was_kept_of_it() -> None:
    assert said({}) == ["files_read"]
    assert said({}, phase="start") == said({}, phase="") == []
    assert said({"memory": {"before": {"gpus": [GPU]}}}, phase="start") == ["strangers"]


@pytest.mark.parametrize(
    ("phase", "gone"),
    [
        ("start", {"files_read", "driver", "settings", "port"}),
        ("config", {"files_read", "driver", "settings"}),
        ("device", {"files_read", "driver"}),
        ("tokenizer", {"files_read"}),
        ("kvcache", set()),
    ],
)
def test_only_what_the_start_came_past(phase: str, gone: set[str]) -> None:
    found = said(KNOWN, phase=phase)
    assert set(ALL) - set(found) == gone
    assert ("files_sums" in found) == ("files_read" in gone)


def test_of_files_that_were_only_looked_at() -> None:
    looked = {**KNOWN, "files": {"n": 5, "summed": False, "at": None}}
    assert "files_seen" in said(looked, phase="config")


def test_another_engine_takes_its_port_at_the_end() -> None:
    assert "port" not in said(KNOWN, engine="llama.cpp") and "port" in said(KNOWN, engine="llama.cpp", phase="serving")
    assert "port" not in said({**KNOWN, "port_holder": "nginx"})


@pytest.mark.parametrize(
    ("cause", "thing"),
    [
        ("mem.gpu_busy", "strangers"), ("mem.oom_load", "strangers"), ("mem.host_oom_killed", "ram"),
        ("load.corrupt_file", "files_read"), ("load.shape_mismatch", "files_read"), ("tok.missing", "files_read"),
        ("env.driver_old", "driver"), ("gpu.no_kernel_image", "driver"), ("args.unrecognized", "settings"),
        ("config.block_size", "settings"), ("http.port_in_use", "port"), ("env.disk_full", "disk"), ("env.shm", "shm"),
    ],
)  # fmt: skip
def test_never_what_the_cause_has_to_do_with(cause: str, thing: str) -> None:
    assert thing not in said(KNOWN, cause=cause)


def test_strangers_short_memory_full_disks_and_killed_processes_are_not_ruled_out() -> None:
    bad = {
        "memory": {"before": {"gpus": [{**GPU, "others": [{"pid": 1}]}]}},
        "oom_kills": 1, "host": {"disks": [["/", 212.0], ["/models", 0.4]], "shm_gib": 0.06},
    }  # fmt: skip
    assert said(bad, phase="start") == []


def test_of_the_processor_only_where_the_engine_runs_on_it() -> None:
    new = {"host": {"has": ["AVX2", "AVX-512"]}}
    assert said(new, phase="start") == [] and said({**new, "on_cpu": True}, phase="start") == ["cpu"]
    assert said({**new, "on_cpu": True}, cause="env.sigill", phase="start") == []
