"""Hosts: with GPUs, without, lost, never heard of, and with an engine that does not work."""

from datetime import timedelta
from typing import Any

from django.utils import timezone

from panel.fleet.models import Gpu, Host, Job, Runtime
from tests.browser.cases import case

FACTS: dict[str, Any] = {
    "hostname": "atlas",
    "os": "Ubuntu 24.04.3 LTS",
    "kernel": "6.8.0-60-generic",
    "machine": "x86_64",
    "cpu_model": "AMD EPYC 9354 32-Core Processor",
    "cpu_count": 64,
    "cpu_flags": ["avx2", "avx512f", "avx512_bf16"],
    "ram_total_mib": 515_000,
    "ram_available_mib": 401_000,
    "disks": [{"path": "/data/models", "total_mib": 3_815_447, "free_mib": 1_204_000}],
    "gpu_driver": "580.95.05",
    "cuda_driver_version": "13.0",
    "python": "3.12.3",
    "boot_time": 1.0,
    "agent_started": 2.0,
    "model_roots": ["/data/models", "/home/berth/.cache/huggingface/hub"],
}


def make_host(name: str, *, gpus: int = 0, seconds_ago: float = 4, **values: Any) -> Host:
    at = timezone.now() - timedelta(seconds=seconds_ago)
    facts = {**FACTS, "hostname": name, **values.pop("facts", {})}
    if not gpus:
        facts |= {"gpu_driver": None, "cuda_driver_version": None}
    host = Host.objects.create(
        name=name,
        token_hash=f"hash of {name}",
        agent_version="0.1.0",
        last_seen_at=at,
        facts=facts,
        facts_at=at,
        ram_total_mib=facts["ram_total_mib"],
        **values,
    )
    for index in range(gpus):
        Gpu.objects.create(
            host=host,
            uuid=f"GPU-{name}-{index}",
            index=index,
            name="NVIDIA L40S",
            total_mib=46_068,
            used_mib=6_420 * (index + 1),
            measured_at=at,
            measured={"utilisation_pct": 38, "temperature_c": 55, "power_w": 176.2, "processes": processes(index)},
        )
    return host


def processes(index: int) -> list[dict[str, Any]]:
    """Of another person on GPU 0, of two people on GPU 1, that nobody knows on the rest."""
    mine = {"pid": 91, "used_mib": 6_100, "user": "sam", "name": "train.py", "job_id": None}
    other = {"pid": 92, "used_mib": 3_000, "user": "kim", "name": "notebook", "job_id": None}
    return [[mine], [mine, other]][index] if index < 2 else []


def add_engines(host: Host) -> None:
    Runtime.objects.create(host=host, engine="vllm", executable="/opt/vllm/bin/vllm", version="0.32.0", device="cuda")
    Runtime.objects.create(
        host=host,
        engine="vllm",
        executable="/home/berth/old/bin/vllm",
        version="",
        refusal={"code": "probe_failed", "params": {"detail": "ImportError: libcudart.so.12: cannot open"}},
    )
    Runtime.objects.create(
        host=host, engine="sglang", executable="/opt/sgl/bin/python", version="0.5.22", present=False
    )


@case("hosts")
def hosts() -> str:
    atlas = make_host("atlas", gpus=3, is_local=True, ram_reserved_mib=20_000)
    add_engines(atlas)
    Gpu.objects.filter(host=atlas, index=1).update(reserved_mib=36_000)
    plain = make_host("plain", facts={"cpu_flags": []})
    Job.objects.create(host=plain, kind="runtimes", state="running")
    make_host("broken", facts={"gpu_error": "driver_mismatch"})
    make_host("spark", gpus=1, seconds_ago=900, lost_at=timezone.now())
    Host.objects.create(name="newcomer", token_hash="hash of newcomer")
    return "/hosts/"


@case("hosts-viewer", role="viewer")
def hosts_viewer() -> str:
    add_engines(make_host("atlas", gpus=1))
    return "/hosts/"


DOOR = {"address": "10.0.0.7", "port": 8443, "certificate": "5f" * 32, "accepts": [], "problem": ""}
LONG = "fan of card 1 is being replaced, and nobody knows how long that will take; ask Kim before you use it"


def add_runs(host: Host) -> None:
    """Two engines of Berth on the first GPU, one of them still starting."""
    status = {"started_at": timezone.now().timestamp() - 7200, "rss_mib": 5_400, "gpu_used_mib": 22_100}
    Job.objects.create(host=host, kind="engine", state="running", status=status)
    Job.objects.create(host=host, kind="engine", state="starting", status={})


def set_aside(note: str) -> dict[str, str]:
    return {"by": "mara", "at": (timezone.now() - timedelta(hours=3)).isoformat(), "note": note}


@case("host")
def host() -> str:
    """One of several, with everything: runs, strangers, a GPU aside, a door."""
    atlas = make_host("atlas", gpus=3, door=DOOR, ram_reserved_mib=20_000)
    add_engines(atlas)
    add_runs(atlas)
    Gpu.objects.filter(host=atlas, index=1).update(schedulable=False, hold=set_aside(LONG), reserved_mib=36_000)
    return f"/hosts/{atlas.pk}/"


@case("host-troubled")
def host_troubled() -> str:
    """Set aside, restarted, its clock off, a second agent with its key, and no door."""
    at = timezone.now()
    since = (at - timedelta(minutes=20)).isoformat()
    twin = {"code": "link.twin", "since": since, "at": at.isoformat(), "params": {"address": "10.0.0.9"}}
    row = make_host(
        "borealis",
        facts={"gpu_error": "driver_mismatch"},
        hold=set_aside("new disk"),
        schedulable=False,
        restarted_at=at - timedelta(minutes=3),
        clock_skew_s=-5_400.0,
        link_trouble=twin,
        door={"address": "", "port": 8443, "certificate": "", "accepts": [], "problem": "port_taken"},
    )
    Host.objects.filter(pk=row.pk).update(agent_version="0.0.9")
    add_runs(row)
    return f"/hosts/{row.pk}/"


@case("host-silent")
def host_silent() -> str:
    spark = make_host("spark", gpus=1, seconds_ago=900, lost_at=timezone.now(), door=DOOR)
    add_runs(spark)
    return f"/hosts/{spark.pk}/"


@case("host-viewer", role="viewer")
def host_viewer() -> str:
    return f"/hosts/{make_host('atlas', gpus=1, is_local=True).pk}/"


@case("host-forgotten")
def host_forgotten() -> str:
    row = make_host("desk", forgotten_at=timezone.now())
    return f"/hosts/{row.pk}/"


@case("host-rename")
def host_rename() -> str:
    return f"/hosts/{make_host('atlas').pk}/rename"


@case("hosts-none")
def hosts_none() -> str:
    return "/hosts/"


@case("name-engine")
def name_engine() -> str:
    return f"/hosts/{make_host('atlas').pk}/engines/new"


@case("not-found", status=404)
def not_found() -> str:
    return "/there/is/no/such/page"


@case("not-found-stranger", role=None, status=404)
def not_found_stranger() -> str:
    return "/there/is/no/such/page"
