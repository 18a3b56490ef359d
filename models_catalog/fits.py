"""Which of the team's GPUs there are, and on which of them each model fits: the list's word and its filter.

The word is kept with the artifact, and made anew by a task when GPUs, engine or facts changed. The table of one model
is estimate/table.py.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Q, QuerySet
from packaging.version import InvalidVersion, Version

from models_catalog.estimate.kernels import Capability, capability_of
from models_catalog.estimate.machines import answer
from models_catalog.estimate.need import Needs
from models_catalog.estimate.short import short, usual_by_size
from models_catalog.estimate.table import Group, suited
from models_catalog.facts import ModelFacts
from models_catalog.models import Artifact
from panel.fleet import models as fleet
from panel.fleet.runtimes.install_checks import GOOD_VERSION

RULES = "4"  # counted up when the estimate changes, so that kept words are made anew
USUAL_CONTEXT = 8192
COUNTS = (1, 2, 4, 8)
MOST_KINDS, MOST_CPU_KINDS = 12, 3
RAM_STEP_MIB = 4096  # hosts without a GPU whose memory differs by less are one kind
CHUNK = 200
GOOD = ("fits", "tight")


@dataclass
class _Kind:
    """Cards of one name and size: their uuids by host."""

    name: str
    total_mib: int
    capability: Capability | None
    hosts: dict[str, list[str]]


def groups() -> list[Group]:
    """What the team has, the smallest first, of many kinds those with most memory. Two queries."""
    kinds: dict[tuple[str, int], _Kind] = {}
    rows = fleet.Gpu.objects.filter(present=True, host__forgotten_at=None, total_mib__gt=0)
    with_gpu: dict[str, set[tuple[str, int]]] = {}
    told = rows.order_by("host__name", "index").values_list(
        "host__name", "name", "total_mib", "uuid", "measured__compute_capability"
    )
    for host, name, total, uuid, capability in told:
        kind = kinds.setdefault((name, total), _Kind(name, total, capability_of(capability), {}))
        kind.hosts.setdefault(host, []).append(uuid)
        with_gpu.setdefault(host, set()).add((name, total))
    mixed = {host for host, found in with_gpu.items() if len(found) > 1}
    largest = sorted(kinds.values(), key=lambda kind: (kind.total_mib, kind.name))[-MOST_KINDS:]
    return [group for kind in largest for group in _of_kind(kind, mixed)] + _cpu_groups(set(with_gpu))


def _of_kind(kind: _Kind, mixed: set[str]) -> list[Group]:
    largest = max(len(cards) for cards in kind.hosts.values())
    there = sum(len(cards) for cards in kind.hosts.values())
    cards = tuple((host, tuple(uuids)) for host, uuids in kind.hosts.items() if host in mixed)
    return [
        Group(
            kind.name,
            kind.total_mib,
            count,
            tuple(host for host, uuids in kind.hosts.items() if len(uuids) >= count),
            capability=kind.capability,
            there=there,
            cards=cards,
        )
        for count in sorted({n for n in COUNTS if n <= largest} | ({largest} if largest <= 16 else set()))
    ]


def _cpu_groups(with_gpu: set[str]) -> list[Group]:
    found: dict[int, list[str]] = {}
    machines = fleet.Host.objects.filter(ram_total_mib__gt=0).order_by("name").values_list("name", "ram_total_mib")
    for host, ram in machines:
        if host not in with_gpu:
            found.setdefault(ram // RAM_STEP_MIB * RAM_STEP_MIB or ram, []).append(host)
    return [
        Group("CPU", total, 1, tuple(hosts), cpu=True, there=len(hosts))
        for total, hosts in sorted(found.items())[-MOST_CPU_KINDS:]
    ]


def engine_version() -> str:
    """The newest vLLM that is there, else the one that Berth was tested with."""
    found = []
    rows = fleet.Runtime.objects.filter(engine="vllm", present=True, refusal__isnull=True)
    for text in rows.values_list("version", flat=True).distinct():
        try:
            found.append((Version(text), text))
        except InvalidVersion:
            continue
    return max(found)[1] if found else GOOD_VERSION


# --- the list's word --------------------------------------------------------------------------------------------------


def signature(known: list[Group], version: str) -> str:
    """Names what an estimate depends on beside the model."""
    text = repr([RULES, version, *(g.machine for g in known)])
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _stale(mark: str) -> QuerySet[Artifact]:
    return Artifact.objects.filter(~Q(fits_for=mark), copies__present=True).distinct()


def any_stale() -> bool:
    return _stale(signature(groups(), engine_version())).exists()


def freshen() -> int:
    """Make the kept words anew where they are not of today; how many were."""
    known, version = groups(), engine_version()
    mark = signature(known, version)
    done = 0
    while rows := list(_stale(mark).order_by("pk")[:CHUNK]):
        for row in rows:
            row.fits, row.fits_for = word(ModelFacts.from_dict(row.facts), known, version), mark
        Artifact.objects.bulk_update(rows, ["fits", "fits_for"])
        done += len(rows)
    return done


def word(facts: ModelFacts, known: Iterable[Group], version: str) -> dict[str, Any]:
    """{best: verdict, on: [{name, count, cpu, total_mib, verdict, requests}]}: of each kind the fewest GPUs that do.

    `requests` are those of the usual context at the same time; None where that is not known. Where nothing holds it,
    `short` says how much is missing on the largest, and what would help.
    """
    context, known = min(USUAL_CONTEXT, facts.context_length or USUAL_CONTEXT), list(known)
    on: dict[tuple[str, int], dict[str, Any]] = {}
    seen, needs = set(), Needs(facts)
    for group in suited(facts, known):
        kind = (group.name, group.total_mib)
        if kind in on and on[kind]["verdict"] == "fits":
            continue
        told = answer(needs, group.machine, context, version)
        verdict, requests = told.verdict, told.requests.value if told.requests is not None else None
        seen.add(verdict)
        if verdict in GOOD and (kind not in on or verdict == "fits"):
            on[kind] = {
                "name": group.name,
                "count": group.count,
                "cpu": group.cpu,
                "total_mib": group.total_mib,
                "verdict": verdict,
                "requests": int(requests) if requests is not None else None,
            }
    order = ("fits", "tight", "unknown", "does_not_fit")
    best = next((verdict for verdict in order if verdict in seen), "")
    found: dict[str, Any] = {"best": best, "on": list(on.values())[:6]}
    return found | ({"short": _short(needs, known, context, version)} if best == "does_not_fit" else {})


def _short(needs: Needs, known: Iterable[Group], context: int, version: str) -> dict[str, Any]:
    """{name, count, cpu, total_mib, need_gib, have_gib, context, other} of the largest; see estimate/short.py."""
    machines = [group.machine for group in suited(needs.facts, known)] if needs.facts is not None else []
    divided = [one for one in machines if answer(needs, one, context, version).divides]
    most = max(divided or machines, key=lambda one: (not one.cpu, one.total_mib * one.count))
    told = short(needs, most, context, version, usual_by_size())
    other = (
        {"name": told.other.name, "count": told.other.count, "total_mib": told.other.total_mib} if told.other else None
    )
    return {
        "name": most.name, "count": most.count, "cpu": most.cpu, "total_mib": most.total_mib,
        "need_gib": told.need_gib, "have_gib": round(told.have_gib, 2), "context": told.context, "other": other,
    }  # fmt: skip
