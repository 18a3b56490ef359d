"""The words of fixes in the viewer's language: what each is called, what to know of it, what it brings and costs."""

from typing import Any

from django.utils.translation import gettext
from django.utils.translation import gettext as _

from deployments.codes_fixes import EFFECTS, FIXES
from deployments.mending.fix import Effect, Fix
from deployments.wording import FIXED_WHERE, label_of
from panel.core.mask import mask
from panel.core.numbers import ngroup
from panel.core.wording import Words, fill, said


def title(fix: Fix) -> tuple[str, str]:
    """(what to do, what to know of it)."""
    if not fix.code:
        return fill(gettext(fix.text), dict(fix.params)).rstrip("."), str(FIXED_WHERE.get(fix.kind, ""))
    found = said(FIXES, {"code": fix.code, "params": _params(fix)})
    own = fill(gettext(fix.text), dict(fix.params)) if fix.text and fix.kind != "settings" else ""
    return found.text.rstrip("."), own or found.hint


def _params(fix: Fix) -> dict[str, Any]:
    values = {name: value if name.endswith("mib") else shown(value) for name, value in mask(dict(fix.params)).items()}
    names = [label_of(str(name)) for name in fix.params.get("names") or [] if isinstance(name, str)]
    quoted = [_("“%(name)s”") % {"name": name} for name in names]
    known = {"label": label_of(str(fix.params.get("name") or "")), "labels": ", ".join(quoted)}
    if isinstance(fix.params.get("known"), list):
        known["known"] = ", ".join(map(str, fix.params["known"]))
    return {**values, **known} if not fix.code.startswith("change.") else values


def shown(value: Any) -> Any:
    if isinstance(value, bool):
        return _("on") if value else _("off")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return ngroup(value) if isinstance(value, int) and abs(value) >= 10_000 else value


def effect_text(effect: Effect) -> str:
    return said(EFFECTS, {"code": effect.code, "params": dict(effect.params)}).text


def in_sentences(fix: Fix) -> Words:
    """The same in running text: what to do; then what to know of it, with what it brings and costs."""
    what, note = title(fix)
    rest = [note, *(f"{effect_text(effect)}." for effect in fix.effects)]
    return Words(fix.code, f"{what}.", " ".join(text for text in rest if text))
