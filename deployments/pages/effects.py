"""What another value of a setting would do to memory, in the words beside it on the deploy page."""

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from deployments.planner import Effect, Outlook
from panel.core.numbers import NBSP, ngroup

MINUS = "\u2212"


def _names() -> dict[str, str]:
    """Parts of a bar, as they stand within a sentence."""
    return {
        "w": _("weights"),
        "a": _("activations"),
        "g": _("CUDA graphs"),
        "o": _("overhead"),
        "k": _("KV cache"),
    }


def texts(around: Outlook) -> dict[str, str]:
    """{option: sentence} of the settings whose effect is known at this place."""
    found = {effect.name: said(effect) for effect in around.effects}
    if "gpu_count" in found:
        found["tensor_parallel_size"] = found["gpu_count"]
    return found | _cache(around)


def said(effect: Effect) -> str:
    """ "64 instead of 256: activations − 0.3 GiB, KV cache + 0.3 GiB, room for about 15 instead of 14"."""
    lead = _value(effect.value)
    if effect.now is not None and not isinstance(effect.now, bool):
        lead = _("%(value)s instead of %(now)s") % {"value": lead, "now": _value(effect.now)}
    if not effect.fits:
        return _("%(value)s: not possible there now.") % {"value": lead}
    names = _names()
    parts = [f"{names[kind]} {_signed(size)}" for kind, size in effect.parts.items()]
    if effect.people is not None and effect.people[0] != effect.people[1]:
        before, after = effect.people
        parts.append(
            _("room for about %(after)s instead of %(before)s") % {"after": ngroup(after), "before": ngroup(before)}
        )
    if effect.helps:
        parts.append(_("then it fits"))
    if not parts:
        return _("%(value)s: changes nothing of the memory here.") % {"value": lead}
    return _("%(value)s: %(what)s.") % {"value": lead, "what": ", ".join(parts)}


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return pgettext("a switch", "On") if value else pgettext("a switch", "Off")
    return ngroup(value) if isinstance(value, int) else str(value)


def _signed(size: float) -> str:
    return f"{MINUS if size < 0 else '+'}{NBSP}{abs(size):.1f}{NBSP}GiB"


def _cache(around: Outlook) -> dict[str, str]:
    """What the settings of the cache's size come to now."""
    spot = around.spot
    if spot is None or spot.fit.plan is None or not spot.fit.plan.ranks:
        return {}
    plan, found = spot.fit.plan, {}
    cache, blocks = plan.ranks[0].kv.value, plan.kv_tokens.reason.params.get("blocks")
    if cache is not None:
        found["kv_cache_memory_bytes"] = _("Now about %(gib)s GiB.") % {"gib": f"{cache:.1f}"}
    if blocks:
        found["num_gpu_blocks_override"] = _("Now about %(n)s.") % {"n": ngroup(blocks)}
    if spot.gpus:
        total = min(gpu.total_mib for gpu in spot.gpus) / 1024
        told = {"now": f"{spot.share:.2f}", "most": f"{spot.most:.2f}", "gib": f"{total / 100:.1f}"}
        found["gpu_memory_utilization"] = (
            _("Now %(now)s; at most %(most)s is free there. Each 0.01 is about %(gib)s GiB of KV cache.") % told
        )
    return found
