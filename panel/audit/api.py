"""The record of who did what, for programs: newest first."""

import html
from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from django.utils.html import strip_tags
from django.utils.translation import gettext_noop as _
from ninja import Field, Query, Router, Schema

from panel.audit import queries, wording
from panel.audit.models import Event
from panel.audit.queries import Filters
from panel.core.api import Page, Paging, Token, answers

router = Router(tags=["events"])


class EventOut(Schema):
    """One act. A refusal has the missing right as its verb and counts repeats of one minute."""

    id: int
    at: datetime
    verb: str = Field(examples=["deployment.started"])
    text: str = Field(description=_("The same as a sentence, in the language of Accept-Language."))
    actor: str = Field(description=_("Name at the time; system: the panel itself; empty: not signed in."))
    actor_id: int | None
    address: str
    target_kind: str
    target_id: str
    target: str = Field(description=_("Name at the time."))
    outcome: Literal["done", "denied", "failed"]
    count: int
    before: Any = Field(None, description=_("What changed, before; secrets are hidden."))
    after: Any = Field(None, description=_("What changed, after."))
    facts: Any


class EventFilter(Paging):
    q: str = Field("", max_length=100, description=_("A text in names, verbs or values."))
    who: str = Field("", max_length=150, description=_("Name of who acted; system is the panel itself."))
    kind: Literal["", "runs", "settings", "models", "hosts", "access"] = Field("", description=_("A kind of acts."))
    outcome: Literal["", "done", "denied", "failed"] = ""
    on: str = Field("", max_length=100, description=_("What was acted on, as kind:id."), examples=["deployment:12"])
    since: str = Field("", pattern=r"^(\d{4}-\d{2}-\d{2})?$", description=_("First day, such as 2026-11-30."))
    until: str = Field("", pattern=r"^(\d{4}-\d{2}-\d{2})?$", description=_("Last day."))


def event_out(row: Event) -> dict[str, Any]:
    names = ("id", "at", "verb", "actor", "actor_id", "address", "target_kind", "target_id", "target", "outcome")
    more = ("count", "before", "after", "facts")
    text = html.unescape(strip_tags(wording.entry(row).sentence))
    return {**{name: getattr(row, name) for name in names + more}, "text": text}


@router.get("/events", response=answers({200: Page[EventOut]}), auth=Token("audit.view"), summary=_("List events"))
def list_events(request: HttpRequest, asked: Query[EventFilter]) -> Any:
    filters = Filters.of(asked.model_dump(exclude={"limit", "cursor"}))
    found = queries.page_of(filters, before=int(asked.cursor) if asked.cursor else None, size=asked.limit)
    older = str(found.older) if found.older is not None else None
    return {"items": [event_out(row) for row in found.events], "next": older}
