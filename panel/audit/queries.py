"""Reading the record: filters, pages by id (the table only grows), choices for the filters.

A look for a text cannot use an index: one page looks through SEARCHED rows at most and says from where to go on.
"""

from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any, Self
from urllib.parse import urlencode

from django.db.models import Max, Q, QuerySet, TextField
from django.db.models.functions import Cast
from django.utils import timezone
from django.utils.dateparse import parse_date

from panel.audit.models import Event, Outcome, minute_of
from panel.audit.wording import KINDS, SYSTEM

PAGE = 50
COUNTED = 1000  # beyond that the page says "more than"
SEARCHED = 200_000  # rows that one look for a text goes through
RECENT = 5000  # ids back from the newest row: of these rows the choices of the filters are read


@dataclass(frozen=True, slots=True)
class Filters:
    """What a person looks for; strange values in the address are as good as none."""

    text: str = ""
    who: str = ""
    kind: str = ""
    outcome: str = ""
    on: str = ""  # "deployment:12": all that happened to it, and what came of its runs
    since: date | None = None
    until: date | None = None  # this day is part of it

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
            until=_date(word("until", 10)),
        )

    @property
    def any(self) -> bool:
        return self != Filters()

    @property
    def query(self) -> str:
        """The same filters as the end of an address."""
        return urlencode({name: value for name, value in self.asked.items() if value})

    @property
    def asked(self) -> dict[str, str]:
        """The filters by the names that they have in an address; empty ones too."""
        days = {name: day.isoformat() if day else "" for name, day in (("since", self.since), ("until", self.until))}
        return {
            "q": self.text, "who": self.who, "kind": self.kind, "on": self.on, "outcome": self.outcome, **days,
        }  # fmt: skip


def _date(text: str) -> date | None:
    try:
        day = parse_date(text)
    except ValueError:
        return None
    return day if day and 1970 <= day.year <= 9000 else None  # beyond, time zones have no place to move to


def _begin(day: date) -> datetime:
    return timezone.make_aware(datetime.combine(day, time.min))


def matching(filters: Filters) -> "QuerySet[Event]":
    """The rows that a person asked for, newest first."""
    rows = _of_days(filters)
    if filters.who:
        rows = rows.filter(actor=filters.who)
    if filters.kind:
        rows = rows.filter(_starting(KINDS[filters.kind].verbs))
    if filters.outcome:
        rows = rows.filter(outcome=filters.outcome)
    if filters.on:
        kind, _, target_id = filters.on.partition(":")
        whole = Q(story=filters.on) if kind == "deployment" else Q(target_kind=kind, target_id=target_id)
        rows = rows.filter(whole)
    return _containing(rows, filters.text) if filters.text else rows


def _of_days(filters: Filters) -> "QuerySet[Event]":
    """The rows of the asked days; by `minute` too, as the months' tables are told apart by it."""
    rows = Event.objects.all()
    if filters.since:
        begin = _begin(filters.since)
        rows = rows.filter(at__gte=begin, minute__gte=minute_of(begin))
    if filters.until:
        end = _begin(filters.until + timedelta(days=1))
        rows = rows.filter(at__lt=end, minute__lt=end)
    return rows


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
    """Some rows, and the id to ask for the ones before them (None: these were the oldest).

    `broken_off`: nobody has looked at what is older than `older`, since a look for a text ends after SEARCHED rows.
    """

    events: list[Event]
    older: int | None
    broken_off: bool = False


def page_of(filters: Filters, *, before: int | None = None, size: int = PAGE) -> Slice:
    """The newest rows, or those older than the row `before`."""
    rows = matching(filters)
    floor = _floor(filters, before)
    if before is not None:
        rows = rows.filter(pk__lt=before)
    if floor:
        rows = rows.filter(pk__gte=floor)
    found = list(rows.order_by("-pk")[: size + 1])
    if len(found) > size:
        return Slice(found[:size], found[size - 1].pk)
    if floor and _of_days(filters).filter(pk__lt=floor).exists():
        return Slice(found, floor, broken_off=True)
    return Slice(found, None)


def _floor(filters: Filters, before: int | None) -> int:
    """The id at which a look for a text ends; 0 where no text is looked for, or all rows can be looked at."""
    if not filters.text:
        return 0
    rows = _of_days(filters) if before is None else _of_days(filters).filter(pk__lt=before)
    newest = rows.order_by("-pk").values_list("pk", flat=True).first() or 0
    return max(0, newest + 1 - SEARCHED)


def count(filters: Filters) -> int:
    """How many match, counted to COUNTED + 1 at most; of a text, how many in the first look."""
    rows = matching(filters).filter(pk__gte=_floor(filters, None))
    return rows.order_by()[: COUNTED + 1].count()


def day_before(before: int | None) -> date | None:
    """The day of the last row that is already shown, so that its heading is not repeated."""
    at = Event.objects.filter(pk=before).values_list("at", flat=True).first() if before is not None else None
    return timezone.localtime(at).date() if at else None


def _recent() -> "QuerySet[Event]":
    """Rows by a range of ids, which each month's table answers from its key at once."""
    newest = Event.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    return Event.objects.filter(pk__gt=newest - RECENT)


def people(chosen: str = "") -> list[str]:
    """Who acted lately, by name, and the chosen one; the loop itself is last."""
    names = _recent().exclude(actor="")
    found = set(names.order_by().values_list("actor", flat=True).distinct()) | ({chosen} if chosen else set())
    return sorted(found - {SYSTEM}, key=str.casefold) + ([SYSTEM] if SYSTEM in found else [])


def targets(kind: str = "deployment", chosen: str = "") -> list[tuple[str, str]]:
    """(`kind:id`, newest name) of what was acted on lately, and the chosen one."""
    rows = (
        _recent().filter(target_kind=kind).values("target_id", "target").annotate(newest=Max("pk")).order_by("newest")
    )
    found = {f"{kind}:{row['target_id']}": row["target"] for row in rows}
    if chosen and chosen not in found:
        found[chosen] = name_of(chosen) or chosen
    return sorted(found.items(), key=lambda item: item[1].casefold())[:200]


def name_of(on: str) -> str:
    """The newest name of "kind:id"; empty when nothing was ever recorded of it."""
    kind, _, target_id = on.partition(":")
    rows = Event.objects.filter(target_kind=kind, target_id=target_id).order_by("-pk")
    return rows.values_list("target", flat=True).first() or ""
