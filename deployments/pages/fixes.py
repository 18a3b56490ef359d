"""What can be done about a failure, and the story of the attempts, as pages and the API show them: words, numbers,
addresses. Nothing is decided here.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from deployments import setting_words, story
from deployments.fix_words import effect_text, title
from deployments.mending.fix import Fix
from deployments.models import Deployment, Run
from deployments.pages.run import run_row
from deployments.story import Attempt
from deployments.wording import person, words
from panel.core.mask import mask

# Where a fix is done that is no click here: name of the page, whether it is of one thing, the button's word.
PAGES: dict[str, tuple[str, bool, Any]] = {
    "settings": ("deployment-edit", True, gettext_lazy("Open the settings")),
    "install": ("runtime-new", False, gettext_lazy("Install an engine")),
    "plugin": ("runtimes", False, gettext_lazy("Open the engines")),
    "model": ("model", True, gettext_lazy("Open the model")),
    "models": ("models", False, gettext_lazy("Open the models")),
    "code": ("model", True, gettext_lazy("Open the model")),
    "host": ("host", True, gettext_lazy("Open the host")),
    "deployments": ("deployments", False, gettext_lazy("Open the deployments")),
    "second": ("deployment-new", False, gettext_lazy("Deploy it once more")),
    "deployment": ("deployment", True, gettext_lazy("Open this deployment")),
}


def fix_view(row: Deployment, fix: Fix, *, first: bool = False) -> dict[str, Any]:
    """One fix with its button, for who may press it."""
    what, note = title(fix)
    effects = [{"good": effect.good, "text": effect_text(effect)} for effect in fix.effects]
    view: dict[str, Any] = {
        "key": fix.key,
        "kind": fix.kind,
        "code": fix.code,
        "title": what,
        "text": note,
        "effects": effects,
        "command": fix.command,
        "by_click": fix.by_click,
        "first": first,
    }
    if fix.by_click:
        view |= {"post": reverse("deployment-fix", args=[row.pk, fix.key])}
        start = _("Start again") if fix.kind == "again" else _("Apply and start again")
        return {**view, "label": start}
    if fix.link == "repair":
        return {**view, "repair": reverse("model-repair-copy", args=[fix.target]), "label": _("Fetch again")}
    return {**view, **_page(row, fix)}


def _page(row: Deployment, fix: Fix) -> dict[str, Any]:
    if fix.link not in PAGES:
        return {}
    name, of_one, word = PAGES[fix.link]
    if fix.link == "settings":
        field = f"#o-{fix.option}" if fix.option.isidentifier() else ""  # the option's own row, where it has one
        return {"url": reverse(name, args=[row.pk]) + field, "label": str(word)}
    if of_one:
        return {"url": reverse(name, args=[fix.target]), "label": str(word)} if fix.target is not None else {}
    asked = {"install": "host", "second": "artifact"}.get(fix.link)
    query = f"?{asked}={fix.target}" if asked and fix.target is not None else ""
    return {"url": reverse(name) + query, "label": str(word)}


def views(row: Deployment, fixes: Iterable[Fix]) -> list[dict[str, Any]]:
    return [fix_view(row, fix, first=place == 0) for place, fix in enumerate(fixes)]


def whom_to_ask(row: Deployment) -> str:
    """For those who may not: who started it, and who may in any case."""
    who = person(row.wanted_by or row.created_by)
    if not who or who == "Berth":
        return _("Your role does not allow this. An operator or admin of this panel can do it.")
    return _("Your role does not allow this. Ask %(who)s, who started it, or an admin.") % {"who": who}


# --- the story --------------------------------------------------------------------------------------------------------


def attempts(run: Run | None) -> list[dict[str, Any]]:
    """The chain of attempts, the newest first; empty where there was only one."""
    found = story.of(run) if run is not None else []
    return [_attempt(each, first=each is found[-1]) for each in found] if len(found) > 1 else []


def _attempt(each: Attempt, *, first: bool) -> dict[str, Any]:
    run = each.run
    why = words(run.reason) if run.outcome == "failed" else None
    shown = run_row(run)
    return {
        "run": run,
        "badge": shown["badge"],
        "ended": why.text if why else "",
        "changed": "" if first else _changed(each),
        "by_itself": bool(each.why.get("by_itself")),
    }


def _changed(each: Attempt) -> str:
    """What was changed before this attempt, as the fix is called, else setting by setting."""
    if each.why.get("fix"):
        return title(Fix("patch", str(each.why["fix"]), each.why.get("params") or {}))[0]
    if not each.changes:
        return _("the same settings")
    return "; ".join(_pair(name, *pair) for name, pair in list(each.changes.items())[:3])


def _pair(name: str, before: Any, after: Any) -> str:
    hidden = [mask({name: value})[name] for value in (before, after)]
    before, after = (setting_words.value(name, each) for each in hidden)
    return f"{setting_words.named(name).label}: {before} → {after}"


def note(row: Deployment, fixes: Iterable[Mapping[str, Any]]) -> str:
    """What a click does, said once below the fixes."""
    assert row.revision is not None
    clicks = sum(1 for fix in fixes if fix.get("post") and fix["kind"] == "patch")
    if not clicks:
        return ""
    text = ngettext(
        "It makes settings number %(n)s and keeps these. You can go back with one click.",
        "Each of them makes settings number %(n)s and keeps these. You can go back with one click.",
        clicks,
    )
    return text % {"n": row.revision.number + 1}
