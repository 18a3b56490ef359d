"""What a page shows of where a model fits: the team's GPUs by lengths of context, and GPUs that it does not have."""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from models_catalog import fits, queries
from models_catalog.contexts import Form, forms_of, gpus, tokens, would_fit
from models_catalog.estimate import table
from models_catalog.estimate.table import Cell, Group, Row
from models_catalog.estimate.words import say
from models_catalog.facts import ModelFacts
from models_catalog.fits import GOOD
from models_catalog.models import CatalogModel
from panel.core.numbers import approx, ngroup

HOSTS_SHOWN = 3
COUNTED = ("ram.too_small", "offload.too_large")  # reasons that say already how much is needed and there
MOST_REQUESTS = 1000  # of a cell; what lies above tells nobody more
TABLES_KEPT = 32
_tables: dict[tuple[Any, ...], list[Row]] = {}
_keeping = threading.Lock()


def shown(model: CatalogModel) -> Form | None:
    """The form of a model that its page would deploy; None when it lies nowhere."""
    return first(forms_of(model, queries.engines()))


def first(forms: Iterable[Form]) -> Form | None:
    """The same, where the forms are known."""
    return next((form for form in forms if form.copies), None)


def fit_page(form: Form | None, *, may_deploy: bool) -> dict[str, Any]:
    """The table of the team's GPUs. With `may_deploy` each length that fits leads to the form that starts it there."""
    if form is None:
        return {"rows": []}
    version, lengths = fits.engine_version(), table.contexts_of(form.facts)
    if not _is_known(form.facts):
        return {"rows": [], "unknown": True, "form": form}
    hosts = _hosts(form) if may_deploy and form.deployable else {}
    found = _table(form, fits.groups(), version)
    return {**_page(form, lengths, version), **_heads(found), "rows": [_row(row, form, hosts) for row in found]}


def _heads(rows: Sequence[Row]) -> dict[str, str]:
    """What the rows are: GPUs, processors, or both."""
    kinds = {row.group.cpu for row in rows}
    if kinds == {True}:
        return {"head": _("Processors"), "of": _("processors")}
    return {"head": _("GPUs and processors"), "of": _("GPUs and processors")} if len(kinds) == 2 else {}


def elsewhere_page(form: Form | None) -> dict[str, Any]:
    """The same of usual GPUs that no host has."""
    if form is None or not _is_known(form.facts):
        return {"rows": []}
    version, lengths = fits.engine_version(), table.contexts_of(form.facts)
    found = table.elsewhere(form.facts, fits.groups(), version)
    return {**_page(form, lengths, version), "rows": [_row(row, form, {}) for row in found]}


def _table(form: Form, known: Sequence[Group], version: str) -> list[Row]:
    """Kept in this process while files, GPUs and engine stay what they are: it is a hundred estimates."""
    copy = form.copies[0]
    key = (form.artifact.pk, form.artifact.updated_at, copy.pk, copy.updated_at, tuple(known), version)
    found = _tables.get(key)
    if found is None:
        found = table.table(form.facts, known, version)
        with _keeping:
            while len(_tables) >= TABLES_KEPT:
                del _tables[next(iter(_tables))]
            _tables[key] = found
    return found


def _is_known(facts: ModelFacts) -> bool:
    """Without a shape and without a size there is nothing to count with."""
    return facts.geometry is not None or bool(facts.weight_bytes)


def _page(form: Form, lengths: Sequence[int], version: str) -> dict[str, Any]:
    heads = {"head": _("GPUs"), "of": _("GPUs")}
    return {"form": form, "version": version, "lengths": [tokens(length) for length in lengths], **heads}


def _hosts(form: Form) -> dict[str, int]:
    """Hosts that a start could be placed on, by name: a whole copy lies there."""
    return {copy.host.name: copy.host_id for copy in form.copies if copy.usable and copy.delete_job_id is None}


def _row(row: Row, form: Form, hosts: Mapping[str, int]) -> dict[str, Any]:
    group = row.group
    name = gpus(group.name, group.count, group.total_mib, cpu=group.cpu)
    return {
        "name": name,
        "where": _where(group),
        "fits": row.fits,
        "why": "" if row.fits else _why(row),
        "cells": [_linked(_cell(cell), name, _start(cell, form, group, hosts)) for cell in row.cells],
    }


def _where(group: Group) -> str:
    """ "atlas, borealis + 2 · 7 GPUs"; "" for GPUs that nobody has."""
    hosts, more = ", ".join(group.hosts[:HOSTS_SHOWN]), len(group.hosts) - HOSTS_SHOWN
    parts = [f"{hosts} + {more}" if more > 0 else hosts]
    if group.count == 1 and not group.cpu and group.there > 1:
        parts.append(ngettext("%(n)s GPU", "%(n)s GPUs", group.there) % {"n": group.there})
    return " · ".join(part for part in parts if part)


def _why(row: Row) -> str:
    """The first reason, in words, and what would help."""
    said = say(row.reasons[0], _) if row.reasons else ""
    missing = row.short
    if missing is None:
        return said
    need, have = missing.need_gib, missing.have_gib
    if need is not None and need > have and not (row.reasons and row.reasons[0].code in COUNTED):
        said = _("About %(need)s GiB are needed and %(have)s usable.") % {
            "need": f"{need:,.1f}",
            "have": f"{have:,.1f}",
        }
    other = asdict(missing.other) if missing.other is not None else None
    helps = would_fit(missing.context, other)
    return f"{said} {helps[:1].upper()}{helps[1:]}." if helps else said


def _cell(cell: Cell) -> dict[str, Any]:
    """Kind, number and word of one cell."""
    count = 0 if cell.requests is None else max(1, round(cell.requests))
    requests = "" if not count else f"> {ngroup(MOST_REQUESTS)}" if count > MOST_REQUESTS else approx(ngroup(count))
    words = {
        "fits": ("ok", requests or pgettext("whether it fits", "yes"), ""),
        "tight": ("warn", requests or pgettext("whether it fits", "yes"), _("tight")),
        "does_not_fit": ("off", pgettext("whether it fits", "no"), _("too long")),
        "unknown": ("off", requests or "?", _("not certain")),
    }
    kind, number, small = words[cell.verdict]
    return {"kind": kind, "number": number, "small": small, "length": tokens(cell.context)}


def _linked(cell: dict[str, Any], name: str, href: str) -> dict[str, Any]:
    """A cell with where it leads, in words for whoever hears the link alone."""
    # Translators: GPUs, a length such as 8K, and how many requests of it fit there
    text = _("Deploy on %(name)s with %(length)s tokens: %(number)s")
    label = text % {"name": name, "length": cell["length"], "number": f"{cell['number']} {cell['small']}".strip()}
    return {**cell, "href": href, "label": label if href else ""}


def _start(cell: Cell, form: Form, group: Group, hosts: Mapping[str, int]) -> str:
    """The deploy form with this host, these GPUs and this length filled in; "" where nothing can start there now."""
    host = next((name for name in group.hosts if name in hosts), None)
    if cell.verdict not in GOOD or host is None:
        return ""
    values: dict[str, Any] = {"artifact": form.artifact.pk, "host": hosts[host], "max_model_len": cell.context}
    values |= {"device": "cpu"} if group.cpu else {"device": "gpu", "gpu_count": group.count}
    cards = dict(group.cards).get(host, ())[: group.count]  # of a host with one kind alone Berth takes the emptiest
    return f"{reverse('deployment-new')}?{urlencode({**values, 'gpus': cards}, doseq=True)}"
