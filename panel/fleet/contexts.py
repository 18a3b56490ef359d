"""What the hosts' page and the menu show, made ready for the templates."""

from typing import Any

from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject

from panel.fleet import host_wording, queries, wording
from panel.fleet.queries import HostRow


def menu(request: HttpRequest) -> dict[str, Any]:
    """Context processor: the GPU memory of the team, asked for only by templates that show it."""
    user = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return {}
    return {"fleet_memory": SimpleLazyObject(queries.memory)}


def card(view: HostRow) -> dict[str, Any]:
    """One host of the page."""
    return {
        "view": view,
        "host": view.host,
        "facts": view.facts,
        "subtitle": wording.subtitle(view),
        "gpus": [{**wording.gpu_row(gpu), "hold": host_wording.hold(gpu.gpu)} for gpu in view.gpus],
        "ram": wording.ram_row(view),
        "gpu_error": wording.gpu_error(view.facts.get("gpu_error")),
        "engines": [_engine(runtime) for runtime in view.runtimes if runtime.present],
        "gone": [wording.engine(runtime) for runtime in view.runtimes if not runtime.present],
        "searching": view.searching,
        "jobs": view.jobs,
        "hold": host_wording.hold(view.host),
        "trouble": host_wording.trouble(view.host),
        "clock": host_wording.clock(view.host),
        "restarted": host_wording.restarted(view.host),
        "older": host_wording.older_agent(view.host),
        "flags": _flags(view.facts),
        "disks": view.facts.get("disks", []),
    }


def hosts_page(*, may_manage: bool) -> dict[str, Any]:
    cards = [card(view) for view in queries.hosts()]
    return {
        "section": "hosts",
        "silent": [c for c in cards if c["view"].silent],
        "cards": [c for c in cards if not c["view"].silent],
        "may_manage": may_manage,
    }


def host_page(view: HostRow, *, may_manage: bool) -> dict[str, Any]:
    """One host with everything that is known of it."""
    return {
        "section": "hosts",
        "c": card(view),
        "host": view.host,
        "runs": view.runs,
        "strangers": _strangers(view),
        "door": host_wording.door(view.host),
        "may_manage": may_manage and view.host.forgotten_at is None,
    }


def _strangers(view: HostRow) -> list[dict[str, Any]]:
    """Programs on the GPUs that are not Berth's, the largest first."""
    found = [
        {"gpu": gpu.gpu.index, **process}
        for gpu in view.gpus
        for process in gpu.measured.get("processes", [])
        if not process.get("job_id")
    ]
    return sorted(found, key=lambda process: -int(process.get("used_mib") or 0))


def _engine(runtime: Any) -> dict[str, Any]:
    return {"name": wording.engine(runtime), "refusal": wording.refusal(runtime.refusal), "row": runtime}


def _flags(facts: dict[str, Any]) -> list[str]:
    """The CPU's abilities that decide which engines run, newest first."""
    have = set(facts.get("cpu_flags", []))
    wanted = ["amx_tile", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "avx", "sve2", "sve", "bf16", "asimd"]
    return [flag for flag in wanted if flag in have]
