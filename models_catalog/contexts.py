"""What the catalog's pages show, made ready for the templates: words, badges, links. Reads only."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from models_catalog import disk, queries, serving, shelf, uses, wording
from models_catalog.facts import ModelFacts
from models_catalog.models import Artifact, CatalogModel, Copy
from models_catalog.uses import Use
from panel.core.numbers import NBSP, ngroup, size
from panel.core.wording import Words
from panel.fleet.models import Runtime

USES_SHOWN = 2  # on a line of the list
FORMATS = {"hf": "Hugging Face", "gguf": "GGUF"}


def amount(parameters: int | None) -> str:
    """134515008 → "134.5 M", 8190735360 → "8.2 B"."""
    if not parameters:
        return ""
    for step, word in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if parameters >= step:
            return f"{parameters / step:.1f}{NBSP}{word}"
    return ngroup(parameters)


def tokens(count: int) -> str:
    """8192 → "8K", 4095 → "4,095"."""
    return f"{count // 1024}K" if count % 1024 == 0 else ngroup(count)


def kind(facts: ModelFacts) -> str:
    if "generate" in facts.tasks and facts.experts:
        return _("Mixture of experts")
    return ", ".join(str(wording.TASKS[task]) for task in facts.tasks)


@dataclass(frozen=True)
class Form:
    """One artifact as a page shows it."""

    artifact: Artifact
    facts: ModelFacts
    copies: list[Copy]  # the ones that are there
    gone: list[Copy]
    reasons: list[Words]

    @property
    def title(self) -> str:
        name = FORMATS.get(self.artifact.format, self.artifact.format)
        return name if self.artifact.label == self.artifact.format else f"{self.artifact.label} · {name}"

    @property
    def deployable(self) -> bool:
        return not self.reasons

    @property
    def badge(self) -> tuple[str, str]:
        """Kind and word of the badge; the reasons say more."""
        if not self.copies:
            return "off", _("Gone")
        if any(copy.usable for copy in self.copies):
            return ("ok", _("Can be deployed")) if self.deployable else ("warn", _("Cannot be deployed yet"))
        if all(any(p.get("code") == "incomplete_download" for p in copy.problems) for copy in self.copies):
            return "wait", _("Not complete")
        return "bad", _("Not usable")


def form_of(artifact: Artifact, runtimes: Sequence[Runtime]) -> Form:
    copies = list(artifact.copies.all())
    there = [copy for copy in copies if copy.present]
    reasons = [wording.of_serving(reason) for reason in serving.obstacles(artifact, copies, runtimes)]
    facts = (there or copies)[0].facts if copies else ModelFacts.from_dict(artifact.facts)
    return Form(artifact, facts, there, [copy for copy in copies if not copy.present], reasons)


def forms_of(model: CatalogModel, runtimes: Sequence[Runtime]) -> list[Form]:
    """Deployable forms first, then those that are there."""
    forms = []
    for artifact in model.artifacts.all():
        artifact.model = model
        forms.append(form_of(artifact, runtimes))
    return sorted(forms, key=lambda form: (not form.deployable, not form.copies))


def fits_word(fits: dict[str, Any]) -> tuple[str, str, str]:
    """Kind and word of the badge, and on which GPUs; by the estimate that is kept with the artifact."""
    badges = {
        "fits": ("ok", _("Fits")),
        "tight": ("warn", _("Tight")),
        "does_not_fit": ("bad", _("Too big")),
        "unknown": ("off", _("Not known")),
    }
    kind_, word = badges.get(fits.get("best", ""), ("", ""))
    on = [gpus(one["name"], one["count"], one["total_mib"], cpu=one["cpu"]) for one in fits.get("on", [])]
    if missing := fits.get("short"):
        return kind_, word, too_big(missing)
    return kind_, word, _(" or ").join(on[:2])


def too_big(missing: Mapping[str, Any]) -> str:
    """ "needs ≈ 38.2 GiB, has 22.9 (1 × RTX 4090); fits on 2 × RTX 4090": by how much, and what would help.

    `missing` is what fits.word keeps of it.
    """
    place = gpus(missing["name"], missing["count"], missing["total_mib"], cpu=missing["cpu"])
    parts = []
    if missing["need_gib"] is not None and missing["need_gib"] > missing["have_gib"]:
        values = {"need": _gib(missing["need_gib"]), "have": _gib(missing["have_gib"]), "place": place}
        each = _("needs ≈ %(need)s GiB of each, has %(have)s (%(place)s)")
        all_ = _("needs ≈ %(need)s GiB, has %(have)s (%(place)s)")
        parts.append((each if missing["count"] > 1 else all_) % values)
    parts.append(would_fit(missing["context"], missing["other"]))
    return "; ".join(part for part in parts if part)


def _gib(value: float) -> str:
    """Of much, the tenth tells nobody anything."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def would_fit(context: int | None, other: Mapping[str, Any] | None) -> str:
    """The nearest change, "" where none is known."""
    if context:
        return _("fits with %(n)s tokens") % {"n": ngroup(context)}
    if other:
        return _("fits on %(place)s") % {"place": gpus(other["name"], other["count"], other["total_mib"])}
    return ""


