"""Secrets of a pasted command: offered to the store of secrets, and named in the settings once they are there.

What was pasted is shown again without its secrets. Until somebody clicks, an offer carries its secret through the page
sealed with the panel's key, for this person and a few minutes alone: nothing is stored that nobody asked for.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from time import time
from typing import Any

from django.db import transaction
from django.utils.translation import gettext_lazy as _

from deployments.pasting.draft import Draft
from deployments.pasting.secret_names import secret_variable
from deployments.pasting.start import Finding
from panel.accounts import secret_store
from panel.accounts.access import can
from panel.accounts.actor import as_actor
from panel.accounts.models import Secret
from panel.core.crypto import CannotUnseal, seal, unseal
from panel.core.errors import Conflict, NotFound

VALID_S = 3600.0
# What is said of a secret that was left out, and of one that can be kept.
LEFT_OUT = {"paste.secret_hub": "paste.secret_offered", "paste.secret_variable": "paste.secret_variable_offered"}
LONGEST = 100_000  # characters of what a page sends back


@dataclass(frozen=True)
class Offer:
    """A secret of the text that an engine can be given in `variable`. `there`: one of this name is stored already."""

    variable: str
    name: str
    value: str = field(default="", repr=False)
    there: bool = False


@dataclass(frozen=True)
class Carried:
    """What a page brought along: secrets that are kept, by variable the name, and the others as they are."""

    kept: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict, repr=False)


def look(draft: Draft, page: Carried, actor: Any) -> tuple[dict[str, str], tuple[Offer, ...]]:
    """The secrets that are kept, as settings name them, and those that could be. The draft says both."""
    draft.secrets |= {name: value for name, value in page.values.items() if value and name in draft.secrets}
    for variable, name in page.kept.items():
        if variable in draft.secrets:
            draft.env_secrets[variable] = name
            draft.findings = [one for one in draft.findings if _variable(one) != variable]
            draft.tell("note", "paste.secret_named", "taken", "env_secrets", variable=variable, name=name)
    offers = _offers({name: value for name, value in draft.secrets.items() if name not in draft.env_secrets}, actor)
    by_variable = {offer.variable: offer for offer in offers}
    draft.findings = [_offered(one, by_variable.get(_variable(one))) for one in draft.findings]
    return dict(draft.env_secrets), offers


def _variable(finding: Finding) -> str:
    """The variable of the secret that a finding says was left out; "" where it is about none."""
    return secret_variable(str(finding.params.get("name", ""))) if finding.code in LEFT_OUT else ""


def _offered(finding: Finding, offer: Offer | None) -> Finding:
    """What the hint would say first can be done by a click."""
    if offer is None:
        return finding
    code = "paste.secret_there" if offer.there else LEFT_OUT[finding.code]
    return replace(finding, code=code, params={**finding.params, "stored": offer.name})


def _offers(found: Mapping[str, str], actor: Any) -> tuple[Offer, ...]:
    who = as_actor(actor) if actor is not None else None
    # The shell is no person: what it keeps is the team's.
    if not found or who is None or not can(who, secret_store.OWN if who.id is not None else secret_store.MANAGE):
        return ()
    rows = list(secret_store.usable(who.id))
    offers = (_offer(variable, value, rows) for variable, value in found.items())
    return tuple(offer for offer in offers if offer is not None)


def _offer(variable: str, value: str, rows: Iterable[Secret]) -> Offer | None:
    """A new one under a name that is free, or the one that is this very secret; None where only its name is known."""
    usual = re.sub(r"-{2,}", "-", variable.lower().replace("_", "-"))[:60].strip("-")
    if not secret_store.NAME.fullmatch(usual):
        return None
    known = {row.name: row for row in reversed(list(rows))}  # a person's own wins over the team's
    if not value:
        return Offer(variable, usual, there=True) if usual in known else None
    for name, row in known.items():
        if name.startswith(usual) and _is(row, value):
            return Offer(variable, name, there=True)
    names = [usual, *(f"{usual}-{n}" for n in range(2, secret_store.MOST + 2))]
    free = next((name for name in names if name not in known), None)
    return Offer(variable, free, value) if free is not None else None


def _is(row: Secret, value: str) -> bool:
    try:
        return secret_store.is_value(row, value)
    except CannotUnseal:
        return False


def keep(offers: Iterable[Offer], variables: Iterable[str], actor: Any) -> Carried:
    """Keep the secrets for these variables, for the person, or for the team where there is none. Raises NotFound, and
    what the store raises; then none was kept."""
    known = {offer.variable: offer for offer in offers}
    chosen = list(dict.fromkeys(variables))
    for variable in chosen:
        if variable not in known:
            raise NotOffered(params={"variable": variable[:100], "known": ", ".join(known) or "–"})
    with transaction.atomic():
        for offer in (known[variable] for variable in chosen):
            if not offer.there:
                secret_store.keep(offer.name, offer.value, team=as_actor(actor).user is None, actor=actor)
    return Carried({variable: known[variable].name for variable in chosen})


class NotOffered(NotFound):
    """The text has no secret that could be kept for this variable."""

    code = "paste.not_offered"
    message: Any = _("This command has no secret for %(variable)s that could be kept.")
    hint: Any = _("It has: %(known)s.")


# --- through the page -------------------------------------------------------------------------------------------------


def sealed(offers: Iterable[Offer], kept: Mapping[str, str], actor: Any) -> str:
    """What the page carries until somebody clicks; "" where there is nothing."""
    items = {offer.variable: [offer.name, "" if offer.there else offer.value] for offer in offers}
    if not items and not kept:
        return ""
    return seal(
        json.dumps({"who": as_actor(actor).id, "until": time() + VALID_S, "items": items, "kept": dict(kept)})
    ).decode()


def carried(text: str, actor: Any, *, keep: str = "") -> Carried:
    """What this person's page brought. The secret for the variable `keep`, whose offer was clicked, is stored.

    Raises Conflict where that is not possible any more, and what the store raises.
    """
    page = _opened(text, actor)
    items, kept = page["items"], dict(page["kept"])
    if keep and keep not in items and keep not in kept:
        raise Conflict(
            "paste.too_old",
            _("This page is too old: the secret is not known any more and was not kept."),
            _("Paste the command again, or keep the secret on the page “Secrets”."),
        )
    if keep in items:
        name, value = items.pop(keep)
        if value:
            secret_store.keep(name, value, team=False, actor=actor)
        kept[keep] = name
    return Carried(kept, {variable: value for variable, (_name, value) in items.items()})


def _opened(text: str, actor: Any) -> dict[str, Any]:
    """What `sealed` made, for this person and in time; else nothing."""
    nothing: dict[str, Any] = {"items": {}, "kept": {}}
    if not text or len(text) > LONGEST or not text.isascii():
        return nothing
    try:
        found = json.loads(unseal(text.encode()))
    except CannotUnseal:
        return nothing
    known = found.get("who") == as_actor(actor).id and found.get("until", 0) > time()
    return {name: dict(found[name]) for name in nothing} if known else nothing
