"""The deployments' pages: load, call, render."""

import uuid
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from deployments import applying, first_steps, preflight, probe, queries, services
from deployments.engines.registry import adapter_for
from deployments.forms import DeploymentForm
from deployments.gateway.ask import ask as ask_door
from deployments.gateway.snapshot import probe_token
from deployments.models import Deployment
from deployments.pages import check as check_page
from deployments.pages import detail as detail_page
from deployments.pages import fixes, listing
from deployments.pages import form as form_page
from deployments.pages import run as run_page
from deployments.spec import DeploymentSpec
from deployments.startable import NeverStarts
from deployments.views.check import looked, of_stopped, warnings_of
from deployments.views.record import number
from models_catalog.shelf import NotApproved
from panel.accounts.access import can
from panel.accounts.guard import right
from panel.core.errors import Conflict, Invalid
from panel.core.numbers import ngroup
from panel.core.pages import form_again, go, is_htmx, page, put_errors, slice_of

PAGE = 50
ASKS = ("plan", "check", "check-again")  # what a button of the form does beside saving
LONGEST_SHOWN = 20_000  # characters of an answer in the box


@require_GET
@right("deployments.view")
def index(request: HttpRequest) -> HttpResponse:
    group, text = request.GET.get("state", ""), request.GET.get("q", "")[:100]
    counts = queries.counts()
    if not counts["all"]:
        context = {**first_steps.context(), "can_create": can(request.actor, "deployments.create")}
        return page(request, "deployments/empty.html", context, parts=["steps"])
    if request.GET.get("part") == "steps":  # the first deployment was made while the first steps were open
        return go(request, reverse("deployments"))
    rows = slice_of(request, queries.listed(group=group, text=text), size=PAGE)
    moving = bool(counts["starting"] or counts["waiting"])
    context = {
        **listing.index(list(rows), counts, group=group, text=text),
        "page": rows,
        "moving": moving,
        "can_create": can(request.actor, "deployments.create"),
    }
    return page(request, "deployments/list.html", context, parts=["rows"])


# --- new and edit -----------------------------------------------------------------------------------------------------


def _form(request: HttpRequest, *, row: Deployment | None = None) -> DeploymentForm:
    choices = form_page.gpu_choices()
    if request.method == "POST":
        data = form_page.applied(request.POST)
        schema = form_page.schema_for(data.get("runtime", ""))
        return DeploymentForm(data, gpu_choices=choices, named=row is None and _saves(request), schema=schema)
    if row is not None:
        spec = DeploymentSpec.model_validate(row.revision.spec)
        initial, runtime = DeploymentForm.initial_of(spec, row.name), str(spec.runtime_id or "")
    else:
        initial, runtime = form_page.first_values(request.GET, dict(choices)), ""
    return DeploymentForm(initial=initial, gpu_choices=choices, schema=form_page.schema_for(runtime))


def _models(request: HttpRequest) -> HttpResponse | None:
    """The list of models alone, while somebody looks for one of very many."""
    if request.method != "GET" or request.GET.get("part") != "models" or not is_htmx(request):
        return None
    context = form_page.models(request.GET.get("artifact", ""), request.actor, request.GET.get("find", ""))
    return page(request, "deployments/form.html", context, parts=["models"])


def _show(
    request: HttpRequest, form: DeploymentForm, row: Deployment | None = None, refused: dict[str, Any] | None = None
) -> HttpResponse:
    context = form_page.form(form, row, request.actor, suggests=row is None and request.method == "GET")
    context["rest_shown"] = request.GET.get("all") == "1" or request.GET.get("part") == "rest"
    if request.POST.get("act") in ASKS or "apply" in request.POST:  # a browser without scripts asks for the plan so
        if request.POST.get("act") != "plan" and "apply" not in request.POST:
            context |= looked(form, request.actor, again=request.POST.get("act") == "check-again")
        return page(request, "deployments/form.html", {**context, **_planned(form, request.actor), "planned": True})
    if form.is_bound:
        planned = {**refused, "planned": True} if refused is not None else {}
        return form_again(request, "deployments/form.html", {**context, **planned})
    return page(request, "deployments/form.html", context, parts=["rest"])


