"""What the catalog's pages show, made ready for the templates: words, badges, links. Reads only."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from models_catalog import queries, serving, wording
from models_catalog.facts import ModelFacts
from models_catalog.models import Artifact, CatalogModel, Copy
from panel.core.numbers import NBSP, ngroup, size
from panel.core.wording import Words
from panel.fleet.models import Runtime

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
    if "generate" not in facts.tasks:
        return ", ".join(str(wording.TASKS[task]) for task in facts.tasks)
    return _("Mixture of experts") if facts.experts else _("Without experts")


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


def _forms(model: CatalogModel, runtimes: Sequence[Runtime]) -> list[Form]:
    """Deployable forms first, then those that are there."""
    forms = []
    for artifact in model.artifacts.all():
        artifact.model = model
        forms.append(form_of(artifact, runtimes))
    return sorted(forms, key=lambda form: (not form.deployable, not form.copies))


def row(model: CatalogModel, runtimes: Sequence[Runtime]) -> dict[str, Any]:
    """One line of the list."""
    forms = _forms(model, runtimes)
    shown = [form for form in forms if form.copies] or forms
    best = shown[0]
    parts = [kind(best.facts), amount(best.facts.parameters)]
    if best.facts.context_length:
        parts.append(_("%(n)s context") % {"n": tokens(best.facts.context_length)})
    parts += [", ".join(dict.fromkeys(form.title for form in shown))]
    hosts = dict.fromkeys(copy.host.name for form in shown for copy in form.copies)
    return {
        "model": model,
        "sub": " · ".join(part for part in parts if part),
        "badge": best.badge,
        "why": best.reasons[0] if best.reasons else None,
        "size": size(sum(form.artifact.size_bytes for form in shown)),
        "hosts": ", ".join(hosts),
        "deploy": best.artifact.pk if best.deployable else None,
    }


def rows(models: Iterable[CatalogModel]) -> list[dict[str, Any]]:
    runtimes = queries.engines()
    return [row(model, runtimes) for model in models]


def chips(current: str) -> list[tuple[str, str, bool]]:
    """(value, word, chosen) of the filter."""
    words = {
        "": _("All"),
        "whole": _("Whole"),
        "problems": _("With problems"),
        "gguf": "GGUF",
        "embed": _("Embeddings"),
        "gone": _("Gone"),
    }
    return [(value, words[value], value == current) for value in queries.SHOW]


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
        "models": f"{models}, {size(view.bytes)}" if view.models else _("no model"),
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


# --- one model --------------------------------------------------------------------------------------------------------


def model_page(model: CatalogModel) -> dict[str, Any]:
    forms = _forms(model, queries.engines())
    code = sorted({file for form in forms if form.facts.needs_remote_code for file in form.facts.code_files})
    best = next((form for form in forms if form.deployable), None)
    scanning = any(view.scan is not None for view in queries.hosts())
    return {
        "model": model,
        "forms": [_form(form) for form in forms],
        "best": best,
        "sub": _subtitle(forms),
        "needs_code": any(form.facts.needs_remote_code for form in forms),
        "code_files": code,
        "scanning": scanning,
    }


def _subtitle(forms: list[Form]) -> str:
    facts = forms[0].facts if forms else None
    if facts is None:
        return ""
    tasks = ", ".join(str(wording.TASKS[task]) for task in facts.tasks)
    parts = [tasks, amount(facts.parameters), facts.architecture]
    return " · ".join(part for part in parts if part)


def _form(form: Form) -> dict[str, Any]:
    return {
        "form": form,
        "artifact": form.artifact,
        "badge": form.badge,
        "facts": _facts(form.facts, form.artifact),
        "copies": [
            {"copy": copy, "problems": [wording.of_file(p) for p in copy.problems]}
            for copy in [*form.copies, *form.gone]
        ],
        "files": form.facts.files,
        "more_files": form.facts.file_count - len(form.facts.files),
    }


def _facts(facts: ModelFacts, artifact: Artifact) -> list[tuple[str, str, str]]:
    """(term, value, where it comes from); what the files do not say is left out."""
    header = _("the file header") if facts.format == "gguf" else _("the file headers")
    found: list[tuple[str, Any, str]] = [(_("Kind"), kind(facts), _experts(facts))]
    exact = _("%(n)s, counted in %(where)s") % {"n": ngroup(facts.parameters or 0), "where": header}
    found.append((_("Parameters"), amount(facts.parameters), exact))
    if facts.context_length:
        found.append(
            (_("Longest context"), _("%(n)s tokens") % {"n": ngroup(facts.context_length)}, facts.context_source)
        )
    precision = facts.quantisation.label if facts.quantisation else facts.dtype
    bits = facts.quantisation.bits if facts.quantisation else None
    found.append((_("Precision"), precision, _("%(n)s-bit weights") % {"n": bits} if bits else ""))
    found.append((_("Weights"), size(facts.weight_bytes) if facts.weight_bytes else "", _("sum of the weight files")))
    found.append((_("On disk"), size(artifact.size_bytes), _("with tokenizer and configuration")))
    found.append((_("Layers"), facts.layers or "", _heads(facts)))
    found.append((_("Vocabulary"), ngroup(facts.vocab_size) if facts.vocab_size else "", ""))
    found.append((_("Architecture"), facts.architecture, facts.model_type if facts.format == "hf" else ""))
    found.append((_("Tokenizer"), facts.tokenizer or _("none"), ""))
    if "generate" in facts.tasks:
        template = _("yes") if facts.chat_template else _("none")
        found.append((_("Chat template"), template, facts.template_source))
    if facts.revision:
        found.append((_("Revision"), facts.revision[:12], ", ".join(facts.refs)))
    return [(term, str(value), note) for term, value, note in found if value]


def _experts(facts: ModelFacts) -> str:
    if not facts.experts:
        return ""
    if not facts.experts_used:
        return _("%(n)s experts") % {"n": facts.experts}
    return _("%(n)s experts, %(used)s at work") % {"n": facts.experts, "used": facts.experts_used}


def _heads(facts: ModelFacts) -> str:
    if not facts.kv_heads or not facts.head_dim:
        return ""
    return _("%(n)s KV heads of %(size)s") % {"n": facts.kv_heads, "size": facts.head_dim}
