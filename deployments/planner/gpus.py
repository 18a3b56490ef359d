"""Places on the GPUs of one host: which cards, and what share of each. Pure.

The share is the person's, or what the need takes: the usual one where it is free, less beside something else, more
where the usual one does not hold the need. What a card can give is the least of what nobody has claimed and what is
free in this moment, less what the driver takes before the engine counts. MiB are whole numbers of 2^20 bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deployments.engines.base import Reason
from deployments.placement import DEFAULT_UTILISATION, GpuView, HostView
from deployments.planner import rules
from deployments.planner.search import Open, Search, Spot
from models_catalog.estimate import Gpu
from models_catalog.estimate.alone import GPU_SLACK_MIB, claim_mib, is_free_at_start, most_share, share_for
from models_catalog.estimate.need import MOST_SHARE, Setting

RUNS_MORE_MIB = 512  # a run holds so much beyond its claim: the driver's context
USERS_TOLD = 5


@dataclass(frozen=True)
class _Offer:
    """What one GPU can give, as a share of it; `squeezed`: less than the usual."""

    gpu: GpuView
    share: float
    most: float
    squeezed: bool


def spots(search: Search, place: Open, wanted: int) -> list[Spot]:
    """All sorts of places here for so many GPUs, the best cards of each kind; notes the reasons of the rest."""
    spec, host, asked = search.spec, place.host, search.asked
    pool = _pool(search, host, place.runtime.facts.version)
    if spec.gpu_uuids and len(pool) < wanted:
        return []  # each picked GPU has said why not
    if len(pool) < wanted:
        if pool:
            search.refuse(host, "gpu.too_few", wanted=wanted, have=len(pool))
        return []
    tp, pp, dp = asked.parts(wanted)
    if reason := rules.divides(search.estimator.facts, search.model_facts, asked, tp, pp):
        search.note(host, reason)
        return []
    found = []
    for cards in _kinds(search, pool, wanted):
        smallest = min(cards, key=lambda gpu: gpu.total_mib)
        kind = Gpu(smallest.name, total_gib=smallest.total_mib / 1024)
        version = place.runtime.facts.version
        taught = search.estimator.lessons.get((host.id, version, smallest.name, tp)) if pp * dp == 1 else None
        setting = Setting(kind, version, tp, pp, dp, taught)
        offers = [offer for gpu in cards if (offer := _offer(search, host, gpu, setting, wanted)) is not None]
        if len(offers) >= wanted:
            found.append(_spot(search, place, setting, _chosen(search, offers, wanted)))
    return found


def gpu_count(search: Search) -> int:
    """GPUs to take: those picked, else the parts that the options cut the model into, else `gpu_count`."""
    spec, asked = search.spec, search.asked
    return len(spec.gpu_uuids) or max((asked.tp or 1) * asked.pp * asked.dp, spec.gpu_count)


# --- which cards -----------------------------------------------------------------------------------------------------


def _pool(search: Search, host: HostView, version: str) -> list[GpuView]:
    """The GPUs that may be looked at: the picked ones, or all that are there, not set aside, and able to compute it."""
    picked = search.spec.gpu_uuids
    known = {gpu.uuid: gpu for gpu in host.gpus}
    for uuid in picked:
        if uuid not in known or not known[uuid].present:
            search.refuse(host, "gpu.gone", uuid, uuid=uuid)
    if not picked and not any(gpu.present for gpu in host.gpus):
        search.refuse(host, "gpu.none")
    pool = []
    for gpu in host.gpus:
        if not gpu.present or (picked and gpu.uuid not in picked):
            continue
        reason = rules.capability_reason(gpu, search.asked, search.estimator.facts, version)
        if not gpu.schedulable:
            code = "gpu.paused_for" if gpu.aside_note else "gpu.paused"
            search.refuse(host, code, gpu.uuid, index=gpu.index, note=gpu.aside_note)
        elif reason is not None:
            search.note(host, reason, gpu.uuid)
        else:
            pool.append(gpu)
    return pool


def _kinds(search: Search, pool: Sequence[GpuView], wanted: int) -> list[list[GpuView]]:
    """Cards to choose among: those of one kind, since the slowest and the smallest sets the pace for all."""
    if search.spec.gpu_uuids:
        return [sorted(pool, key=lambda gpu: search.spec.gpu_uuids.index(gpu.uuid))]
    by_kind: dict[tuple[str, int], list[GpuView]] = {}
    for gpu in pool:
        by_kind.setdefault((gpu.name, gpu.total_mib), []).append(gpu)
    alike = [cards for cards in by_kind.values() if len(cards) >= wanted]
    return alike or [list(pool)]


def _chosen(search: Search, offers: list[_Offer], wanted: int) -> list[_Offer]:
    """The emptiest, several of them joined by a fast link where that is possible; picked ones in their order."""
    if search.spec.gpu_uuids:
        return offers
    full_first = search.asked.need.priority == "fit"

    def order(offer: _Offer) -> tuple[Any, ...]:
        free = offer.gpu.free_mib / offer.gpu.total_mib
        return (offer.squeezed and not full_first, free if full_first else -free, -offer.gpu.total_mib, offer.gpu.index)

    ranked = sorted(offers, key=order)
    if wanted == 1:
        return ranked[:1]
    for first in ranked:
        peers = [offer for offer in ranked if offer is not first and rules.fast_link([first.gpu, offer.gpu])]
        joined = [first, *peers[: wanted - 1]]
        if len(joined) == wanted and rules.fast_link([offer.gpu for offer in joined]):
            return joined
    return ranked[:wanted]


def _spot(search: Search, place: Open, setting: Setting, offers: Sequence[_Offer]) -> Spot:
    cards = tuple(offer.gpu for offer in offers)
    share = min(offer.share for offer in offers)
    linked = rules.fast_link(cards)
    kinds = sorted({gpu.name for gpu in cards})
    notes = [Reason("gpu.mixed_kinds", {"names": kinds})] if len(kinds) > 1 else []
    if linked is False and setting.tp > 1:
        notes.append(Reason("gpu.slow_link", {"gpus": len(cards)}))
    notes += rules.capability_notes(cards, search.asked, search.estimator.facts)
    return Spot(
        place.host,
        place.copy,
        place.runtime,
        setting,
        share,
        max(share, min(offer.most for offer in offers)),
        cards,
        squeezed=any(offer.squeezed for offer in offers),
        linked=linked,
        fit=search.estimator.fit(search.asked, setting, share),
        notes=tuple(notes),
    )


# --- what share ------------------------------------------------------------------------------------------------------


def _offer(search: Search, host: HostView, gpu: GpuView, setting: Setting, wanted: int) -> _Offer | None:
    """None with the card's reason noted."""
    asked, estimator = search.asked, search.estimator
    most, usual = _most_share(gpu, wanted), DEFAULT_UTILISATION
    if asked.utilisation is not None:
        return _as_said(search, host, gpu, setting, wanted, asked.utilisation)
    fit = estimator.fit(asked, setting, usual)
    if fit.level == "unknown":
        return _as_said(search, host, gpu, setting, wanted, usual)
    if asked.need.priority == "fit":
        least = estimator.least_share(asked, setting, sure=True) or estimator.least_share(asked, setting)
        if least is not None and least <= most:
            return _Offer(gpu, least, most, squeezed=False)
    roomy, least = _room(gpu, usual, wanted), estimator.least_share(asked, setting)
    wish = estimator.wish(asked, setting.version)
    share = share_for(estimator.needs, wish, setting, roomy=roomy, most=most)
    if share is not None:
        as_usual = share == usual and roomy
        return _Offer(gpu, share, most, squeezed=not as_usual and least is not None and least <= usual)
    if least is None and fit.level == "unlikely":
        return _as_said(search, host, gpu, setting, wanted, usual)
    if least is None:
        _too_small(search, host, gpu, setting, wanted)
    else:
        _held(search, host, gpu, claim_mib(gpu.total_mib, least), utilisation=least)
    return None


