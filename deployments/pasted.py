"""A pasted command as a deployment that could be made here: its model, host, engine and GPUs by their rows. Reads only.

What the text itself says is read in pasting/, which knows no database.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils.translation import gettext as _

from deployments import pasted_secrets, services, suggesting
from deployments.codes_paste import PASTE
from deployments.engines.base import RuntimeFacts, version_key
from deployments.pasting.draft import VISIBLE, Draft
from deployments.pasting.hiding import hide
from deployments.pasting.match import Form, Match, match
from deployments.pasting.read import STARTED, Pasted, findings_of
from deployments.pasting.start import Finding
from deployments.preflight import runtime_facts
from deployments.spec import DeploymentSpec
from deployments.wording import words
from models_catalog.models import Artifact, Copy
from models_catalog.shelf import may_deploy
from panel.core.errors import Invalid
from panel.core.mask import HIDDEN, mask
from panel.core.wording import Words, said
from panel.fleet.models import Gpu, Host, Runtime

LONGEST = 65_536
MOST_PLACES = 3  # of a model, named in one sentence
HINTS = ("flag.unknown", "option.not_a_choice", "option.path_outside")
DEVICES = {"cpu": ("cpu",), "gpu": ("cuda", "rocm")}


@dataclass
class Reading:
    """What came of a text. `values` are those of a spec; `spec` is None while something in it is missing.

    `text` is what was pasted, without its secrets; `offers` are those that can be kept, `kept` those that are, by name.
    """

    text: str
    engine: str = ""
    model: str = ""  # as the command names it
    name: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    spec: DeploymentSpec | None = None
    artifact: Artifact | None = None
    candidates: tuple[Form, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    offers: tuple[pasted_secrets.Offer, ...] = field(default=(), repr=False)
    kept: dict[str, str] = field(default_factory=dict)

    @property
    def found(self) -> bool:
        """Whether the text starts an engine at all."""
        return bool(self.engine)


def read(
    text: str, *, actor: Any, artifact_id: int | None = None, page: pasted_secrets.Carried | None = None
) -> Reading:
    """Read a command; `artifact_id` is the model where a person has chosen it, `page` what became of its secrets.
    Changes nothing, keeps nothing.
    """
    pasted = Pasted(text)
    first = pasted.draft(_any_runtime())
    reading = Reading(text=redacted(text, pasted))
    if first is None or pasted.start is None:
        reading.findings = _told(pasted, None)
        return reading
    reading.engine, reading.model = pasted.start.engine, hide(first.model)
    forms = _forms()
    meant = _meant(first, forms, artifact_id)
    hosts = _hosts(meant.found, first.host)
    row = _runtime(first, meant.found, hosts)
    draft = pasted.draft(runtime_facts(row) if row is not None else first.engine, _roots(hosts, meant.found)) or first
    _model(reading, draft, meant, forms, actor, chosen=artifact_id is not None)
    reading.kept, reading.offers = pasted_secrets.look(draft, page or pasted_secrets.Carried(), actor)
    _settle(reading, draft, hosts, row)
    reading.findings = _told(pasted, draft)
    if reading.artifact is not None and not any(one.code == "paste.not_possible" for one in reading.findings):
        reading.spec = services.parse_spec(reading.values)
    return reading


def _told(pasted: Pasted, draft: Draft | None) -> list[Finding]:
    """What is to be told, without secrets: an address that was named as the model may hold a login."""
    known = pasted.secrets()
    return [replace(one, params=_masked(one.params, known)) for one in findings_of(pasted, draft)]


def _masked(value: Any, known: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return {name: _masked(item, known) for name, item in mask(value).items()}
    if isinstance(value, list | tuple):
        return [_masked(item, known) for item in value]
    return _without(hide(value), known) if isinstance(value, str) else value


def _without(text: str, known: Sequence[str]) -> str:
    for secret in known:
        text = text.replace(secret, HIDDEN)
    return text


def redacted(text: str, pasted: Pasted) -> str:
    """The text with its secrets hidden, to be shown or read once more."""
    return _without(hide(text[:LONGEST]), pasted.secrets())


def say(finding: Finding) -> Words:
    """The sentence of a finding and what to do."""
    reason = finding.as_dict()
    if finding.code in PASTE:
        return said(PASTE, reason)
    found = words(reason) or Words(finding.code, finding.code)
    if finding.outcome != "left_out" or finding.level != "warning":
        return found
    hint = found.hint if finding.code in HINTS else ""  # other hints say what to do where it was not left out yet
    return replace(found, hint=f"{_('It was left out.')} {hint}".strip())


# --- the model --------------------------------------------------------------------------------------------------------


def _forms() -> list[Form]:
    """Every copy that is there; one query."""
    fields = ("artifact_id", "artifact__model__name", "artifact__label", "artifact__format", "path")
    more = ("host_id", "host__name", "extra__origin", "artifact__facts__origin", "usable")
    rows = Copy.objects.filter(present=True, host__forgotten_at=None).values_list(*fields, *more)
    found = rows.order_by("artifact__model__name", "artifact_id", "host__name", "path")
    return [Form(*row[:7], repository=row[7] or row[8] or "", usable=row[9]) for row in found]


def _meant(draft: Draft, forms: Sequence[Form], artifact_id: int | None) -> Match:
    if artifact_id is not None:
        chosen = tuple(form for form in forms if form.artifact_id == artifact_id)
        if chosen:
            return Match("chosen", found=chosen)
    return match(draft.model, draft.quant, forms)


def _model(reading: Reading, draft: Draft, meant: Match, forms: Sequence[Form], actor: Any, *, chosen: bool) -> None:
    """The artifact, or the candidates; and what is to be said of it."""
    reading.candidates = meant.candidates
    if not meant.found:
        if draft.model:
            code = "paste.model_several" if meant.how == "several" else "paste.model_unknown"
            draft.tell("error", code, "", "artifact", model=draft.model[:200])
        return
    form = next((form for form in meant.found if form.usable), meant.found[0])
    reading.artifact = artifact = Artifact.objects.select_related("model").get(pk=form.artifact_id)
    if chosen:
        draft.findings = [one for one in draft.findings if one.code not in ("paste.no_model", "paste.model_unresolved")]
    if form.format == "gguf" and draft.model.rstrip("/") != form.path and meant.how in ("path", "inside"):
        draft.tell("note", "paste.gguf_file", "changed", "artifact", path=form.path)
    elif form.path != draft.model and draft.model:
        params = {"text": draft.model[:200], "model": str(artifact), "path": _places(form, forms)}
        draft.tell("note", "paste.model_found", "changed", "artifact", **params)
    if not any(form.usable for form in meant.found):
        draft.tell("warning", "paste.model_unusable", "", "artifact", model=str(artifact))
    if not may_deploy(artifact.model, actor):
        draft.tell("error", "paste.not_approved", "", "artifact", model=artifact.model.name)


def _places(form: Form, forms: Sequence[Form]) -> str:
    """Every place that a start could take it from: which of them is chosen by the plan."""
    usable = [one for one in forms if one.artifact_id == form.artifact_id and one.usable] or [form]
    shown = [f"{one.host}:{one.path}" for one in usable[:MOST_PLACES]]
    return ", ".join([*shown, "…"] if len(usable) > MOST_PLACES else shown)


# --- the place --------------------------------------------------------------------------------------------------------


def _hosts(copies: Sequence[Form], named: str) -> list[Host]:
    """Hosts that the deployment could run on."""
    rows = list(Host.objects.filter(pk__in={form.host_id for form in copies}))
    return [host for host in rows if host.name == named] or rows


def _roots(hosts: Sequence[Host], copies: Sequence[Form]) -> tuple[str, ...]:
    """Folders that paths may lie below; all, while the host is not known."""
    if not hosts:
        return ("/",)
    roots = {root for host in hosts for root in [*host.facts.get("model_roots", []), *host.model_roots]}
    return tuple(sorted(roots | {form.path for form in copies}))


def _engines() -> list[Runtime]:
    there = Runtime.objects.filter(present=True, refusal__isnull=True, host__forgotten_at=None)
    rows = there.filter(engine__in=STARTED).defer("flags")
    return sorted(rows, key=lambda row: version_key(row.version), reverse=True)


def _any_runtime() -> RuntimeFacts | None:
    """The newest engine of all: its flags say which of them take a value."""
    rows = _engines()
    return runtime_facts(rows[0]) if rows else None


def _runtime(draft: Draft, copies: Sequence[Form], hosts: Sequence[Host]) -> Runtime | None:
    """The engine whose flags count: the chosen one, else the newest on these hosts that suits the device."""
    here = {host.pk for host in hosts}
    rows = [row for row in _engines() if row.host_id in here or not here]
    if draft.chosen:
        rows = [row for row in rows if row.executable == draft.chosen] or rows
    wanted = DEVICES.get("gpu" if draft.gpus else draft.device, ())
    return next((row for row in rows if row.device in wanted), None) or next(iter(rows), None)


def _gpus(draft: Draft, hosts: Sequence[Host]) -> list[str]:
    """UUIDs of the GPUs that the command names; empty where that cannot be known, which is told."""
    if not draft.gpus:
        return []
    if not hosts:  # the model is not known, so nobody knows whose numbers they are
        return []
    rows = list(Gpu.objects.filter(present=True, host__in=hosts).select_related("host"))
    if not rows:
        draft.tell("note", "paste.gpus_none", "changed", "gpus", hosts=[host.name for host in hosts[:8]])
        return []
    by_uuid = {row.uuid for row in rows}
    if all(one in by_uuid for one in draft.gpus):
        return list(draft.gpus)
    if len(hosts) != 1:
        draft.tell("note", "paste.gpus_where", "changed", "gpus")
        return []
    by_index = {str(row.index): row.uuid for row in rows}
    unknown = [one for one in draft.gpus if one not in by_index and one not in by_uuid]
    if unknown:
        draft.tell("warning", "paste.gpu_unknown", "changed", "gpus", gpus=unknown[:8], host=hosts[0].name)
        return []
    return list(dict.fromkeys(by_index.get(one, one) for one in draft.gpus))


def _not_taken(draft: Draft) -> None:
    """The variables that name GPUs leave the list of what was taken."""
    for place, one in enumerate(draft.findings):
        if one.code == "paste.taken":
            flags = [flag for flag in one.params["flags"] if flag not in VISIBLE]
            draft.findings[place : place + 1] = [replace(one, params={"flags": flags})] if flags else []
            return


# --- the rest ---------------------------------------------------------------------------------------------------------


def _settle(reading: Reading, draft: Draft, hosts: Sequence[Host], row: Runtime | None) -> None:
    """Name and values, with what this panel says of them."""
    reading.name = _name(reading, draft)
    gpus = _gpus(draft, hosts)
    if draft.gpus and not gpus:
        _not_taken(draft)
    values = {**draft.values(), "gpu_uuids": gpus}
    values["gpu_count"] = len(gpus) or values["gpu_count"]
    if reading.artifact is not None:
        values["artifact_id"] = reading.artifact.pk
        values.setdefault("task", suggesting.task_of(reading.artifact))
    if draft.host:
        named = next((host for host in hosts if host.name == draft.host), None)
        values |= {"host_id": named.pk} if named is not None else {}
        if named is None:
            draft.tell("warning", "paste.host_unknown", "left_out", "host", host=draft.host[:64])
    if draft.chosen:
        same = row is not None and row.executable == draft.chosen
        values |= {"runtime_id": row.pk} if same and row is not None else {}
        if not same:
            draft.tell("warning", "paste.runtime_unknown", "left_out", "runtime", executable=draft.chosen[:200])
    reading.values = values
    try:
        services.parse_spec({"artifact_id": 0, **values})
    except Invalid as exc:
        for name, text in exc.fields.items():
            draft.tell("error", "paste.not_possible", "", name.partition(".")[0], field=name, text=text)


def _name(reading: Reading, draft: Draft) -> str:
    """A name that nobody uses yet."""
    taken = suggesting.names_taken()
    wanted = draft.name
    if not wanted and reading.artifact is not None:
        return suggesting.free_name(reading.artifact.model.name, taken)
    if not wanted:
        return suggesting.free_name(draft.model.partition(":")[0] or _("model"), taken)
    free = wanted if wanted not in taken else suggesting.free_name(wanted.replace(".", "-"), taken)
    if free != wanted:
        draft.tell("note", "paste.name_taken", "changed", "name", old=wanted, new=free)
    return free
