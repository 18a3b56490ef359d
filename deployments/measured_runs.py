"""Starts that were measured: what they teach the next estimate, and how close the estimates were."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any

from deployments import measured
from deployments.measured import Kind
from deployments.models import Run
from models_catalog.estimate.learned import Lesson

TEACHING_RUNS = 600  # of one family, the newest
COMPARED_RUNS = 2000  # the newest, on the page of how close the estimates were
COMPARED = measured.NAMES


def lessons_for(facts: Mapping[str, Any]) -> dict[Kind, Lesson]:
    """What the starts of a model's family teach, on every host. One query."""
    family = measured.family_of(facts)
    if not family:
        return {}
    rows = Run.objects.filter(family=family, residual_gib__isnull=False, ready_at__isnull=False)
    told = rows.order_by("-created_at").values_list(
        "host_id", "engine_version", "foreseen__gpu", "foreseen__tp", "residual_gib"
    )
    return measured.lessons(((row[0], row[1], row[2], row[3]), row[4]) for row in told[:TEACHING_RUNS])


@dataclass(frozen=True)
class Closeness:
    """How far the estimates of one quantity were from what was measured, as shares."""

    name: str
    runs: int
    median: float | None = None
    p90: float | None = None


@dataclass(frozen=True)
class Row:
    """All starts of one engine version and architecture."""

    engine: str
    version: str
    family: str
    runs: int
    corrected: int  # of which the estimate was corrected by earlier ones
    closeness: tuple[Closeness, ...]


def accuracy() -> list[Row]:
    """By engine version and architecture, those with the most starts first. One query."""
    found: dict[tuple[str, str, str], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for engine, version, family, before, after in _compared():
        found.setdefault((engine, version, family), []).append((before, after))
    rows = [_row(key, pairs) for key, pairs in found.items()]
    return sorted(rows, key=lambda row: (-row.runs, row.engine, row.version, row.family))


def _compared() -> Iterator[tuple[str, str, str, dict[str, Any], dict[str, Any]]]:
    rows = Run.objects.exclude(family="").filter(ready_at__isnull=False, measured__has_key="kv_gib")
    told = rows.filter(foreseen__has_key="kv_gib").order_by("-created_at")
    names = ("revision__spec__engine", "engine_version", "family", "foreseen", "measured")
    for engine, version, family, before, after in told.values_list(*names)[:COMPARED_RUNS]:
        yield str(engine or ""), version, family, before, after


def _row(key: tuple[str, str, str], pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> Row:
    corrected = sum(1 for before, _after in pairs if before.get("launches"))
    return Row(*key, len(pairs), corrected, tuple(_closeness(name, pairs) for name in COMPARED))


def _closeness(name: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> Closeness:
    errors = sorted(abs(each) for before, after in pairs if (each := measured.error(name, before, after)) is not None)
    if not errors:
        return Closeness(name, 0)
    return Closeness(name, len(errors), median(errors), errors[ceil(0.9 * len(errors)) - 1])
