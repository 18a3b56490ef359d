"""What the page of one model shows, made ready for its template: words, badges, links. Reads only."""

from collections.abc import Iterable, Sequence
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from models_catalog import deleting, queries, repairs, serving, shelf, uses, wording
from models_catalog.chat import Tried, render, thinks
from models_catalog.contexts import Form, amount, forms_of, kind
from models_catalog.conversions.contexts import ways
from models_catalog.deleting import Outlook
from models_catalog.downloads import hubs
from models_catalog.facts import ModelFacts
from models_catalog.models import Artifact, CatalogModel, Copy
from models_catalog.repairs import Offer
from panel.core.numbers import ngroup, size
from panel.fleet.models import Runtime
from panel.fleet.wording import engine as engine_name

HUB = hubs.HubAt(hubs.Source.HUGGINGFACE, hubs.USUAL[hubs.Source.HUGGINGFACE])  # whatever mirror is set
USES_SHOWN = 50  # deployments on its page; a thousand may be made of one model
MOST_TEMPLATE = 64 << 10  # characters; an honest agent sends no longer one


def model_page(model: CatalogModel) -> dict[str, Any]:
    runtimes = queries.engines()
    forms = forms_of(model, runtimes)
    copies = [copy for form in forms for copy in [*form.copies, *form.gone]]
    used = uses.of((form.artifact.pk for form in forms), detailed=USES_SHOWN)
    users = [use for form in forms for use in used.get(form.artifact.pk, [])]
    outlooks, offers = deleting.outlooks(copies, used), repairs.offers(copies)
    best = next((form for form in forms if form.deployable), None)
    code = shelf.code_of(copies)
    return {
        "model": model,
        "forms": [_form(form, runtimes, outlooks, offers) for form in forms],
        "best": best,
        "sub": _subtitle(forms),
        "needs_code": any(form.facts.needs_remote_code for form in forms),
        "code": code,
        "code_seen": shelf.digest(code),
        "elsewhere": sorted({place for form in forms for place in form.facts.code_elsewhere}),
        "about": about(model, forms),
        "uses": users[:USES_SHOWN],
        "more_uses": len(users[USES_SHOWN:]),
        "templates": [form.artifact for form in forms if form.copies and form.facts.chat_template],
        "moving": any(copy.delete_job_id for copy in copies) or queries.scanning(),
    }


# --- about it ---------------------------------------------------------------------------------------------------------


def source_of(model: CatalogModel, facts: ModelFacts | None) -> tuple[str, str]:
    """(address, words) of where it comes from: what people said, else what its place on a disk tells."""
    if model.source_url:
        return model.source_url, model.source_url.split("://", 1)[1].rstrip("/")
    origin = facts.origin if facts is not None else ""
    if origin.startswith("https://"):
        return origin, origin.removeprefix("https://")
    repo = origin if facts is not None and facts.source in ("hf-cache", "lmstudio") and origin.count("/") == 1 else ""
    return (HUB.page_of(repo), repo) if repo else ("", origin)


def about(model: CatalogModel, forms: Sequence[Form]) -> dict[str, Any]:
    facts = forms[0].facts if forms else None
    licence = model.licence or next((form.facts.licence for form in forms if form.facts.licence), "")
    url, word = source_of(model, facts)
    came = model.added_from or {}
    return {
        "licence": licence,
        "licence_told": bool(model.licence),
        "source_url": url,
        "source": word,
        "how": came.get("how", ""),
        "host": came.get("host", ""),
        "made_of": (came.get("model"), came.get("place", "")) if came.get("how") == "converted" else None,
        "place": {"hf-cache": _("the Hugging Face cache"), "ollama": "Ollama", "lmstudio": "LM Studio"}.get(
            came.get("place", ""), ""
        ),
    }


def _subtitle(forms: list[Form]) -> str:
    facts = forms[0].facts if forms else None
    if facts is None:
        return ""
    tasks = ", ".join(str(wording.TASKS[task]) for task in facts.tasks)
    parts = [tasks, amount(facts.parameters), facts.architecture]
    return " · ".join(part for part in parts if part)