def gpus(name: str, count: int, total_mib: int, *, cpu: bool = False) -> str:
    """ "2 × L40S 45 GB", or the processor."""
    if cpu:
        return _("processor, %(size)s") % {"size": size(total_mib << 20)}
    return f"{count}{NBSP}×{NBSP}{short_name(name)}"


def short_name(name: str) -> str:
    """Without the maker, whom everybody knows."""
    return name.removeprefix("NVIDIA ").removeprefix("GeForce ") or name


def row(model: CatalogModel, runtimes: Sequence[Runtime], used: Mapping[int, tuple[list[Use], int]]) -> dict[str, Any]:
    """One line of the list; `used` is what uses.few says."""
    forms = forms_of(model, runtimes)
    shown = [form for form in forms if form.copies] or forms
    best = shown[0]
    mixture = "generate" in best.facts.tasks and best.facts.experts
    tasks = ", ".join(str(wording.TASKS[task]) for task in best.facts.tasks)
    parts = [_("Mixture of experts") if mixture else tasks, amount(best.facts.parameters)]
    if best.facts.context_length:
        parts.append(_("%(n)s context") % {"n": tokens(best.facts.context_length)})
    parts += [", ".join(dict.fromkeys(form.title for form in shown))]
    hosts = dict.fromkeys(copy.host.name for form in shown for copy in form.copies)
    found = [used.get(form.artifact.pk, ([], 0)) for form in forms]
    users = list({use.text: use for some, _count in found for use in some}.values())[:USES_SHOWN]
    usable = any(copy.usable for copy in best.copies)
    return {
        "model": model,
        "sub": " · ".join(part for part in parts if part),
        **dict(zip(("kind", "word"), best.badge, strict=True)),
        "why": best.reasons[0] if best.reasons else None,
        **dict(
            zip(("fits_kind", "fits_word", "fits_on"), fits_word(best.artifact.fits if usable else {}), strict=True)
        ),
        "size": size(sum(form.artifact.size_bytes for form in shown)),
        "hosts": ", ".join(hosts),
        "uses": users,
        "more_uses": sum(count for _some, count in found) - len(users),
        "deploy": best.artifact.pk if best.deployable else None,
    }


def rows(models: Iterable[CatalogModel], actor: Any) -> list[dict[str, Any]]:
    """The lines of the list, as `actor` may use them."""
    found = list(models)
    runtimes = queries.engines()
    used = uses.few((artifact.pk for model in found for artifact in model.artifacts.all()), USES_SHOWN)
    return [_as_allowed(row(model, runtimes, used), shelf.may_deploy(model, actor)) for model in found]


