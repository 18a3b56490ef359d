"""Whether a model fits equal GPUs of one host, or its processor, when nothing else uses them. Pure.

The same question as the planner's with an empty host: what a GPU can compute, how the model divides, and the memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from models_catalog.estimate import alone, gpus, kernels
from models_catalog.estimate.gpus import Gpu
from models_catalog.estimate.kernels import Capability
from models_catalog.estimate.need import DEFAULTS, VERDICTS, Needs, Setting, Wish
from models_catalog.estimate.plan import Amount, Reason, Verdict

# Cards that a team may think of getting, as makers call them, the smallest first.
USUAL: tuple[tuple[str, Capability], ...] = (
    ("L4", (8, 9)),
    ("RTX 3090", (8, 6)),
    ("RTX 4090", (8, 9)),
    ("RTX 5090", (12, 0)),
    ("L40S", (8, 9)),
    ("H100 80 GB", (9, 0)),
    ("A100 80 GB", (8, 0)),
    ("RTX PRO 6000", (12, 0)),
    ("H200", (9, 0)),
    ("B200", (10, 0)),
)


@dataclass(frozen=True)
class Machine:
    """`total_mib` is that of each GPU; `cpu`: of the machine, and there is no GPU to use."""

    name: str
    total_mib: int
    count: int = 1
    cpu: bool = False
    capability: Capability | None = None


@dataclass(frozen=True)
class Answer:
    """`requests` of the context at the same time; `reasons` begin with why not, where it does not fit."""

    verdict: Verdict
    requests: Amount | None = None
    reasons: tuple[Reason, ...] = ()
    divides: bool = True  # False: not into so many parts, whatever their memory
    need_gib: float | None = None  # of each GPU, or of the machine, as far as that is known


def answer(needs: Needs, machine: Machine, context: int, version: str) -> Answer:
    """For one request of so many tokens at least."""
    wish = Wish(context, must=context)
    if machine.cpu:
        return _on_cpu(needs, machine, wish, version)
    if reason := _no_kernel(needs, machine, version):
        return Answer("does_not_fit", reasons=(reason,))
    torn = kernels.split_group(needs.facts, DEFAULTS, machine.count, whole_experts=False)
    if torn is not None:
        params = {"group": torn[0], "width": torn[1], "tp": machine.count}
        return Answer("does_not_fit", reasons=(Reason("tp.groups", params),), divides=False)
    setting = Setting(Gpu(machine.name, total_gib=machine.total_mib / 1024), version, tp=machine.count)
    fit = alone.on_gpus(needs, wish, setting, machine.total_mib, machine.count).fit
    reasons = fit.plan.reasons if fit.plan is not None else ()
    refused = fit.plan is not None and not fit.plan.ranks and fit.level == "no"
    return Answer(VERDICTS[fit.level], fit.people, reasons, divides=not refused, need_gib=fit.need_gib)


def _on_cpu(needs: Needs, machine: Machine, wish: Wish, version: str) -> Answer:
    weights = (needs.facts.weight_bytes if needs.facts is not None else None) or 0
    setting = Setting(Gpu("CPU", cpu=True), version)
    given = alone.on_cpu(needs, wish, setting, weights, machine.total_mib)
    if given.fit.level != "no" and given.need_mib > machine.total_mib:
        params = {"need": round(given.need_mib / 1024, 2), "free": round(machine.total_mib / 1024, 2)}
        return Answer("does_not_fit", reasons=(Reason("ram.too_small", params),), need_gib=given.need_mib / 1024)
    reasons = given.fit.plan.reasons if given.fit.plan else ()
    return Answer(VERDICTS[given.fit.level], given.fit.people, reasons, need_gib=given.need_mib / 1024)


def _no_kernel(needs: Needs, machine: Machine, version: str) -> Reason | None:
    found = kernels.lacking(machine.capability, needs.facts, DEFAULTS, version)
    if found is None or machine.capability is None:
        return None
    what, least = found
    have, need = (".".join(map(str, number)) for number in (machine.capability, least))
    return Reason("gpu.capability", {"what": what, "have": have, "need": need})


def usual(owned: list[str]) -> list[Machine]:
    """GPUs that many have, without those that are called like one of these."""
    kinds = {_kind(name) for name in owned}
    found = []
    for name, capability in USUAL:
        total = gpus.total_gib(Gpu(name))
        if total is not None and _kind(name) not in kinds:
            found += [Machine(name, round(total * 1024), count, capability=capability) for count in (1, 2)]
    return found


def _kind(name: str) -> str:
    """Equal for names of one kind of card, as the driver and makers write them; the name itself of others."""
    return next((pattern for pattern, *_rest in gpus.KNOWN if re.search(pattern, name.upper())), name)
