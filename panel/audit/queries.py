"""Reading the record: filters, pages by id (the table only grows), choices for the filters."""

from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any, Self

from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.utils import timezone
from django.utils.dateparse import parse_date

from panel.audit.models import Event, Outcome
from panel.audit.wording import KINDS, SYSTEM

PAGE = 50
COUNTED = 1000  # beyond that the page says "more than"
RECENT = 5000  # the newest rows, from which the choices of the filters are read


@dataclass(frozen=True, slots=True)
class Filters:
    """What a person looks for; strange values in the address are as good as none."""

    text: str = ""
    who: str = ""
    kind: str = ""
    outcome: str = ""
    on: str = ""  # "deployment:12"
    since: date | None = None

    @classmethod
    def of(cls, query: Any) -> Self:
        def word(name: str, most: int) -> str:
            return str(query.get(name, "")).replace("\0", "").strip()[:most]

        kind, outcome = word("kind", 20), word("outcome", 20)
        return cls(
            text=word("q", 100),
            who=word("who", 150),
            kind=kind if kind in KINDS else "",
            outcome=outcome if outcome in Outcome.values else "",
            on=word("on", 100),
            since=_date(word("since", 10)),
        )

    @property
    def any(self) -> bool:
        return self != Filters()


def _date(text: str) -> date | None:
    try:
        return parse_date(text)
    except ValueError:
        return None


def matching(filters: Filters) -> "QuerySet[Event]":
    """The rows that a person asked for, newest first."""
    rows = Event.objects.all()
    if filters.who:
        rows = rows.filter(actor=filters.who)
    if filters.kind:
        rows = rows.filter(_starting(KINDS[filters.kind].verbs))
    if filters.outcome:
        rows = rows.filter(outcome=filters.outcome)
    if filters.on:
        kind, _, target_id = filters.on.partition(":")
        rows = rows.filter(target_kind=kind, target_id=target_id)
    if filters.since:
        rows = rows.filter(at__gte=timezone.make_aware(datetime.combine(filters.since, time.min)))
    return _containing(rows, filters.text) if filters.text else rows


def _starting(prefixes: tuple[str, ...]) -> Q:
    found = Q()
    for prefix in prefixes:
        found |= Q(verb__startswith=prefix)
    return found


def _containing(rows: "QuerySet[Event]", text: str) -> "QuerySet[Event]":
    rows = rows.alias(
        before_text=Cast("before", TextField()),
        after_text=Cast("after", TextField()),
        facts_text=Cast("facts", TextField()),
    )
    found = Q()
    for name in ("target", "actor", "address", "verb", "before_text", "after_text", "facts_text"):
        found |= Q(**{f"{name}__icontains": text})
    return rows.filter(found)


@dataclass(frozen=True, slots=True)
class Slice:
    """Some rows, and the id to ask for the ones before them (None: these were the oldest)."""

    events: list[Event]
    older: int | None


def page_of(filters: Filters, *, before: int | None = None, size: int = PAGE) -> Slice:
    """The newest rows, or those older than the row `before`."""
    rows = matching(filters)
    if before is not None:
        rows = rows.filter(pk__lt=before)
    found = list(rows.order_by("-pk")[: size + 1])
    return Slice(found[:size], found[size - 1].pk if len(found) > size else None)


def count(filters: Filters) -> int:
    """How many match, counted to COUNTED + 1 at most."""
    return matching(filters).order_by()[: COUNTED + 1].count()


def day_before(before: int | None) -> date | None:
    """The day of the last row that is already shown, so that its heading is not repeated."""
    at = Event.objects.filter(pk=before).values_list("at", flat=True).first() if before is not None else None
    return timezone.localtime(at).date() if at else None


def people() -> list[str]:
    """Who acted lately, by name; the loop itself is last."""
    recent = Event.objects.order_by("-pk").values("pk")[:RECENT]
    names = Event.objects.filter(pk__in=recent).exclude(actor="")
    found = set(names.order_by().values_list("actor", flat=True).distinct())
    return sorted(found - {SYSTEM}, key=str.casefold) + ([SYSTEM] if SYSTEM in found else [])


def targets(kind: str = "deployment") -> list[tuple[str, str]]:
    """(`kind:id`, newest name) of what was acted on lately."""
    recent = Event.objects.order_by("-pk").values("pk")[:RECENT]
    rows = Event.objects.filter(pk__in=recent, target_kind=kind).order_by("target_id", "-pk").distinct("target_id")
    found = [(f"{kind}:{target_id}", name) for target_id, name in rows.values_list("target_id", "target")]
    return sorted(found, key=lambda item: item[1].casefold())[:200]
