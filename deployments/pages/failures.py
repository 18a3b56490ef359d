"""The page of all failures: numbers by class, single failures, choices of the filters. Rows in, words out."""

from collections.abc import Sequence
from typing import Any

from django.utils.html import format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from deployments import failures_read
from deployments.failures_read import ClassNumbers, Filters
from deployments.models import Failure
from deployments.pages import failed
from panel.core.numbers import ngroup
from panel.fleet.wording import ENGINES

DAYS: dict[str, Any] = {
    "7": gettext_lazy("7 days"),
    "30": gettext_lazy("30 days"),
    "90": gettext_lazy("90 days"),
    "365": gettext_lazy("a year"),
}
CLASSES_SHOWN = 30


def numbers(filters: Filters, found: Sequence[ClassNumbers], *, every: bool) -> dict[str, Any]:
    """The table by class, the most frequent first."""
    shown = found if every else found[:CLASSES_SHOWN]
    return {
        "classes": [_class(filters, one) for one in shown],
        "hidden": len(found) - len(shown),
        "total": sum(one.count for one in found),
        "mended": sum(one.mended for one in found),
    }


def _class(filters: Filters, one: ClassNumbers) -> dict[str, Any]:
    return {
        "code": one.code,
        "title": failed.title_of(one.code),
        "query": filters.with_class(one.code).query,
        "count": ngroup(one.count),
        "last": one.last,
        "mended": _("%(n)s of %(all)s") % {"n": ngroup(one.mended), "all": ngroup(one.count)} if one.mended else "",
        "by": by_words(one),
        "said": _said(one),
    }


def by_words(one: ClassNumbers) -> str:
    """What mended it most often, the two ways that did so most often."""
    ways = [f"{failed.change_word(change)} ({ngroup(n)})" for change, n in one.by.most_common(2)]
    return "; ".join(ways)


def _said(one: ClassNumbers) -> str:
    """What people say of the explanation."""
    parts = []
    if one.right:
        parts.append(ngettext("right %(n)s time", "right %(n)s times", one.right) % {"n": ngroup(one.right)})
    if one.wrong:
        parts.append(ngettext("wrong %(n)s time", "wrong %(n)s times", one.wrong) % {"n": ngroup(one.wrong)})
    return ", ".join(parts)


def page(filters: Filters, found: Sequence[ClassNumbers], rows: Sequence[Failure], *, every: bool) -> dict[str, Any]:
    return {
        "section": "failures",
        "filters": filters,
        "rows": [{**failed.line(row), "place": place(row)} for row in rows],
        **numbers(filters, found, every=every),
    }


def place(row: Failure) -> str:
    engine = f"{ENGINES.get(row.engine, row.engine)} {row.engine_version}".strip()
    return " · ".join(part for part in (engine, row.host_name) if part)


def selects(filters: Filters) -> dict[str, SafeString]:
    """The options of the filters, made at once: hundreds take a template longer than all the rest of the page."""
    known = failures_read.choices(filters)
    return {
        "hosts": _options([(host, host) for host in known.hosts], filters.host),
        "engines": _options([(each, _engine_word(each)) for each in known.engines], filters.engine),
        "models": _options([(model, model) for model in known.models], filters.model),
        "codes": _options(sorted(_titled(known.codes), key=lambda pair: pair[1].casefold()), filters.code),
        "spans": _options([(days, str(word)) for days, word in DAYS.items()], filters.days),
    }


def _titled(codes: Sequence[str]) -> list[tuple[str, str]]:
    return [(code, failed.title_of(code)) for code in codes]


def _engine_word(text: str) -> str:
    engine, _space, version = text.partition(" ")
    return f"{ENGINES.get(engine, engine)} {version}".strip()


def _options(choices: Sequence[tuple[str, str]], chosen: str) -> SafeString:
    marks = {True: mark_safe(" selected"), False: ""}
    rows = ((key, marks[key == chosen], name) for key, name in choices)
    return format_html_join("", '<option value="{}"{}>{}</option>', rows)
