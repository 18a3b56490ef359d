"""What people say about a model: notes, tags, licence, approval, trust in its code. One transaction each, audited."""

import hashlib
import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from models_catalog import events
from models_catalog.models import CatalogModel, Copy
from panel import audit
from panel.accounts.access import require
from panel.accounts.actor import SYSTEM_ROLE, as_actor, name_of
from panel.accounts.models import Role
from panel.core.errors import Conflict, Denied, Invalid

MAX_NOTES = 10_000  # characters
MAX_TAGS, MAX_TAG = 20, 40
LICENCE, ADDRESS = 100, 500

Pins = list[list[str]]


def _locked(model: CatalogModel) -> CatalogModel:
    return CatalogModel.objects.select_for_update().get(pk=model.pk)


# --- notes and tags ---------------------------------------------------------------------------------------------------


def clean_tags(tags: Iterable[str]) -> list[str]:
    """Trimmed, each once, whatever its capitals. Raises Invalid."""
    kept: dict[str, str] = {}
    for tag in tags:
        text = " ".join(str(tag).split())
        if text:
            kept.setdefault(text.casefold(), text)
    if len(kept) > MAX_TAGS or any(len(tag) > MAX_TAG or not tag.isprintable() or "," in tag for tag in kept.values()):
        text = _("At most %(n)s tags of %(long)s characters each, without commas.")
        raise Invalid({"tags": text % {"n": MAX_TAGS, "long": MAX_TAG}})
    return list(kept.values())


def describe(
    model: CatalogModel,
    *,
    actor: Any,
    notes: str | None = None,
    tags: Iterable[str] | None = None,
    licence: str | None = None,
    source_url: str | None = None,
) -> CatalogModel:
    """Write what is given; None leaves a field as it is. The same again changes nothing. Raises Invalid."""
    require(actor, "models.describe", model)
    wanted: dict[str, Any] = {}
    if tags is not None:
        wanted["tags"] = clean_tags(tags)
    for name, text, most in (
        ("notes", notes, MAX_NOTES),
        ("licence", licence, LICENCE),
        ("source_url", source_url, ADDRESS),
    ):
        if text is None:
            continue
        wanted[name] = text.strip().replace("\r\n", "\n")
        if len(wanted[name]) > most or "\x00" in text:
            raise Invalid({name: _("At most %(n)s characters.") % {"n": most}})
    url = wanted.get("source_url")
    if url and (not url.startswith(("https://", "http://")) or not url.isprintable() or " " in url):
        raise Invalid({"source_url": _("Give the whole address, beginning with https://.")})
    return _describe(model, wanted, actor)


@transaction.atomic
def _describe(model: CatalogModel, wanted: dict[str, Any], actor: Any) -> CatalogModel:
    row = _locked(model)
    before = {name: getattr(row, name) for name in wanted if getattr(row, name) != wanted[name]}
    if not before:
        return row
    for name in before:
        setattr(row, name, wanted[name])
    if "notes" in before:
        row.notes_by, row.notes_at = (name_of(actor), timezone.now()) if row.notes else ("", None)
    row.save(update_fields=[*before, "notes_by", "notes_at", "updated_at"])
    after = {name: wanted[name] for name in before}
    audit.record("model.described", row, actor=actor, before=before, after=after)
    transaction.on_commit(events.announce, robust=True)
    return row


def came_by(model: CatalogModel, *, by: str, since: datetime, host: str, place: str, source_url: str = "") -> None:
    """Note who had a model fetched, and from where. One that was in the catalog before `since` keeps its own story."""
    told = {"how": "downloaded", "host": host, "place": place}
    rows = CatalogModel.objects.filter(pk=model.pk)
    rows.filter(created_at__gte=since, added_by="").update(added_by=by[:150], added_from=told)
    rows.filter(source_url="").update(source_url=source_url[:ADDRESS])


# --- approval ---------------------------------------------------------------------------------------------------------


class NotApproved(Denied):
    code = "model.not_approved"
    message: Any = _("%(model)s is not approved, and people who can deploy may only use approved models here.")
    hint: Any = _("An admin can approve it on the model's page.")


def approve(model: CatalogModel, approved: bool, *, actor: Any) -> bool:
    """An admin approves a model for all, or withdraws that. What runs goes on. False when it was so already."""
    require(actor, "models.approve", model)
    with transaction.atomic():
        row = _locked(model)
        if row.approved == approved:
            return False
        row.approved = approved
        row.approved_by, row.approved_at = (name_of(actor), timezone.now()) if approved else ("", None)
        row.save(update_fields=["approved", "approved_by", "approved_at", "updated_at"])
        audit.record("model.approved" if approved else "model.approval_withdrawn", row, actor=actor)
        transaction.on_commit(events.announce, robust=True)
    return True


def may_deploy(model: CatalogModel, actor: Any) -> bool:
    """Whether this person may deploy it, as far as approval goes."""
    if model.approved or not settings.BERTH_APPROVED_MODELS_ONLY:
        return True
    return actor is None or as_actor(actor).role in (Role.ADMIN, SYSTEM_ROLE)


