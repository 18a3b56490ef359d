"""Why the plan is as it is, in words: where its numbers come from, why this place, and what the others are like.

Nothing is decided here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext as _

from deployments.placement import Placement
from deployments.planner import Outlook
from deployments.preflight import Check, Place, named
from deployments.wording import candidates, words
from models_catalog.estimate import Amount, Plan
from models_catalog.estimate.need import Fit
from models_catalog.estimate.plan import Reason
from models_catalog.estimate.words import say
from panel.core.numbers import approx, ngroup

PLACES_TOLD = 12  # that cannot take it; the others are counted
COUNTED = "requests.fit"  # stands among the counts
DASH = "\u2013"


# --- where its numbers come from --------------------------------------------------------------------------------------


def numbers(check: Check) -> dict[str, Any]:
    """`counts` with their ranges and sources, `said` what the estimate says of this plan; empty where there is none.

    Where nothing fits, those of the place that the bars show, where a short conversation would fit.
    """
    around = check.outlook
    found: Placement | Fit | None = check.placement
    if (found is None or found.plan is None) and around is not None and around.spot is not None:
        found = around.spot.fit
    if found is None or found.plan is None:
        return {}
    plan = found.plan
    return {
        "counts": [*_counts(found, plan)],
        "said": list(dict.fromkeys(sentence(reason) for reason in plan.reasons if reason.code != COUNTED)),
        "shorter": ngroup(plan.context) if check.placement is None and plan.context else "",
    }


def sentence(reason: Reason) -> str:
    """A reason of the estimate in the viewer's language."""
    return say(reason, gettext)


def _counts(found: Placement | Fit, plan: Plan) -> Iterable[dict[str, str]]:
    """What the cache holds: tokens, requests at once, the longest single one."""
    rows = ((_("Tokens that fit"), plan.kv_tokens, 0), (_("Conversations at once"), found.people, 1),
            (_("Longest conversation"), found.longest, 0))  # fmt: skip
    for name, amount, digits in rows:
        if amount is not None and (amount.value is not None or amount.low is not None):
            yield {"name": str(name), "value": told(amount, digits), "why": sentence(amount.reason)}


def told(amount: Amount, digits: int = 1) -> str:
    """ "≈ 15.9 (15.8–16.1)", a plain number where it is exact."""
    span = span_of(amount, digits)
    if amount.value is None:
        return span or "—"
    value = _number(amount.value, digits)
    return approx(f"{value} ({span})") if span else value


def span_of(amount: Amount, digits: int = 2) -> str:
    """ "15.84–16.10"; nothing where it is exact or has no ends."""
    if amount.low is None or amount.high is None or amount.low == amount.high:
        return ""
    return f"{_number(amount.low, digits)}{DASH}{_number(amount.high, digits)}"


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}" if digits else ngroup(value)


# --- why there --------------------------------------------------------------------------------------------------------


def places(check: Check) -> dict[str, Any]:
    """`here` says why the place comes first, `others` are the next that could take it, `refused` those that cannot."""
    if check.placement is None or not check.ok:
        return {"refused": grouped(candidates(check.reason))}
    here = words(check.placement.why.as_dict()) if check.placement.why is not None else None
    others = [{"name": place_name(place), **_other(place.placement)} for place in check.places[1:]]
    more = check.placement.rivals - len(others)
    if more > 0:
        text = ngettext("%(n)s more place could take it.", "%(n)s more places could take it.", more) % {"n": more}
        others.append({"name": _("Others"), "text": text, "hint": ""})
    elsewhere = candidates({"params": {"candidates": named(check.placement.elsewhere)}})
    return {
        "here": here.text if here is not None else "",
        "others": [*_other_count(check), *others],
        "refused": grouped(elsewhere),
    }


def place_name(place: Place) -> str:
    """ "atlas GPU 2 + GPU 3"; of a processor "atlas CPU"."""
    gpus = " + ".join(f"GPU {gpu.index}" for gpu in place.gpus)
    return f"{place.host.name} {gpus or _('CPU')}"


def _other(placement: Placement) -> dict[str, str]:
    said = words(placement.why.as_dict()) if placement.why is not None else None
    return {"text": said.text if said is not None else "", "hint": room(placement)}


def room(placement: Placement) -> str:
    """ "Room for about 3 at once, of 8,192 tokens each." """
    if placement.at_once is None or placement.at_once.value is None or not placement.context:
        return ""
    text = _("Room for about %(people)s at once, of %(context)s tokens each.")
    return text % {"people": ngroup(placement.at_once.value), "context": ngroup(placement.context)}


def _other_count(check: Check) -> list[dict[str, str]]:
    """Another number of GPUs of the same host, as far as the page has asked for it."""
    around: Outlook | None = check.outlook
    effect = next((one for one in around.effects if one.name == "gpu_count"), None) if around is not None else None
    if effect is None or check.host is None or not check.gpus:
        return []
    count = ngettext("%(n)s GPU", "%(n)s GPUs", effect.value) % {"n": effect.value}
    if not effect.fits:
        text, hint = _("It does not fit there now."), ""
    else:
        before, after = effect.people or (None, None)
        text = _("It fits so too.")
        hint = _("Room for about %(n)s at once, instead of %(now)s.") % {"n": ngroup(after), "now": ngroup(before)}
        hint = hint if effect.people is not None else ""
    return [{"name": f"{check.host.name}, {count}", "text": text, "hint": hint}]


def grouped(found: Iterable[Mapping[str, str]]) -> list[dict[str, str]]:
    """Places that say the same stand together; of very many the first are told and the others counted."""
    by_text: dict[tuple[str, str], list[str]] = {}
    for one in found:
        by_text.setdefault((one["text"], one["hint"]), []).append(one["name"])
    rows = [{"name": _names(names), "text": text, "hint": hint} for (text, hint), names in by_text.items()]
    if len(rows) <= PLACES_TOLD:
        return rows
    rest = sum(len(names) for names in list(by_text.values())[PLACES_TOLD:])
    text = ngettext("%(n)s more place cannot take it.", "%(n)s more places cannot take it.", rest) % {"n": rest}
    return [*rows[:PLACES_TOLD], {"name": _("Others"), "text": text, "hint": ""}]


def _names(names: list[str]) -> str:
    """ "lab-1 GPU 0, lab-1 GPU 1 and 5 more"."""
    if len(names) <= 3:
        return ", ".join(names)
    return _("%(names)s and %(n)s more") % {"names": ", ".join(names[:2]), "n": len(names) - 2}
