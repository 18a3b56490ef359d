"""What the deploy form and its plan show: models to choose, places, and what would happen. Nothing is written here."""

import contextlib
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.http import QueryDict
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from deployments import expert, preflight, queries, run_secrets
from deployments.engines import parsers
from deployments.engines.base import version_key
from deployments.engines.options import Schema
from deployments.forms import OPTION_FIELDS, DeploymentForm
from deployments.measured import launches_of
from deployments.models import Deployment
from deployments.pages import bar, smaller
from deployments.pages import choice as choice_page
from deployments.pages.convert import conversions
from deployments.pages.measured import corrected_by
from deployments.pages.why import numbers, places
from deployments.planner.asked import asked_of
from deployments.preflight import Check, runtime_facts
from deployments.spec import DeploymentSpec
from deployments.wording import changes, words
from models_catalog.contexts import short_name
from models_catalog.estimate import Amount
from models_catalog.models import Artifact
from models_catalog.shelf import may_deploy
from panel.core.errors import Invalid
from panel.core.numbers import approx, duration, gib, ngroup
from panel.fleet.models import Gpu, Host, Runtime
from panel.fleet.wording import engine

LINKED = ("host", "device", "gpu_count", "max_model_len", "people")  # what an address may fill in
EXPERT = (
    "host",
    "runtime",
    "device",
    "gpus",
    "max_num_seqs",
    "gpu_memory_utilization",
    "kv_cache_gib",
    "dtype",
    "extra_args",
    "env",
    "env_secrets",
    "restart",
)


def models(chosen: str, actor: Any, find: str = "") -> dict[str, Any]:
    """The models to choose from; `find` is what somebody looks for."""
    found, total = choice_page.choices(chosen, actor, " ".join(find.replace("\0", " ").split())[:100])
    return {"models": found, "models_n": total, "more_n": max(0, total - choice_page.MOST)}


def form(deploy: DeploymentForm, row: Deployment | None, actor: Any, *, suggests: bool = False) -> dict[str, Any]:
    """`suggests`: where no model is chosen, the best one is, since the page then shows a plan at once."""
    sent = deploy.data.get("artifact") if deploy.is_bound else deploy.initial.get("artifact")
    choice = models(str(sent or ""), actor)
    if suggests and not sent and (best := choice_page.best(choice["models"])):
        best["chosen"] = True
        deploy.initial |= choice_page.suggestion(best["artifact"])
    expert_errors = any(name in deploy.errors for name in EXPERT) if deploy.is_bound else False
    return {
        "section": "deployments",
        "form": deploy,
        "d": row,
        "title": _("Settings of %(name)s") % {"name": row.name} if row else _("Deploy a model"),
        **choice,
        "few": choice_page.FEW,
        "hosts": list(Host.objects.only("pk", "name")),
        "runtimes": _runtimes(str(deploy["runtime"].value() or "")),
        "chosen_gpus": deploy["gpus"].value() or [],
        "settings": expert.page(deploy.schema, deploy.options_shown(), kinds=_kinds(sent)),
        "expert_open": expert_errors or row is not None or bool(deploy.initial.get("host")),
        "secrets": run_secrets.names_for(actor),
    }


def _kinds(artifact: Any) -> tuple[str, ...]:
    """What tells the family of the chosen model. One query."""
    text = str(getattr(artifact, "pk", artifact) or "")
    if not text.isdecimal() or len(text) > 18:
        return ()
    row = Artifact.objects.select_related("model").filter(pk=int(text)).first()
    return parsers.kinds_of(row.model.name, row.facts) if row is not None else ()


def schema_for(runtime: str) -> Schema:
    """What the chosen engine's parser knows, else that of the newest. Two queries."""
    rows = Runtime.objects.filter(engine="vllm", present=True, refusal__isnull=True)
    if runtime.isdecimal() and len(runtime) < 10:
        rows = rows.filter(pk=int(runtime)) or rows
    newest = max(rows.defer("flags"), key=lambda row: version_key(row.version), default=None)
    return runtime_facts(newest).schema if newest is not None else Schema()


def _runtimes(chosen: str) -> list[dict[str, Any]]:
    """Engines to choose from, the newest of each host first; also the chosen one that is gone, so that it can be seen.

    With one alone there is nothing to choose.
    """
    rows = Runtime.objects.filter(engine="vllm").defer("flags").select_related("host").order_by("host__name", "pk")
    there = [row for row in rows if (row.present and row.remove_job_id is None) or str(row.pk) == chosen]
    there.sort(key=lambda row: version_key(row.version), reverse=True)
    there.sort(key=lambda row: row.host.name)
    if len(there) < 2 and not chosen:
        return []
    return [
        {
            "id": row.pk,
            "name": f"{row.host.name} · {engine(row)} · {row.executable}",
            "bad": _("not there any more") if not row.present else _("does not work") if row.refusal else "",
            "chosen": str(row.pk) == chosen,
        }
        for row in there
    ]


