"""Changing the settings of what runs: nothing is stopped for settings that can only fail, and its own memory is its own."""

import html
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from deployments import portable, preflight, queries
from deployments.checklist.look import look
from deployments.models import Deployment
from deployments.spec import DeploymentSpec
from deployments.startable import NeverStarts
from models_catalog.models import Artifact, Copy
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.accounts.services import create_token
from panel.core.errors import Invalid
from panel.fleet.models import Gpu, Host, Reservation
from tests.deployments import builders
from tests.deployments.pure.plans import model

NEVER = {"max_model_len": "40960", "people": "900"}


@pytest.fixture
def operator(db: None, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)
    client = Client(headers={"Sec-Fetch-Mode": "navigate", "Accept": "text/html"})
    client.force_login(User.objects.create(username="olga", role="operator"))
    return client


@pytest.fixture
def sent(db: None) -> Callable[..., dict[str, Any]]:
    """What the page sends for a model of known shape on two cards."""
    copy = builders.make_copy(builders.make_host(gpus=2))
    Artifact.objects.update(facts=model("Qwen--Qwen3-8B"))

    def make(**values: Any) -> dict[str, Any]:
        base = {"artifact": copy.artifact_id, "name": "team-chat", "device": "auto", "task": "generate"}
        return {**base, "extra_args": "", "env": "", "restart": "never", "act": "save", **values}

    return make


def edits(client: Client, row: Deployment, values: dict[str, Any]) -> Any:
    return client.post(reverse("deployment-edit", args=[row.pk]), {**values, "act": "", "own": row.pk})


def running(sent: Any) -> Deployment:
    """Ready on the first card, which it fills."""
    copy, gpu = Copy.objects.get(), Gpu.objects.get(index=0)
    row = builders.make_deployment(copy, state="ready")
    run = builders.make_run(row, copy)
    builders.ready(row, run)
    Reservation.objects.filter(holder=str(run.pk)).update(gpu=gpu, mib=41_000)
    process = {"pid": 1, "name": "vllm", "used_mib": 42_000, "job_id": str(run.pk)}
    measured = {**gpu.measured, "processes": [process]}
    Gpu.objects.filter(pk=gpu.pk).update(reserved_mib=41_000, used_mib=42_600, measured=measured)
    Gpu.objects.exclude(pk=gpu.pk).update(present=False)
    Host.objects.update(ram_reserved_mib=0)
    return row


@pytest.mark.parametrize(
    "bad", [NEVER, {"extra_args": "--no-such-flag 1"}], ids=["it never fits", "the engine does not know it"]
)
def test_what_runs_is_not_stopped_for_settings_that_can_only_fail(
    operator: Client, sent: Any, bad: dict[str, str]
) -> None:
    row = running(sent)
    Artifact.objects.update(
        facts=model("Qwen--Qwen3-30B-A3B", torch_dtype="float32") if bad is NEVER else model("Qwen--Qwen3-8B")
    )
    refused = edits(operator, row, sent(**bad))
    assert refused.status_code == 422
    (told,) = refused.context["form"].non_field_errors()
    assert told.startswith(f"{row.name} was left as it is") and refused.context["reason"].text in told
    assert refused.context["never"] and row.name in refused.content.decode()
    row.refresh_from_db()
    assert (row.state, row.desired, row.revision.number, row.revisions.count()) == ("ready", "running", 1, 1)
    Deployment.objects.update(desired="stopped", state="stopped")
    assert edits(operator, row, sent(**bad)).status_code == 302, "what is stopped may be saved so"
    assert row.revisions.count() == 2


TOO_LONG = {"max_model_len": 999_999}  # of a model that was made for 40,960


def _by_page(operator: Client, sent: Any, row: Deployment) -> str:
    answer = edits(operator, row, sent(max_model_len="999999"))
    assert answer.status_code == 422
    return str(answer.context["form"].non_field_errors()[0])


def _by_earlier_settings(operator: Client, sent: Any, row: Deployment) -> str:
    row.revisions.create(number=7, spec={**row.revision.spec, "options": TOO_LONG}, created_by="maria")
    answer = operator.post(reverse("deployment-use-revision", args=[row.pk, 7]))
    assert answer.status_code == 409
    return html.unescape(answer.content.decode())