def _as_allowed(line: dict[str, Any], may: bool) -> dict[str, Any]:
    """Where only approved models may be deployed, the others say so."""
    return {**line, "deploy": line["deploy"] if may else None, "unapproved": line["deploy"] is not None and not may}


def chips(current: str) -> list[tuple[str, str, bool]]:
    """(value, word, chosen) of the filter."""
    words = {
        "": _("All"),
        "fits": _("Fits"),
        "whole": _("Whole"),
        "problems": _("With problems"),
        "approved": _("Approved"),
        "unused": _("Never used"),
        "gone": _("Gone"),
    }
    return [(value, word, value == current) for value, word in words.items()]


def selects(asked: Mapping[str, str]) -> list[dict[str, Any]]:
    """The further filters: name, what it narrows, and (value, word, chosen) of each choice."""
    sizes = {
        "4": _("up to 4 GiB"),
        "16": _("4 to 16 GiB"),
        "64": _("16 to 64 GiB"),
        "more": _("more than 64 GiB"),
    }
    choices: list[tuple[str, str, str, dict[str, str]]] = [
        ("format", _("Format"), _("All formats"), FORMATS),
        ("task", _("Task"), _("All tasks"), {task: str(wording.TASKS[task]) for task in queries.TASKS}),
        ("size", _("Size"), _("All sizes"), sizes),
        ("label", _("Precision"), _("All precisions"), {label: label for label in queries.labels()}),
        ("tag", _("Tag"), _("All tags"), {tag: tag for tag in queries.tags()}),
    ]
    return [
        {
            "name": name,
            "label": label,
            "all": every,
            "choices": [(value, word, value == asked[name]) for value, word in words.items()],
        }
        for name, label, every, words in choices
        if words
    ]


# --- where the disks go ----------------------------------------------------------------------------------------------


def disks() -> dict[str, Any]:
    """Disk use per host, copies that lie there twice, and what was never used."""
    hosts = disk.by_host()
    return {
        "hosts": [
            {
                "view": view,
                "free": size(view.free_mib << 20) if view.free_mib is not None else "",
                "total": size(view.total_mib << 20) if view.total_mib is not None else "",
                "percent": round(100 - 100 * view.free_mib / view.total_mib)
                if view.free_mib is not None and view.total_mib
                else None,
                "models": size(view.bytes),
                "away": view.host.lost_at is not None,
            }
            for view in hosts
        ],
        "twice": [(view.host, one) for view in hosts for one in view.duplicates][:20],
        "unused": sum(view.unused for view in hosts),
        "unused_bytes": sum(view.unused_bytes for view in hosts),
    }


# --- where it looks ---------------------------------------------------------------------------------------------------


def folders() -> list[dict[str, Any]]:
    """Hosts with the folders that are searched, and what the search does now."""
    return [_host(view) for view in queries.hosts()]


def _host(view: queries.HostFolders) -> dict[str, Any]:
    kind_, word = _scan_badge(view)
    models = ngettext("%(n)s copy", "%(n)s copies", view.models) % {"n": ngroup(view.models)}
    return {
        "view": view,
        "host": view.host,
        "badge": (kind_, word),
        "models": f"{models} · {size(view.bytes)}" if view.models else _("no model"),
        "folders": [
            {"view": folder, "problems": [wording.of_folder(problem) for problem in folder.problems]}
            for folder in view.folders
        ],
        "problems": [wording.of_folder(problem) for problem in view.problems],
    }


def _scan_badge(view: queries.HostFolders) -> tuple[str, str]:
    if view.host.lost_at is not None:
        return "lost", _("No contact")
    if view.scan is not None:
        return ("busy", _("Looking for models")) if view.scan.state != "ordered" else ("wait", _("Waits for the host"))
    if view.scanned_at is None:
        return "off", _("Not looked at yet")
    return "ok", _("Looked through")
