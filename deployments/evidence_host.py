"""What the host said of itself, and what is known of the model's files, when a run ended. Reads only."""

from typing import Any

from deployments.diagnosis.result import Machine
from deployments.models import Run
from models_catalog.downloads.models import Download
from models_catalog.models import Copy
from panel.fleet.models import Host, Job

X86 = ("x86_64", "AMD64")
MOST_DISKS = 8
GIB = 1024


def machine(run: Run) -> Machine:
    """Of the run's host as its newest report tells; of an older agent as the engine's own check met it there."""
    host = run.host
    if host is None:
        return Machine()
    facts = host.facts
    met = facts if facts.get("shm_mib") is not None else _met(host)
    flags = facts.get("cpu_flags") or []
    before = run.placement.get("before") or {}
    disks = [
        (str(disk["path"])[:200], gib(disk["free_mib"])) for disk in facts.get("disks") or [] if "free_mib" in disk
    ]
    files = met.get("open_files")
    return Machine(
        cpu_flags=frozenset(map(str, flags)) if flags and facts.get("machine") in X86 else None,
        driver=str(facts.get("gpu_driver") or "")[:60],
        cuda=str(facts.get("cuda_driver_version") or "")[:20],
        disks=tuple((path, free) for path, free in disks[:MOST_DISKS] if free is not None),
        shm_gib=gib(met.get("shm_mib")),
        open_files=files if isinstance(files, int) else None,
        ram_total_gib=gib(before.get("ram_total_mib")),
        ram_free_gib=gib(before.get("ram_free_mib")),
    )


def kept(found: Machine, *, on_gpu: bool) -> dict[str, Any]:
    """Of it, what pages say later."""
    said: dict[str, Any] = {"disks": [list(disk) for disk in found.disks]} if found.disks else {}
    if on_gpu and found.driver:
        said |= {"driver": found.driver, "cuda": found.cuda}
    if found.shm_gib is not None:
        said["shm_gib"] = found.shm_gib
    if found.has():
        said["has"] = list(found.has())
    return said


def files(copy: Copy | None) -> dict[str, Any]:
    """How many files the copy has and when they were found whole; {} where that is not known or they are not.

    `summed`: by their check sums, when Berth fetched them; else by their headers and sizes, when it looked for models.
    """
    if copy is None or not (copy.present and copy.usable) or copy.problems:
        return {}
    count = len(copy.facts.files)
    fetched = Download.objects.filter(host=copy.host_id, state="done", made__contains=[copy.path])
    at = fetched.order_by("-ended_at").values_list("ended_at", flat=True).first()
    summed = at is not None
    at = at or copy.seen_at
    return {"n": count, "summed": summed, "at": at.isoformat() if at is not None else None} if count else {}


def _met(host: Host) -> dict[str, Any]:
    """What the newest check by an engine met there: shared memory, open files."""
    rows = Job.objects.filter(host=host, kind="check", result__isnull=False).order_by("-created_at")
    items = ((rows.values_list("result", flat=True).first() or {}).get("items") or [{}])[:1]
    met = items[0].get("host") if items and isinstance(items[0], dict) else None
    return met if isinstance(met, dict) else {}


def gib(mib: Any) -> float | None:
    """MiB in GiB; 0 is a number, and what is none is None."""
    return (
        round(float(mib) / GIB, 2) if isinstance(mib, int | float) and not isinstance(mib, bool) and mib >= 0 else None
    )
