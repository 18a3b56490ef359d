"""What the deploy form and its plan show: models to choose, places, and what would happen. Nothing is written here."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.utils.translation import gettext as _

from deployments import queries
from deployments.contexts import candidates, changes
from deployments.contexts_convert import conversions
from deployments.contexts_measured import corrected_by
from deployments.engines.base import version_key
from deployments.forms import DeploymentForm
from deployments.measured import launches_of
from deployments.models import Deployment
from deployments.planner.asked import asked_of
from deployments.preflight import Check, named
from deployments.spec import NAME, DeploymentSpec
from deployments.wording import words
from models_catalog import queries as catalog
from models_catalog.estimate import Amount
from models_catalog.models import Artifact, Copy
from models_catalog.serving import obstacles
from models_catalog.shelf import may_deploy
from models_catalog.wording import of_serving
from panel.core.errors import Invalid
from panel.core.numbers import approx, gib, ngroup, size
from panel.fleet.models import Gpu, Host, Runtime
from panel.fleet.wording import engine

STILL_OPEN = ("no_engine", "gguf_needs_plugin")  # the plan says what can be done
EXPERT = (
    "host",
    "runtime",
    "device",
    "gpus",
    "gpu_memory_utilization",
    "kv_cache_gib",
    "dtype",
    "extra_args",
    "env",
    "restart",
)


def form(deploy: DeploymentForm, row: Deployment | None, actor: Any) -> dict[str, Any]:
    chosen = str(deploy["artifact"].value() or "")
    expert_errors = any(name in deploy.errors for name in EXPERT) if deploy.is_bound else False
    return {
        "section": "deployments",
        "form": deploy,
        "d": row,
        "title": _("Settings of %(name)s") % {"name": row.name} if row else _("Deploy a model"),
        "models": _choices(chosen, actor),
        "hosts": list(Host.objects.only("pk", "name")),
        "runtimes": _runtimes(str(deploy["runtime"].value() or "")),
        "chosen_gpus": deploy["gpus"].value() or [],
        "expert_open": expert_errors or row is not None,
    }


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


def _choices(chosen: str, actor: Any) -> list[dict[str, Any]]:
    """Every model that lies on a host, by name; those that cannot be deployed come last and say why."""
    engines = catalog.engines()
    taken = names_taken()
    found = [_choice(artifact, copies, engines, chosen) for artifact, copies in queries.deployable()]
    for choice in found:
        if not may_deploy(choice["artifact"].model, actor):
            choice |= {
                "problem": _("It is not approved; people who can deploy may only use approved models here."),
                "closed": True,
            }
    for choice in found:  # what the page fills in when the model is chosen
        artifact = choice["artifact"]
        choice["suggest"] = json.dumps({"f-name": free_name(artifact.model.name, taken), "f-task": task_of(artifact)})
    return sorted(found, key=lambda choice: bool(choice["problem"]))


def _choice(artifact: Artifact, copies: list[Copy], engines: Sequence[Runtime], chosen: str) -> dict[str, Any]:
    where = ", ".join(sorted({copy.host.name for copy in copies if copy.usable} or {copy.host.name for copy in copies}))
    obstacle = next(iter(obstacles(artifact, copies, engines)), None)
    is_chosen = str(artifact.pk) == chosen
    return {
        "artifact": artifact,
        "id": artifact.pk,
        "name": artifact.model.name,
        "chosen": is_chosen,
        "facts": " · ".join(part for part in (size(artifact.size_bytes), artifact.label, where) if part),
        "problem": of_serving(obstacle).text if obstacle else "",
        # An engine or its plugin may still come, and the settings of a deployment keep the model that they have.
        "closed": obstacle is not None and obstacle["code"] not in STILL_OPEN and not is_chosen,
    }


def gpu_choices() -> list[tuple[str, str]]:
    gpus = Gpu.objects.filter(present=True).select_related("host").order_by("host__name", "index")
    return [(g.uuid, f"{g.host.name} GPU {g.index} · {g.name} · {gib(g.total_mib)}") for g in gpus]


def first_values(artifact: str) -> dict[str, Any]:
    """The form as it opens: the model that was clicked, and a name made of the model's."""
    values: dict[str, Any] = {"device": "auto", "task": "generate", "restart": "on_failure", "gpu_count": 1}
    found = None
    if artifact.isdecimal() and len(artifact) < 19:
        found = Artifact.objects.select_related("model").filter(pk=int(artifact)).first()
    if found is not None:
        values |= {"artifact": found.pk, "name": free_name(found.model.name, names_taken()), "task": task_of(found)}
    return values


def task_of(artifact: Artifact) -> str:
    """What the model is for, as far as the form offers it."""
    tasks = artifact.facts.get("tasks") or ["generate"]
    return tasks[0] if tasks[0] in ("generate", "embed", "score") else "generate"


def names_taken() -> set[str]:
    return set(Deployment.objects.filter(deleted_at=None).values_list("name", flat=True))


def free_name(model: str, taken: set[str]) -> str:
    """A deployment name from a model's name that nobody uses yet."""
    base = "".join(c if c.isascii() and c.isalnum() else "-" for c in model.lower().rpartition("/")[2])
    base = "-".join(part for part in base.split("-") if part)[:50].strip("-.") or "model"
    name = next(n for i in range(1, 10_000) if (n := base if i == 1 else f"{base}-{i}") not in taken)
    return name if NAME.match(name) else "model"


def incomplete(deploy: DeploymentForm, bad: Invalid | None = None) -> dict[str, Any]:
    """The plan's place while the form does not say enough."""
    return {"form": deploy, "bad": bad, "problems": list(bad.fields.values()) if bad else []}


def plan(check: Check, spec: DeploymentSpec) -> dict[str, Any]:
    reason = words(check.reason)
    elsewhere = named(check.placement.elsewhere) if check.placement is not None else []
    context: dict[str, Any] = {
        "fits": check.ok,
        "later": check.retryable,
        "reason": reason,
        "candidates": candidates(check.reason or {"params": {"candidates": elsewhere}}),
        "changes": changes(check.reason),
        "command": check.preview(),
    }
    if not check.ok:
        return context | {"conversions": conversions(check.reason, spec.artifact_id, spec.host_id)}
    assert check.placement is not None and check.launch is not None and check.host and check.runtime and check.copy
    gpus = " + ".join(f"GPU {gpu.index}" for gpu in check.gpus)
    notes = [*check.placement.notes, *check.launch.notes]
    return {
        **context,
        "where": f"{check.host.name}, {gpus or _('CPU')}",
        "engine": engine(check.runtime),
        "engine_why": _("the newest that fits") if spec.runtime_id is None else _("chosen in these settings"),
        "facts": [*_capacity(check, spec), *_reserved(check)],
        "notes": [said for note in notes if (said := words(note.as_dict())) is not None],
        "learned_note": corrected_by(launches_of(check.placement.plan)),
    }


def _capacity(check: Check, spec: DeploymentSpec) -> list[tuple[str, str, str]]:
    """How many conversations and how long, by the estimate; nothing where there is none."""
    placed, facts = check.placement, []
    assert placed is not None
    if placed.people is not None and placed.people.value is not None and placed.context:
        told = _("of %(context)s tokens each") % {"context": ngroup(placed.context)}
        facts.append((_("Conversations at once"), approx(ngroup(placed.people.value)), _surely(told, placed.people)))
    if placed.longest is not None and placed.longest.value:
        facts.append((_("Longest conversation"), *_longest(placed.longest, asked_of(spec).context)))
    return facts


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
