"""Reading what failed: filters, numbers by class, single failures, errors alike. Queries do not grow with the rows."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Self
from urllib.parse import urlencode

from django.db.models import Count, F, Max, Q, QuerySet, Value
from django.utils import timezone

from deployments.diagnosis.rules import BY_CODE
from deployments.failures import HEAVY
from deployments.models import Failure
from panel.accounts.actor import Actor

DAYS = ("7", "30", "90", "365")
NOT_RECOGNISED = "not_recognised"  # in an address, where "" means any class
ALIKE_SHOWN = 5
RECENT = 5000  # ids back from the newest: of these rows the choices of the filters are read
CHOICES = 200  # of one filter


@dataclass(frozen=True)
class Filters:
    """What a person looks for; strange values in the address are as good as none."""

    text: str = ""  # words of the deployment's or the model's name
    days: str = ""
    code: str = ""
    host: str = ""
    engine: str = ""  # "vllm 0.32.0"
    model: str = ""
    deployment: str = ""  # its number

    @classmethod
    def of(cls, query: Any) -> Self:
        def word(name: str, most: int) -> str:
            return str(query.get(name, "")).replace("\0", "").strip()[:most]

        number, days = word("deployment", 19), word("days", 4)
        return cls(
            text=word("q", 100), days=days if days in DAYS else "", code=word("class", 80), host=word("host", 64),
            engine=word("engine", 81), model=word("model", 250),
            deployment=number if number.isascii() and number.isdecimal() and len(number) < 19 else "",
        )  # fmt: skip

    @property
    def any(self) -> bool:
        return any(self.asked.values())

    @property
    def asked(self) -> dict[str, str]:
        """The filters by the names that they have in an address; empty ones too."""
        return {
            "q": self.text, "days": self.days, "class": self.code, "host": self.host, "engine": self.engine,
            "model": self.model, "deployment": self.deployment,
        }  # fmt: skip

    @property
    def query(self) -> str:
        return urlencode({name: value for name, value in self.asked.items() if value})

    def with_class(self, code: str) -> "Filters":
        return replace(self, code=code or NOT_RECOGNISED)


def matching(filters: Filters, actor: Actor | None = None) -> "QuerySet[Failure]":
    """The failures that somebody asked for, newest first. A token for some deployments sees those of these alone."""
    rows = Failure.objects.order_by("-id")
    if actor is not None and actor.deployments is not None:
        rows = rows.filter(deployment__in=actor.deployments)
    if filters.days:
        rows = rows.filter(at__gte=timezone.now() - timedelta(days=int(filters.days)))
    if filters.code:
        rows = rows.filter(code="" if filters.code == NOT_RECOGNISED else filters.code)
    if filters.host:
        rows = rows.filter(host_name=filters.host)
    if filters.engine:
        engine, _space, version = filters.engine.partition(" ")
        rows = rows.filter(engine=engine, engine_version=version)
    if filters.model:
        rows = rows.filter(model_name=filters.model)
    if filters.deployment:
        rows = rows.filter(deployment=int(filters.deployment))
    for part in filters.text.split()[:5]:
        rows = rows.filter(Q(deployment__name__icontains=part) | Q(model_name__icontains=part))
    return rows


@dataclass
class ClassNumbers:
    """One class: how often, when last, how many were mended by the very next start, and by what (names of settings)."""

    code: str
    count: int = 0
    last: datetime | None = None
    mended: int = 0
    by: Counter[str] = field(default_factory=Counter)
    right: int = 0
    wrong: int = 0


def classes(rows: "QuerySet[Failure]") -> list[ClassNumbers]:
    """The numbers of each class, the most frequent first. One query."""
    found: dict[str, ClassNumbers] = {}
    groups = rows.order_by().values("code", "mended_change").annotate(
        n=Count("pk"), last=Max("at"), went=Count("mended_by"),
        yes=Count("pk", filter=Q(right=True)), no=Count("pk", filter=Q(right=False)),
    )  # fmt: skip
    for group in groups:
        one = found.setdefault(group["code"], ClassNumbers(group["code"]))
        one.count += group["n"]
        one.last = max(one.last, group["last"]) if one.last else group["last"]
        one.mended += group["went"]
        one.right += group["yes"]
        one.wrong += group["no"]
        if group["went"]:
            one.by[group["mended_change"]] += group["went"]
    return sorted(found.values(), key=lambda one: (-one.count, one.code))


def these(numbers: Sequence[int]) -> "QuerySet[Failure]":
    """Rows by their numbers, newest first."""
    return Failure.objects.filter(pk__in=numbers).order_by("-id")


def shown(rows: "QuerySet[Failure]") -> "QuerySet[Failure]":
    """With what a line of the list says."""
    names = ("run__number", "mended_by__number", "deployment__name", "deployment__deleted_at")
    own = [f.attname for f in Failure._meta.concrete_fields]
    return rows.select_related("run", "mended_by", "deployment").only(*own, *names)


def with_errors(rows: "QuerySet[Failure]") -> "QuerySet[Failure]":
    """With what an export says."""
    own = [f.attname for f in Failure._meta.concrete_fields]
    return rows.select_related("run", "mended_by", "deployment").only(
        *own, "run__number", "run__error_block", "run__reason", "mended_by__number", "deployment__name"
    )


@dataclass(frozen=True)
class Choices:
    hosts: list[str]
    engines: list[str]
    models: list[str]
    codes: list[str]


def choices(chosen: Filters) -> Choices:
    """What the filters can be set to: what failed lately, and what is chosen. Two queries."""
    newest = Failure.objects.order_by("-pk").values_list("pk", flat=True).first() or 0
    lately = Failure.objects.filter(pk__gt=newest - RECENT).order_by()

    def distinct(kind: str, *names: str) -> "QuerySet[Any]":
        second = F(names[1]) if len(names) > 1 else Value("")
        return lately.values_list(Value(kind), F(names[0]), second).distinct()

    found: dict[str, set[str]] = {"host": {chosen.host}, "engine": {chosen.engine}, "model": {chosen.model}}
    found["code"] = {chosen.code}
    others = (distinct("engine", "engine", "engine_version"), distinct("model", "model_name"), distinct("code", "code"))
    for kind, value, version in distinct("host", "host_name").union(*others):
        found[kind].add(f"{value} {version}".strip() or (NOT_RECOGNISED if kind == "code" else ""))
    sorted_ = {kind: sorted(values - {""}, key=str.casefold)[:CHOICES] for kind, values in found.items()}
    return Choices(sorted_["host"], sorted_["engine"], sorted_["model"], sorted_["code"])


def of_run(run_id: Any) -> Failure | None:
    """The row of one run; None where it did not fail, or failed before there were such rows."""
    return Failure.objects.filter(run=run_id).select_related("mended_by").defer(*_OF_MENDING).first()


_OF_MENDING = tuple(f"mended_by__{name}" for name in HEAVY)


def alike(row: Failure) -> list[Failure]:
    """Other failures of the team with the same first error, the newest first."""
    if not row.alike:
        return []
    return list(shown(Failure.objects.filter(alike=row.alike).exclude(pk=row.pk).order_by("-at"))[:ALIKE_SHOWN])


def times_seen(row: Failure) -> int:
    """How often the team met this class, this time included; at most 1000."""
    return Failure.objects.filter(code=row.code)[:1000].count() if row.code in BY_CODE else 0