def gpu_choices() -> list[tuple[str, str]]:
    gpus = Gpu.objects.filter(present=True).select_related("host").order_by("host__name", "index")
    return [(g.uuid, f"{g.host.name} GPU {g.index} · {g.name} · {gib(g.total_mib)}") for g in gpus]


def first_values(asked: QueryDict, gpus: Collection[str] = ()) -> dict[str, Any]:
    """The form as it opens: the model and the values that the link named, and a name made of the model's."""
    values: dict[str, Any] = {
        "device": "auto",
        "task": "generate",
        "priority": "quality",
        "restart": "on_failure",
        "fix_once": "no",
        "gpu_count": 1,
    }
    found, artifact = None, asked.get("artifact", "")
    if artifact.isdecimal() and len(artifact) < 19:
        found = Artifact.objects.select_related("model").filter(pk=int(artifact)).first()
    suggested = choice_page.suggestion(found) if found is not None else {}
    return values | suggested | _linked(asked, gpus)


def _linked(asked: QueryDict, gpus: Collection[str]) -> dict[str, Any]:
    """Values of an address, which is no form: what makes no sense is left out. `gpus` are those that are there."""
    values: dict[str, Any] = {}
    for name in LINKED:
        if not asked.get(name):
            continue
        with contextlib.suppress(ValidationError):
            values[name] = DeploymentForm.base_fields[name].clean(asked[name])
    chosen = [uuid for uuid in asked.getlist("gpus") if uuid in gpus]
    return values | ({"gpus": chosen} if chosen else {})


def applied(data: QueryDict) -> QueryDict:
    """What was sent, with a proposed change put in where its button was pressed without scripts."""
    try:
        patch = json.loads(data.get("apply") or "{}")
    except (ValueError, RecursionError):
        return data
    if not isinstance(patch, dict) or not patch:
        return data
    changed = data.copy()
    for name, value in list(patch.items())[:50]:
        changed[str(name)] = str(value)
    return changed


def incomplete(deploy: DeploymentForm, bad: Invalid | None = None) -> dict[str, Any]:
    """The plan's place while the form does not say enough."""
    return {"form": deploy, "bad": bad, "problems": list(bad.fields.values()) if bad else []}


def refusal(spec: DeploymentSpec, name: str, actor: Any, own: UUID | None = None) -> dict[str, Any] | None:
    """The plan of what could not start however long it waited; None where it may start, now or later.

    None too for a model that the person may not use: that refusal comes first, and is the service's. `own` is the run
    that would be stopped for it.
    """
    fleet = preflight.Fleet.of(spec, own, actor)
    if fleet is None or not may_deploy(fleet.artifact.model, actor):
        return None
    check = preflight.check(spec, name=name, fleet=fleet)
    if check.ok or check.retryable:
        return None
    return plan(preflight.check(spec, name=name, ahead=True, fleet=fleet), spec, actor)


def plan(check: Check, spec: DeploymentSpec, actor: Any) -> dict[str, Any]:
    reason = words(check.reason)
    smaller_forms = smaller.links(check, spec.artifact_id, actor)
    context: dict[str, Any] = {
        "fits": check.ok,
        "later": check.retryable,
        "never": not check.ok and not check.retryable,
        "reason": reason,
        "places": places(check),
        "numbers": numbers(check),
        "changes": _changes(check, spec, smaller_forms["by_artifact"]),
        "hub": smaller_forms["hub"],
        **bar.bars(check, spec),
        "command": check.preview(),
    }
    if not check.ok:
        return context | {"conversions": conversions(check.reason, spec.artifact_id, spec.host_id)}
    assert check.placement is not None and check.launch is not None and check.host and check.runtime and check.copy
    gpus = " + ".join(f"GPU {gpu.index}" for gpu in check.gpus)
    notes = [*check.placement.notes, *check.launch.notes]
    learned = corrected_by(launches_of(check.placement.plan))
    return {
        **context,
        "where": f"{check.host.name}, {gpus or _('CPU')}",
        "level_kind": "warn" if check.placement.level in ("tight", "unlikely") else "ok",
        "room": _room(check, spec),
        "facts": [*_place(check, spec, gpus), *_capacity(check, spec), *_reserved(check)],
        "notes": [said for note in notes if (said := words(note.as_dict())) is not None],
        "shared": bar.shared(check.outlook),
        "learned_note": learned,
        "doubt_note": "" if learned else _doubt(context.get("kv_doubt", "")),
    }


def _doubt(told: str) -> str:
    """Why the estimate has a range, and when it gets smaller."""
    if not told:
        return ""
    text = _(
        "%(doubt)s, because this engine has not run a model of this kind on such GPUs here yet. The first start tells."
    )
    return text % {"doubt": told}