def _form(
    form: Form, runtimes: Sequence[Runtime], outlooks: dict[int, Outlook], offers: dict[int, Offer]
) -> dict[str, Any]:
    # Of an only copy the notes above the table say it already.
    told = {words.text for words in form.reasons} if len(form.copies) == 1 else set()
    return {
        "form": form,
        "artifact": form.artifact,
        "badge": form.badge,
        "facts": _facts(form.facts, form.artifact),
        "copies": [
            _copy(copy, outlooks.get(copy.pk), offers.get(copy.pk), told) for copy in [*form.copies, *form.gone]
        ],
        "engines": (engines := _engines(form, runtimes) if form.copies else []),
        "ways": [] if any(not one["reasons"] for one in engines) else ways(form.artifact, form.copies, runtimes),
        "files": form.facts.files,
        "more_files": form.facts.file_count - len(form.facts.files),
    }


def _copy(copy: Copy, outlook: Outlook | None, offer: Offer | None, told: set[str]) -> dict[str, Any]:
    return {
        "copy": copy,
        "problems": [words for words in map(wording.of_file, copy.problems) if words.text not in told],
        "failed": wording.of_deletion(copy.delete_refusal) if copy.delete_refusal else None,
        "outlook": outlook,
        "repair": repair_word(offer) if offer is not None else "",
        "repairing": offer.page if offer is not None else "",
    }


def repair_word(offer: Offer) -> str:
    """The button that fetches damaged files once more."""
    if not offer.bad:
        return _("Download what is missing")
    text = ngettext(
        "Download %(n)s of %(whole)s weight file again", "Download %(n)s of %(whole)s weight files again", offer.whole
    )
    return text % {"n": offer.bad, "whole": offer.whole}


def _engines(form: Form, runtimes: Sequence[Runtime]) -> list[dict[str, Any]]:
    """What the hosts with a copy could serve it with, and why not. What holds up every engine is told above of them."""
    verdicts = serving.verdicts(form.artifact, form.copies, runtimes)
    held_up = not form.deployable and any(not reasons for _runtime, reasons in verdicts)
    found = [
        {
            "name": engine_name(runtime),
            "host": runtime.host.name,
            "reasons": [wording.of_serving(reason) for reason in reasons],
            "badge": ("off", _("No")) if reasons else ("wait", _("Not yet")) if held_up else ("ok", _("Yes")),
        }
        for runtime, reasons in verdicts
    ]
    return sorted(found, key=lambda one: (bool(one["reasons"]), one["host"], one["name"]))[:30]


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
    return _("%(n)s KV heads, each %(size)s wide") % {"n": facts.kv_heads, "size": facts.head_dim}


# --- what the model receives ------------------------------------------------------------------------------------------


def template_page(artifact: Artifact) -> dict[str, Any]:
    """The chat template of one form, and what becomes of example conversations."""
    copies: Iterable[Copy] = artifact.copies.all()
    facts = next((copy.facts for copy in copies if copy.present), ModelFacts.from_dict(artifact.facts))
    text = facts.template_text if len(facts.template_text) <= MOST_TEMPLATE else ""
    tried: Tried | None = render(text, facts.template_source) if text else None
    return {
        "artifact": artifact,
        "facts": facts,
        "text": text,
        "tried": tried,
        "error": tried.error if tried is not None else None,
        "thinks": thinks(text),
        "images": "image" in facts.inputs,
    }


# --- deleting a copy --------------------------------------------------------------------------------------------------


def removal(copy: Copy) -> dict[str, Any]:
    found = deleting.outlook(copy) if copy.present else Outlook(0, 0)
    return {
        "section": "models",
        "copy": copy,
        "model": copy.artifact.model,
        "outlook": found,
        "last": [use for use in found.chosen if use not in found.running] if not found.last else [],
        "can": copy.present and copy.delete_job_id is None,
    }
