"""What the panel knows of a run beside its log, when it ends: settings then and now, memory before and after.

Reads only. The diagnosis gets it as `result.Evidence`; what people may want to see of it is kept with the run (`kept`).
"""

import logging
import signal
from typing import Any

from django.db.models import Q, prefetch_related_objects

from deployments import evidence_host
from deployments.diagnosis.result import Evidence
from deployments.models import Run
from deployments.placement import HostView
from deployments.planner.asked import flags_among
from models_catalog.models import Copy
from panel.fleet import samples
from panel.fleet.models import Gpu

log = logging.getLogger(__name__)

# Of the command, what differs at each start or says nothing of the settings.
OWN = frozenset({"host", "port", "served_model_name", "api_key"})
# Of the environment, what people choose under another name.
VARIABLES = ("VLLM_CPU_KVCACHE_SPACE",)
MOST = 500  # characters of one value
MOST_FILES = 5  # GGUF files that are named
HEAD = 3  # executable, serve, model
GIB = 1024


def gathered(run: Run, status: dict[str, Any]) -> tuple[Evidence | None, dict[str, Any]]:
    """What is known, and what of it is kept. Never raises: the log alone tells most."""
    try:
        cards = _cards(run)
        known = of(run, status, cards)
        return known, kept(run, known, cards)
    except Exception:
        log.exception("what is known of run %s beside its log could not be read", run.pk)
        return None, {}


def of(run: Run, status: dict[str, Any], cards: list[Gpu]) -> Evidence:
    """Everything that can be said without asking the host."""
    last = last_good(run)
    facts = {**run.copy.artifact.facts, **run.copy.extra} if run.copy is not None else {}
    geometry = facts.get("geometry") if isinstance(facts.get("geometry"), dict) else {}
    host = run.host
    return Evidence(
        options=options_of(run, status),
        last_good=options_of(last, last.job.status if last.job else {}) if last is not None else None,
        gpus=len(cards),
        numa_nodes=1 if not run.placement.get("gpu_uuids") else None,  # one process there serves on all of them
        format=str(facts.get("format") or ""),
        gpu_total_gib=_least(card.total_mib for card in _own(run, cards)),
        gpu_free_gib=_least(item["free_mib"] for item in run.placement.get("before", {}).get("gpus", [])),
        host_free_gib=_gib(host.facts.get("ram_available_mib")) if host is not None else None,
        weights_gib=run.foreseen.get("weights_gib") or _gib((facts.get("weight_bytes") or 0) / (1 << 20)),
        heads=_whole(facts.get("heads") or geometry.get("heads")),
        kv_heads=_whole(geometry.get("kv_heads")),
        oom_kills=status.get("oom_kills"),
        oom_others=_killed_beside(run) if status.get("oom_kills") else 0,
        oom_ago_s=status.get("oom_ago_s"),
        port=_whole(status.get("port")),
        port_holder=str(status.get("port_holder") or ""),
        gguf_files=_ggufs(run),
        machine=evidence_host.machine(run),
    )


def _killed_beside(run: Run) -> int:
    """Other runs of the host that a KILL ended which nobody asked for, while this one lived: so much of the kernel's
    count is theirs.
    """
    killed = Q(
        job__status__signal=signal.SIGKILL.value, job__status__stop_asked=False, job__ended_at__gte=run.created_at
    )
    known = Q(diagnosis__class="mem.host_oom_killed", ended_at__gte=run.created_at)
    return Run.objects.filter(killed | known, host_id=run.host_id).exclude(pk=run.pk).count()


def kept(run: Run, known: Evidence, cards: list[Gpu]) -> dict[str, Any]:
    """Of it what people want to see later, and what fixes are made from: the measured now is gone by then."""
    said: dict[str, Any] = {"memory": {"before": run.placement.get("before", {}), "after": memory_now(run, cards)}}
    if known.oom_kills is not None:
        said["oom_kills"] = known.oom_kills
    if known.port_holder:
        said["port_holder"] = known.port_holder[:200]
    on_gpu = bool(run.placement.get("gpu_uuids"))
    more = {
        "host": evidence_host.kept(known.machine, on_gpu=on_gpu),
        "files": evidence_host.files(run.copy),
        "settings": len(known.options),
        "port": known.port,
        "on_cpu": bool(run.placement) and not on_gpu,
    }
    return said | {name: value for name, value in more.items() if value}


def _ggufs(run: Run) -> tuple[str, ...]:
    """GGUF files in the folder of a model that is of another format: paths, as the catalog knows them."""
    if run.copy is None or run.copy.artifact.format == "gguf":
        return ()
    inside = Copy.objects.filter(host=run.copy.host_id, present=True, usable=True, artifact__format="gguf")
    inside = inside.filter(path__startswith=f"{run.copy.path.rstrip('/')}/").order_by("path")
    return tuple(inside.values_list("path", flat=True)[:MOST_FILES])


def last_good(run: Run) -> Run | None:
    """The newest earlier run of the same deployment that was ready."""
    rows = Run.objects.filter(deployment_id=run.deployment_id, number__lt=run.number, ready_at__isnull=False)
    return rows.select_related("job").only("command", "env", "number", "job", "job__status").order_by("-number").first()


def options_of(run: Run, status: dict[str, Any]) -> dict[str, Any]:
    """The engine's options by name as they were on its command line, and the variables that are settings."""
    argv = status.get("argv") or run.command or []
    found = {
        name: value
        for name, value in flags_among(argv[HEAD:]).items()
        if name not in OWN and len(str(value)) <= MOST  # a template is no setting to compare
    }
    return {**found, **{name: run.env[name] for name in VARIABLES if name in run.env}}


def before_of(view: HostView, gpu_uuids: tuple[str, ...]) -> dict[str, Any]:
    """Memory of the chosen place before the start, with strangers by name; kept in the run's placement. MiB."""
    gpus = [
        {
            "index": gpu.index,
            "total_mib": gpu.total_mib,
            "free_mib": gpu.free_mib,
            "others": [
                {"pid": user.pid, "name": user.name, "user": user.user, "mib": user.used_mib} for user in gpu.others[:5]
            ],
        }
        for gpu in view.gpus
        if gpu.uuid in gpu_uuids
    ]
    return {"gpus": gpus, "ram_free_mib": view.ram_available_mib, "ram_total_mib": view.ram_total_mib}


def memory_now(run: Run, cards: list[Gpu]) -> dict[str, Any]:
    """The same, as it was last measured."""
    gpus = [
        {"index": card.index, "total_mib": card.total_mib, "free_mib": max(0, card.total_mib - card.used_mib)}
        for card in _own(run, cards)
    ]
    host = run.host
    ram = host.facts.get("ram_available_mib") if host is not None else None
    return {"gpus": gpus, "ram_free_mib": ram}


def _cards(run: Run) -> list[Gpu]:
    """The GPUs of the run's host, with the newest figures."""
    if run.host is None:
        return []
    prefetch_related_objects([run.host], "gpus")
    samples.onto([run.host])
    return [gpu for gpu in run.host.gpus.all() if gpu.present]


def _own(run: Run, cards: list[Gpu]) -> list[Gpu]:
    uuids = run.placement.get("gpu_uuids") or []
    return [card for card in cards if card.uuid in uuids]


def _least(mib: Any) -> float | None:
    return _gib(min(mib, default=None))


def _gib(mib: Any) -> float | None:
    return round(float(mib) / GIB, 2) if mib else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