def check_approved(model: CatalogModel, actor: Any) -> None:
    """Raises NotApproved. Restarts by the restart policy are nobody's act and are not asked."""
    if not may_deploy(model, actor):
        raise NotApproved(params={"model": model.name})


# --- its own program code ---------------------------------------------------------------------------------------------


def code_of(copies: Iterable[Copy]) -> Pins:
    """[[file, SHA-256], …] of the program code of copies that are there; a sum is "" where none is known."""
    found = {(str(name), str(sum_)) for copy in copies if copy.present for name, sum_ in _code(copy)}
    return [list(pair) for pair in sorted(found)]


def _code(copy: Copy) -> Pins:
    """What was found before sums were taken has none."""
    if "code" in copy.extra or not copy.artifact.facts.get("needs_remote_code"):
        return copy.extra.get("code") or []
    return [[name, ""] for name in copy.artifact.facts.get("code_files", [])]


def digest(code: Pins) -> str:
    """Stands for one list of code in a form, so that nobody allows what they did not see."""
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()[:32]


def copies_of(model: CatalogModel) -> list[Copy]:
    return list(Copy.objects.filter(artifact__model=model, present=True).select_related("artifact"))


def set_remote_code(model: CatalogModel, allowed: bool, *, actor: Any, seen: str | None = None) -> bool:
    """Allow or forbid that engines run the model's own code. False when it was so already.

    Allowed are the files as they are now, by their sums; a scan that finds others withdraws it. `seen` is the digest
    of the list that the admin looked at: Conflict when it is another one by now, or a sum is not known.
    """
    require(actor, "models.trust", model)
    with transaction.atomic():
        row = _locked(model)
        copies = copies_of(row) if allowed else []
        pins = code_of(copies)
        if allowed:
            _check_code(pins, seen, elsewhere_of(copies))
        if row.allow_remote_code == allowed and row.code_pins == pins:
            return False
        before = {"allowed": row.allow_remote_code}
        row.allow_remote_code, row.code_pins, row.code_withdrawn = allowed, pins, []
        row.code_by, row.code_at = name_of(actor), timezone.now()
        row.save(update_fields=["allow_remote_code", "code_pins", "code_withdrawn", "code_by", "code_at", "updated_at"])
        verb = "model.code_allowed" if allowed else "model.code_forbidden"
        after = {"allowed": allowed, **({"files": dict(pins[:50])} if pins else {})}
        audit.record(verb, row, actor=actor, before=before, after=after)
        transaction.on_commit(events.announce, robust=True)
    return True


def elsewhere_of(copies: Iterable[Copy]) -> list[str]:
    """Repositories that the configuration of these copies takes code from. No sum of that is known."""
    return sorted({str(place) for copy in copies for place in copy.artifact.facts.get("code_elsewhere") or []})


def _check_code(pins: Pins, seen: str | None, elsewhere: list[str]) -> None:
    if elsewhere:
        text = _("This model takes code from %(places)s, which does not lie beside it and cannot be compared.")
        hint = _(
            "Copy those files into its folder, name them in its configuration without the part before “--”, then look"
            " for models again."
        )
        raise Conflict("model.code_elsewhere", text, hint, params={"places": ", ".join(elsewhere[:5])})
    if seen is not None and seen != digest(pins):
        text = _("The model's code is not the one that was shown here any more.")
        raise Conflict("model.code_changed", text, _("Look at the list again, then decide."))
    if unknown := [name for name, sum_ in pins if not sum_]:
        text = _("What %(file)s holds is not known, so it cannot be allowed.")
        hint = _("Look for models again. A file of more than a few MiB is no code that Berth can compare.")
        raise Conflict("model.code_unknown", text, hint, params={"file": unknown[0]})


def withdraw_changed(models: Iterable[int]) -> None:
    """End the trust in models whose code is not what was allowed. Part of a scan's transaction."""
    rows = CatalogModel.objects.select_for_update().filter(pk__in=list(models), allow_remote_code=True).order_by("pk")
    for row in rows:
        code = code_of(copies_of(row))
        if row.code_at is None and all(sum_ for _name, sum_ in code):  # allowed before sums were kept: these are they
            row.code_pins, row.code_at = code, timezone.now()
            row.save(update_fields=["code_pins", "code_at", "updated_at"])
            continue
        pins = {tuple(pair) for pair in row.code_pins}
        changed = [name for name, sum_ in code if (name, sum_) not in pins or not sum_]
        if not changed:
            continue
        withdraw(row, list(dict.fromkeys(changed))[:50])
        audit.record("model.code_withdrawn", row, actor=None, files=row.code_withdrawn)


def withdraw(row: CatalogModel, files: list[str]) -> None:
    """End the trust in a locked row's code. The record is the caller's."""
    row.allow_remote_code, row.code_pins = False, []
    row.code_withdrawn, row.code_at = files, timezone.now()
    row.save(update_fields=["allow_remote_code", "code_pins", "code_withdrawn", "code_at", "updated_at"])