def _as_said(
    search: Search, host: HostView, gpu: GpuView, setting: Setting, wanted: int, share: float
) -> _Offer | None:
    """With exactly this share, or not at all."""
    fit = search.estimator.fit(search.asked, setting, share)
    if fit.level == "no":
        _too_small(search, host, gpu, setting, wanted, share)
        return None
    if _room(gpu, share, wanted):
        return _Offer(gpu, share, max(share, _most_share(gpu, wanted)), squeezed=False)
    facts: dict[str, Any] = {"utilisation": share}
    if smaller := _smaller_share(search, gpu, setting, wanted):
        facts["fits_utilisation"] = smaller
    _held(search, host, gpu, claim_mib(gpu.total_mib, share), **facts)
    return None


def _room(gpu: GpuView, share: float, wanted: int) -> bool:
    """Whether so much is neither claimed nor used, and will be free when the engine looks."""
    need = claim_mib(gpu.total_mib, share)
    return (
        gpu.total_mib > 0
        and gpu.free_mib + GPU_SLACK_MIB >= need
        and gpu.reserved_mib + need <= gpu.total_mib
        and is_free_at_start(gpu.total_mib, gpu.used_mib, share, wanted)
    )


def _most_share(gpu: GpuView, wanted: int) -> float:
    """The largest share that Berth would choose on this card now, in hundredths; 0 when that is no room at all."""
    runs = len(gpu.claims) or (1 if gpu.reserved_mib else 0)
    unclaimed = gpu.total_mib - gpu.reserved_mib - gpu.others_mib - RUNS_MORE_MIB * runs
    return most_share(gpu.total_mib, min(unclaimed, gpu.total_mib - gpu.used_mib), wanted)