def _by_program(operator: Client, sent: Any, row: Deployment) -> str:
    olga = User.objects.get(username="olga")
    _token, plain = create_token(olga, "t", actor=olga, scope="api:write")
    program = Client(headers={"Authorization": f"Bearer {plain}"})
    body = {"spec": {"options": TOO_LONG}}
    answer = program.patch(f"/api/v1/deployments/{row.pk}", body, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (409, "deployment.never_starts")
    return f"{answer.json()['message']} {answer.json()['hint']}"


def _by_file(operator: Client, sent: Any, row: Deployment, **how: Any) -> str:
    text = portable.dump([queries.one(row.pk)]) + "    options: {max_model_len: 999999}\n"
    with pytest.raises(NeverStarts) as caught:
        portable.apply(text.encode(), actor=Actor.shell(), **how)
    return f"{caught.value.text} {caught.value.hint_text}"


def _by_file_to_try(operator: Client, sent: Any, row: Deployment) -> str:
    return _by_file(operator, sent, row, dry_run=True)


WAYS = [_by_page, _by_earlier_settings, _by_program, _by_file, _by_file_to_try]


@pytest.mark.parametrize("way", WAYS, ids=["page", "earlier-settings", "program", "file", "file-to-try"])
def test_whatever_saves_settings_asks_the_same(operator: Client, sent: Any, way: Callable[..., str]) -> None:
    row = running(sent)
    made = row.revisions.count()
    told = way(operator, sent, row)
    assert "team-chat was left as it is: with these settings it could never start." in told
    assert "Conversations of 999,999 tokens are asked for; this model was made for 40,960 at most." in told
    assert "stop it first" in told
    row.refresh_from_db()
    assert (row.state, row.desired, row.revision.number) == ("ready", "running", 1)
    assert row.revisions.count() == made + (way is _by_earlier_settings)


@pytest.mark.parametrize("state", ["failed", "queued", "stopped"])
def test_what_does_not_run_may_be_saved_so(operator: Client, sent: Any, state: str) -> None:
    """It only fails again, with its reason; nothing is stopped for it."""
    row = running(sent)
    Deployment.objects.update(state=state)
    row.refresh_from_db()
    assert edits(operator, row, sent(max_model_len="999999")).status_code == 302
    row.refresh_from_db()
    assert row.revision.spec["options"]["max_model_len"] == 999_999


def test_a_file_keeps_what_it_changed_before_from_being_half_done(operator: Client, sent: Any) -> None:
    row = running(sent)
    model_name = Artifact.objects.get().model.name
    text = f"""
berth: 1
deployments:
  - {{name: another, model: {model_name}, running: false}}
  - {{name: team-chat, model: {model_name}, options: {{max_model_len: 999999}}}}
"""
    with pytest.raises(NeverStarts):
        portable.apply(text.encode(), actor=Actor.shell())
    assert [each.name for each in Deployment.objects.all()] == [row.name]


def test_a_new_one_that_is_made_from_the_shell_says_it_at_once(operator: Client, sent: Any) -> None:
    entry = {"name": "new", "model": Artifact.objects.get().model.name, "options": TOO_LONG}
    with pytest.raises(Invalid) as caught:
        portable.create(entry, actor=Actor.shell())
    assert "was made for 40,960 at most" in caught.value.fields["max_model_len"]


def test_what_may_fit_later_is_saved_while_it_runs(operator: Client, sent: Any) -> None:
    row = running(sent)
    stranger = {"pid": 2, "name": "python3", "used_mib": 40_000}
    Gpu.objects.filter(index=0).update(measured={"processes": [stranger]})
    assert edits(operator, row, sent(people="2")).status_code == 302
    row.refresh_from_db()
    assert row.revision.number == 2


def test_its_own_memory_is_not_in_the_way_of_its_new_settings(operator: Client, sent: Any) -> None:
    row = running(sent)
    values = sent(people="2")
    new = operator.post(reverse("deployment-plan"), values)
    assert not new.context["fits"], "for another there is no room"
    own = operator.post(reverse("deployment-plan"), {**values, "own": row.pk})
    assert own.context["fits"] and not own.context["shared"], own.context["reason"]
    shown = operator.post(reverse("deployment-edit", args=[row.pk]), {**values, "own": row.pk, "act": "plan"})
    assert shown.context["fits"]
    card = operator.post(reverse("deployment-check"), {**values, "own": row.pk})
    assert next(part for part in card.context["parts"] if part["name"] == "plan")["state"] != "error"
    spec = DeploymentSpec(artifact_id=values["artifact"], people=2)
    assert not look(spec, name=row.name, ask=False).check.ok
    assert look(spec, name=row.name, ask=False, own=row.pk).check.ok, "as the API asks with a deployment"
    assert edits(operator, row, values).status_code == 302


def test_on_a_processor_it_may_fill_the_host_and_be_edited(operator: Client) -> None:
    copy = builders.make_copy(builders.make_host())
    row = builders.make_deployment(copy, state="ready")
    run = builders.make_run(row, copy, status={"rss_mib": 4_500})
    builders.ready(row, run)
    host = Host.objects.get()
    Host.objects.update(ram_total_mib=8_000, facts={**host.facts, "ram_total_mib": 8_000, "ram_available_mib": 1_500})
    values = {"artifact": copy.artifact_id, "device": "cpu", "task": "generate", "kv_cache_gib": "1", "name": row.name,
              "restart": "on_failure", "max_model_len": "1024"}  # fmt: skip
    assert "host.ram" in str(
        preflight.check(DeploymentSpec(artifact_id=copy.artifact_id, kv_cache_gib=1), name="x").reason
    )
    answer = operator.post(reverse("deployment-plan"), {**values, "own": row.pk})
    assert answer.context["fits"] and "Other programs use the rest" not in answer.content.decode()
    assert edits(operator, row, values).status_code == 302


@pytest.mark.parametrize(
    ("held", "available", "fits"),
    [
        (4_500, 1_500, True),
        (400, 1_500, False),  # just begun: what it reserved is not there to be given back
        (7_000, 100, True),  # it holds more than it reserved
        (60_000, 4_000, True),  # and never more than is in use
        (0, 1_500, True),  # not told: what it reserved
    ],
    ids=["as-reserved", "just-begun", "grown", "shared-pages", "not-told"],
)
def test_it_gives_back_the_memory_that_its_processes_hold(
    operator: Client, held: int, available: int, fits: bool
) -> None:
    copy = builders.make_copy(builders.make_host())
    row = builders.make_deployment(copy, state="ready")
    run = builders.make_run(row, copy, status={"rss_mib": held})
    facts = {**Host.objects.get().facts, "ram_total_mib": 8_000, "ram_available_mib": available}
    Host.objects.update(ram_total_mib=8_000, facts=facts)
    settings = DeploymentSpec(artifact_id=copy.artifact_id, kv_cache_gib=1)  # needs 5,120 MiB
    fleet = preflight.Fleet.of(settings, run.pk)
    assert fleet is not None and preflight.check(settings, name="x", fleet=fleet).ok == fits
    assert fleet.seen[0].ram_available_mib <= 8_000 and fleet.seen[0].ram_reserved_mib == 0


def test_what_others_hold_too_is_not_given_back(operator: Client) -> None:
    """Libraries and weights that are read as files: they are free already, as far as the machine counts."""
    copy = builders.make_copy(builders.make_host())
    row = builders.make_deployment(copy, state="ready")
    run = builders.make_run(row, copy, status={"rss_mib": 4_500, "own_mib": 3_000})
    facts = {**Host.objects.get().facts, "ram_total_mib": 8_000, "ram_available_mib": 1_500}
    Host.objects.update(ram_total_mib=8_000, facts=facts)
    fleet = preflight.Fleet.of(DeploymentSpec(artifact_id=copy.artifact_id), run.pk)
    assert fleet is not None and fleet.seen[0].ram_available_mib == 4_500


def test_the_plan_of_an_edit_takes_hidden_secrets_for_what_they_are_and_shows_none(operator: Client, sent: Any) -> None:
    row = builders.make_deployment(Copy.objects.get())
    row.revision.spec = {**row.revision.spec, "env": {"OMP_PLACES": "hf_verysecretabcdefghijklmnopqrstuv12"}}
    row.revision.save()
    page = operator.get(reverse("deployment-edit", args=[row.pk]))
    values = sent(own=row.pk, env=page.context["form"].initial["env"])
    answer = operator.post(reverse("deployment-plan"), values)
    assert answer.context["fits"] and "OMP_PLACES=" in answer.context["command"], answer.context["reason"]
    assert "hf_verysecretabcdefghijklmnopqrstuv12" not in answer.content.decode()