def _save(request: HttpRequest, form: DeploymentForm, row: Deployment | None) -> HttpResponse:
    try:
        made, refused = _made(request, form) if row is None else (row, _edited(request, form, row))
    except Invalid as exc:
        put_errors(form, exc)
        return _show(request, form, row)
    except NotApproved as exc:
        form.add_error(None, f"{exc.text} {exc.hint_text}")
        return _show(request, form, row)
    if refused is not None:
        left = refused.get("left")
        form.add_error(None, f"{left.text} {left.hint_text}" if left is not None else refused["reason"].text)
        return _show(request, form, row, refused)
    assert made is not None
    return go(request, reverse("deployment", args=[made.pk]))


def _made(request: HttpRequest, form: DeploymentForm) -> tuple[Deployment | None, dict[str, Any] | None]:
    """The new deployment, or the plan of what could never start. Raises Invalid and NotApproved."""
    spec, name = form.to_spec(), form.cleaned_data["name"]
    start = request.POST.get("act") != "save"
    if start and (refused := form_page.refusal(spec, name, request.actor)) is not None:
        return None, refused
    despite = warnings_of(spec, name) if request.POST.get("act") == "anyway" else []
    return services.create(name=name, spec=spec, actor=request.actor, start=start, despite=despite), None


def _edited(request: HttpRequest, form: DeploymentForm, row: Deployment) -> dict[str, Any] | None:
    """Save the settings. Where what runs would be stopped for some that could never start, nothing is saved, and their
    plan is returned. Raises Invalid, NotApproved and Conflict.
    """
    before = DeploymentSpec.model_validate(row.revision.spec)
    spec = form.to_spec(before)
    number = request.POST.get("revision", "")
    base = int(number) if number.isdecimal() and len(number) < 10 else None
    try:
        services.edit(row, spec=spec, actor=request.actor, base_number=base)
    except NeverStarts as exc:
        refused = form_page.refusal(spec, row.name, request.actor, own=row.run_id)
        if refused is None:
            raise
        return {**refused, "left": exc}
    return None


def _saves(request: HttpRequest) -> bool:
    return request.method == "POST" and request.POST.get("act") not in ASKS and "apply" not in request.POST


@require_http_methods(["GET", "POST"])
@right("deployments.create")
def new(request: HttpRequest) -> HttpResponse:
    if (found := _models(request)) is not None:
        return found
    form = _form(request)
    if _saves(request) and form.is_valid():
        return _save(request, form, None)
    return _show(request, form)


@require_http_methods(["GET", "POST"])
@right("deployments.edit")
def edit(request: HttpRequest, pk: int) -> HttpResponse:
    row = queries.one(pk)
    if (found := _models(request)) is not None:
        return found
    form = _form(request, row=row)
    if _saves(request) and form.is_valid():
        return _save(request, form, row)
    return _show(request, form, row)


@require_POST
@right("deployments.create")
def plan(request: HttpRequest) -> HttpResponse:
    """What would happen, by the planner that the launch uses; nothing is written."""
    schema = form_page.schema_for(request.POST.get("runtime", ""))
    form = DeploymentForm(request.POST, gpu_choices=form_page.gpu_choices(), named=False, schema=schema)
    return render(request, "deployments/_plan.html", _planned(form, request.actor))


def _planned(form: DeploymentForm, actor: Any) -> dict[str, Any]:
    if not form.is_valid():
        return form_page.incomplete(form)
    own = queries.named(form.data.get("own", ""))
    try:
        spec = form.to_spec(own[1]) if own else form.to_spec()
        fleet = preflight.Fleet.of(spec, queries.run_of(own[0]) if own else None, actor)
        check = preflight.check(spec, name=form.cleaned_data["name"] or "model", ahead=True, fleet=fleet)
    except Invalid as exc:
        return form_page.incomplete(form, exc)
    return form_page.plan(check, spec, actor)


# --- one deployment ---------------------------------------------------------------------------------------------------


@require_GET
@right("deployments.view")
def detail(request: HttpRequest, pk: int) -> HttpResponse:
    row = queries.one(pk)
    look = request.GET.get("look")
    if look is not None and look != detail_page.look_of(row):  # another state's page, or another log: load it whole
        return go(request, reverse("deployment", args=[pk]))
    rights = {
        "may_operate": can(request.actor, "deployments.operate"),
        "may_ask": can(request.actor, "deployments.try"),
        "may_delete": can(request.actor, "deployments.delete"),
        "may_edit": can(request.actor, "deployments.edit"),
    }
    part = request.GET.get("part")
    before = number(request, "before")
    alone = part if is_htmx(request) else None
    context = detail_page.detail(row, **rights, part=alone, actor=request.actor, before=before)
    if part != "live" and rights["may_operate"] and (found := of_stopped(row, request.actor)) is not None:
        context["against"] = check_page.standing(found)
    return page(request, "deployments/detail.html", {**context, "part": part}, parts=["live"])