def _place(check: Check, spec: DeploymentSpec, gpus: str) -> list[tuple[str, str, str]]:
    """Where, with which engine, and how long until it is ready."""
    assert check.host and check.runtime and check.copy
    names = _(" and ").join(dict.fromkeys(short_name(gpu.name) for gpu in check.gpus))
    on = f"{gpus}, {names}" if names else _("CPU")
    why = _("the newest that fits") if spec.runtime_id is None else _("chosen in these settings")
    usual = queries.usual_start(check.host.pk, check.runtime.pk, check.copy.pk)
    ready = (_("not known"), _("it never started there"))
    if usual is not None:
        told = ngettext("from %(n)s earlier start", "from %(n)s earlier starts", usual[1]) % {"n": usual[1]}
        ready = (approx(duration(usual[0])), told)
    return [(_("Where"), check.host.name, on), (_("Engine"), engine(check.runtime), why), (_("Ready in"), *ready)]


def _changes(check: Check, spec: DeploymentSpec, fetched: Mapping[int, Mapping[str, str]]) -> list[dict[str, Any]]:
    """What would make it fit; one that is a change of these settings comes with the form's fields for it, one that is
    done on another page with its address (`fetched`: of forms of the model that no host has).
    """
    patches = [field_values(change.patch, spec) if change.patch else {} for change in check.changes]
    said = changes(check.reason)
    found = [
        {
            "text": one.text,
            "hint": one.hint,
            "patch": json.dumps(patch) if patch else "",
            "page": fetched.get(change.reason.params.get("artifact", 0)),
        }
        for one, patch, change in zip(said, patches, check.changes, strict=True)
    ]
    most = check.outlook.most.value if check.outlook is not None and check.outlook.most is not None else 0
    if not check.ok and 1 <= most < (spec.people or 0):
        text = _("For at most %(people)s people at the same time it fits.") % {"people": ngroup(most)}
        found.append({"text": text, "hint": "", "patch": json.dumps({"people": str(most)}), "page": None})
    return found


def field_values(patch: Mapping[str, Any], spec: DeploymentSpec) -> dict[str, str]:
    """A patch of the spec as the form's fields."""
    found = {"artifact" if name == "artifact_id" else name: patch[name] for name in patch if name != "options"}
    options = patch.get("options", spec.options)
    for name in {*options, *spec.options}:
        if options.get(name) != spec.options.get(name):
            found[name if name in OPTION_FIELDS else expert.PREFIX + name] = options.get(name)
    return {name: _text(value) for name, value in sorted(found.items())}


def _text(value: Any) -> str:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _room(check: Check, spec: DeploymentSpec) -> dict[str, str]:
    """How many conversations, by the estimate and the engine's limit; the page's script follows the sliders in it.

    May be empty.
    """
    placed = check.placement
    assert placed is not None
    if placed.at_once is None or placed.at_once.value is None or not placed.context:
        return {}
    people, low = ngroup(placed.at_once.value), placed.at_once.low
    count = format_html('<span data-count="people">{}</span>', people)
    context = format_html('<span data-count="context">{}</span>', ngroup(placed.context))
    wanted = format_html("<span data-asked>{}</span>", ngroup(spec.people))
    return {
        # Translators: how many conversations at the same time there is memory for
        "people": format_html(_("Room for about {people} at once"), people=count),
        "context": format_html(_("Conversations of {context} tokens each."), context=context),
        "low": _("Surely %(low)s.") % {"low": ngroup(low)} if low is not None and ngroup(low) != people else "",
        "asked": format_html(_("You asked for {asked}."), asked=wanted) if spec.people else "",
    }


def _capacity(check: Check, spec: DeploymentSpec) -> list[tuple[str, str, str]]:
    """How long a conversation may be, by the estimate; nothing where there is none."""
    placed = check.placement
    assert placed is not None
    if placed.longest is None or not placed.longest.value:
        return []
    return [(_("Longest conversation"), *_longest(placed.longest, asked_of(spec).context))]


def _longest(amount: Amount, limit: int | None) -> tuple[str, str]:
    """What there is room for, and never more than these settings let a conversation have."""
    assert amount.value is not None
    if limit is not None and amount.value >= limit:
        if amount.low is None or amount.low >= limit:
            return ngroup(limit), _("tokens")
        return approx(ngroup(limit)), _surely(_("tokens"), replace(amount, value=limit))
    return approx(ngroup(amount.value)), _surely(_("tokens"), amount)


def _surely(told: str, amount: Amount) -> str:
    """With the worst end of the range, where that is another number."""
    if amount.low is None or ngroup(amount.low) == ngroup(amount.value):
        return told
    return _("%(what)s; surely %(low)s") % {"what": told, "low": ngroup(amount.low)}


def _reserved(check: Check) -> list[tuple[str, str, str]]:
    assert check.placement is not None
    by_uuid = {gpu.uuid: gpu for gpu in check.gpus}
    facts = []
    for uuid, mib in check.placement.reserve:
        if uuid is None:
            parts = _("weights, KV cache and what the engine needs beside them")
            facts.append((_("Memory set aside"), approx(gib(mib)), parts))
        else:
            gpu = by_uuid[uuid]
            of_all = _("of %(total)s, now %(used)s in use") % {"total": gib(gpu.total_mib), "used": gib(gpu.used_mib)}
            facts.append((_("Set aside on GPU %(n)s") % {"n": gpu.index}, gib(mib), of_all))
    return facts
