"""Settings of a deployment by the names and values that people see in the form, whoever shows them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _

from deployments.fix_words import shown
from deployments.fix_words import title as fix_title
from deployments.mending.fix import Fix
from deployments.wording import label_of
from panel.audit.names import VALUES

INNER = ("options.", "restart.")


@dataclass(frozen=True)
class Named:
    """`flag` is what the engine calls it, for whoever points at the label; "" for settings of Berth."""

    label: str
    flag: str = ""


def named(name: str) -> Named:
    """A setting by its dotted name in a difference (spec.diff)."""
    if name.startswith("env_secrets."):
        return Named(_("Secret for %(name)s") % {"name": name[12:]})
    if name.startswith("env."):
        return Named(_("Variable %(name)s") % {"name": name[4:]})
    if name.startswith("options."):
        leaf = name[8:]
        flag = "--" + leaf.split(".")[0].replace("_", "-")
        label = label_of(leaf)
        return Named(flag if label == leaf else label, flag)
    return Named(label_of(name.removeprefix("restart.")))


def value(name: str, value: Any) -> str:
    """As the form says it."""
    if value in (None, "", []):
        return "–"
    if isinstance(value, list):
        return " ".join(map(str, value))
    known = VALUES.get(name.rpartition(".")[2], {}) if not name.startswith("options.") else {}
    return str(known.get(value, value)) if isinstance(value, str) else str(shown(value))


def of_record(verb: str, name: str) -> str:
    """What a record of this room names."""
    if not verb.startswith(("deployment.", "run.")):
        return ""
    if verb == "run.judged" and name == "right":
        return _("Was this right?")
    return named(name).label if "." in name else ""


def say(fact: str, code: str, params: Mapping[str, Any]) -> str:
    """The sentence of a code that a record of this room keeps."""
    from deployments.pages.failed import title_of

    return fix_title(Fix("patch", code, dict(params)))[0] if fact == "fix" else title_of(code)