@require_GET
@right("deployments.view")
def run(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """The record of one start, also of a deployment that was deleted."""
    rights = {name: can(request.actor, f"deployments.{name}") for name in ("operate", "edit")}
    found = queries.run(run_id)
    context = run_page.run_record(found, may_operate=rights["operate"], may_edit=rights["edit"])
    context["attempts"] = fixes.attempts(found)
    return page(request, "deployments/run.html", context)


@require_POST
@right("deployments.operate")
def start(request: HttpRequest, pk: int) -> HttpResponse:
    row = queries.known(pk)
    # Only who pressed "Start anyway" has the list read once more: a plain start is as fast as it can be.
    found = of_stopped(row, request.actor) if request.POST.get("act") == "anyway" else None
    services.start(row, actor=request.actor, despite=found.warnings if found is not None else ())
    return go(request, reverse("deployment", args=[pk]))


@require_POST
@right("deployments.operate")
def stop(request: HttpRequest, pk: int) -> HttpResponse:
    services.stop(queries.known(pk), actor=request.actor)
    return go(request, reverse("deployment", args=[pk]))


@require_POST
@right("deployments.operate")
def restart(request: HttpRequest, pk: int) -> HttpResponse:
    services.restart(queries.known(pk), actor=request.actor)
    return go(request, reverse("deployment", args=[pk]))


@require_POST
@right("deployments.edit")
def fix(request: HttpRequest, pk: int, key: str) -> HttpResponse:
    """Apply one of the fixes that the failed page offers, and start again."""
    number = request.POST.get("revision", "")
    base = int(number) if number.isdecimal() and len(number) < 10 else None
    applying.apply(queries.one(pk), key, base_number=base, actor=request.actor)
    return go(request, reverse("deployment", args=[pk]))


@require_POST
@right("deployments.operate")
def start_in_detail(request: HttpRequest, pk: int) -> HttpResponse:
    services.start_in_detail(queries.known(pk), actor=request.actor)
    return go(request, reverse("deployment", args=[pk]))


@require_POST
@right("deployments.edit")
def use_revision(request: HttpRequest, pk: int, number: int) -> HttpResponse:
    revision = services.use_revision(queries.known(pk), number, actor=request.actor)
    text = _("These are the settings %(old)s again, now as number %(new)s.")
    messages.success(request, text % {"old": number, "new": revision.number})
    return go(request, reverse("deployment", args=[pk]))


@require_POST
@right("deployments.delete")
def delete(request: HttpRequest, pk: int) -> HttpResponse:
    services.delete(queries.known(pk), actor=request.actor)
    return go(request, reverse("deployments"))


@require_POST
@right("deployments.try")
def ask(request: HttpRequest, pk: int) -> HttpResponse:
    """One question from the ready page, through the same door that programs use; not stored."""
    row = queries.one(pk)
    text = request.POST.get("text", "").strip()[:4000]
    if not text:
        raise Invalid({"text": _("Write a question first.")})
    if row.run is None or row.state != "ready":
        raise Conflict("deployment.not_ready", _("It does not answer now."), _("Wait until it is ready."))
    spec = DeploymentSpec.model_validate(row.run.revision.spec)
    path, body = probe.question(adapter_for(spec.engine), spec.task, row.name, text)
    token = probe_token(row.pk, str(row.run_id))
    answer = ask_door(settings.BERTH_INTERNAL_URL, token, path, body, timeout_s=settings.BERTH_PROBE_TIMEOUT_S)
    return render(request, "deployments/_asked.html", _asked(row, spec, text, answer))


def _asked(row: Deployment, spec: DeploymentSpec, text: str, answer: Any) -> dict[str, Any]:
    engine = adapter_for(spec.engine)
    said = engine.read_answer(spec.task, answer.json, most=LONGEST_SHOWN) if answer.status == 200 else None
    context = {"d": row, "question": text, "answer": said, "cut": said is not None and engine.was_cut(answer.json)}
    if said is None:
        who = _("The engine") if answer.said_by == "engine" else _("The panel")
        context["error"] = _("%(who)s did not answer (status %(status)s).") % {"who": who, "status": answer.status}
        context["hint"] = answer.text[:500]
    else:
        context["source"] = _("answered in %(ms)s ms") % {"ms": ngroup(round(answer.latency_ms))}
    return context