def usual_share(cards: Sequence[GpuView]) -> tuple[float, bool]:
    """What a need that is small would be given of these cards, and whether that is free as it is."""
    wanted = len(cards)
    if all(_room(gpu, DEFAULT_UTILISATION, wanted) for gpu in cards):
        return DEFAULT_UTILISATION, True
    return min(DEFAULT_UTILISATION, *(_most_share(gpu, wanted) for gpu in cards)), False


def _smaller_share(search: Search, gpu: GpuView, setting: Setting, wanted: int) -> float:
    """The largest share that would fit now, as the engine's option shows it; 0 when that would not hold it."""
    share = _most_share(gpu, wanted)
    if not share or search.estimator.fit(search.asked, setting, share).level in ("no", "unlikely"):
        return 0.0
    weights_mib = int(search.model_facts.get("weight_bytes") or 0) / 2**20 / wanted
    return share if share * gpu.total_mib > weights_mib else 0.0


# --- why not ---------------------------------------------------------------------------------------------------------


def _held(search: Search, host: HostView, gpu: GpuView, need: int, **more: Any) -> None:
    """Something else has the memory: runs of ours, strangers, or nobody knows who."""
    facts: dict[str, Any] = {"index": gpu.index, "need_mib": need, "free_mib": gpu.free_mib, "total_mib": gpu.total_mib}
    facts |= more
    if gpu.reserved_mib and (gpu.reserved_mib + need > gpu.total_mib or gpu.reserved_mib > gpu.others_mib):
        names = sorted({claim.name for claim in gpu.claims if claim.name})
        search.refuse(host, "gpu.reserved", gpu.uuid, reserved_mib=gpu.reserved_mib, runs=names, **facts)
    elif gpu.others:
        users = [asdict(user) for user in sorted(gpu.others, key=lambda u: -(u.used_mib or 0))[:USERS_TOLD]]
        facts |= {"used_mib": gpu.others_mib, "users": users, "programs": len(gpu.others)}
        search.refuse(host, "gpu.used_by_others", gpu.uuid, **facts)
    else:
        search.refuse(host, "gpu.busy", gpu.uuid, used_mib=gpu.used_mib, **facts)


def _too_small(
    search: Search, host: HostView, gpu: GpuView, setting: Setting, wanted: int, share: float = MOST_SHARE
) -> None:
    """Even alone on the card it would not fit."""
    fit = search.estimator.fit(search.asked, setting, share)
    need = math.ceil(fit.need_gib * 1024) if fit.need_gib is not None else None
    params: dict[str, Any] = {"index": gpu.index, "name": gpu.name, "total_mib": gpu.total_mib, "gpus": wanted}
    params |= {"need_mib": need, "given_mib": claim_mib(gpu.total_mib, share)}
    params |= {"context": search.asked.must(setting.version, search.estimator.longest) or fit.context}
    params |= {"people": search.asked.need.people or 1}
    code = "gpu.too_small" if wanted == 1 else "gpu.too_small_each"
    if search.asked.utilisation is not None and share < MOST_SHARE:
        code = "gpu.share_too_small"
    search.refuse(host, code, gpu.uuid, **params)
