"""The planner's answers on rows: sentences, changes, what a run keeps, and what is reserved."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from deployments import preflight
from deployments.models import Deployment
from deployments.reconcile import reconcile
from deployments.spec import DeploymentSpec
from deployments.wording import candidates, changes
from models_catalog.models import Artifact, CatalogModel, Copy
from panel.accounts.models import User
from panel.fleet.models import Gpu, Host, Reservation
from tests.deployments import builders
from tests.deployments.pure.plans import model

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


def make_lab(**measured: Any) -> tuple[Host, Copy]:
    """A host with one RTX 4090 as GPU 2, and Qwen3-8B on it."""
    host = builders.make_host("lab-1", device="cuda")
    Gpu.objects.create(host=host, uuid="GPU-2", index=2, name="NVIDIA GeForce RTX 4090", total_mib=24_564,
                       used_mib=measured.pop("used_mib", 300), measured={"compute_capability": "8.9", **measured})  # fmt: skip
    copy = builders.make_copy(host, "Qwen3-8B")
    Artifact.objects.filter(pk=copy.artifact_id).update(facts=model(), size_bytes=16 << 30)
    return host, Copy.objects.get(pk=copy.pk)


def ask(copy: Copy, **values: Any) -> preflight.Check:
    return preflight.check(DeploymentSpec(artifact_id=copy.artifact_id, **values), name="x")


PYTHON = {"pid": 4711, "name": "python3", "user": "ada", "used_mib": 10_035, "job_id": None}


def process(pid: int, name: str, user: str, used_mib: int | None) -> dict[str, Any]:
    return {"pid": pid, "name": name, "user": user, "used_mib": used_mib, "job_id": None}


@pytest.mark.parametrize(
    ("there", "held", "called"),
    [
        ([PYTHON], "9.8 of 24 GiB are held by a python3 process of user ada", "python3 (ada)"),
        ([{**PYTHON, "user": ""}], "9.8 of 24 GiB are held by a python3 process outside Berth", "python3"),
        ([{**PYTHON, "name": "", "user": ""}], "9.8 of 24 GiB are held by other programs", "4711"),
        (
            [process(1, "Xorg", "", 300), PYTHON],
            "10.1 of 24 GiB are held by programs outside Berth: python3 (ada) 9.8\xa0GiB, Xorg 0.3\xa0GiB",
            "Xorg, python3 (ada)",
        ),
        (
            [PYTHON, *(process(n, f"p{n}", "bo", 400 - n) for n in range(7))],
            "12.5 of 24 GiB are held by programs outside Berth:"
            " python3 (ada) 9.8\xa0GiB, p0 (bo) 0.4\xa0GiB, p1 (bo) 0.4\xa0GiB, 5 more",
            "p0 (bo), p1 (bo), p2 (bo), p3 (bo), p4 (bo)",
        ),
    ],
    ids=["its user", "no user", "no name", "two", "many"],
)
def test_strangers_on_the_card_in_words(there: list[dict[str, Any]], held: str, called: str) -> None:
    _host, copy = make_lab(used_mib=300 + sum(one["used_mib"] for one in there), processes=there)
    found = ask(copy)
    (place,) = candidates(found.reason)
    assert f"{place['name']}: {place['text']}" == f"lab-1 GPU 2: {held}; needs 17.5."
    (help_,) = changes(found.reason)
    assert help_.text == f"It fits on lab-1 when {called}, which is not Berth's, lets go of GPU 2."
    assert found.retryable


def test_what_would_help_is_on_the_form(client: Client) -> None:
    _host, copy = make_lab()
    client.force_login(User.objects.create(username="mina", role="operator"))
    page = client.post(
        reverse("deployment-plan"),
        {"artifact": copy.artifact_id, "device": "auto", "task": "generate", "restart": "on_failure",
         "max_model_len": "40960", "gpu_memory_utilization": "0.8"},
    ).content.decode()  # fmt: skip
    assert "What would help" in page and "With conversations of at most" in page


def test_no_conversation_is_longer_than_the_settings_allow(client: Client) -> None:
    _host, copy = make_lab()
    client.force_login(User.objects.create(username="mina", role="operator"))
    form = {"artifact": copy.artifact_id, "device": "auto", "task": "generate", "restart": "on_failure"}
    told = {
        asked: {name: value for name, value, _more in client.post(reverse("deployment-plan"), more).context["facts"]}
        for asked, more in (("4096", {**form, "max_model_len": "4096"}), ("", form))
    }
    assert told["4096"]["Longest conversation"] == "4,096", told
    assert int(told[""]["Longest conversation"].strip("≈ \xa0").replace(",", "")) > 4096, told
    assert "Memory for conversations" not in told["4096"]
    page = client.post(reverse("deployment-plan"), {**form, "max_model_len": "4096"})
    assert re.search(
        r"Room for about .*\d.* at once.*Conversations of .*4,096.* tokens each", page.content.decode(), re.S
    )


def test_a_run_keeps_what_was_foreseen_and_reserves_it() -> None:
    host, copy = make_lab()
    row = builders.make_deployment(copy, desired="running")
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "starting" and row.run.placement["estimate"]["verdict"] == "fits"
    (share,) = Reservation.objects.all()
    assert share.mib == Gpu.objects.get(host=host).reserved_mib == row.run.placement["reserve"][0][1]


def test_who_holds_the_memory_is_named_by_the_deployment() -> None:
    host, copy = make_lab()
    first = builders.make_deployment(copy, "team-chat", desired="running")
    reconcile(first.pk)
    found = ask(copy)
    assert [place["name"] for place in candidates(found.reason)] == ["lab-1 GPU 2"]
    assert [said.text for said in changes(found.reason)] == ["It fits on lab-1 when team-chat stops."]
    assert Gpu.objects.get(host=host).reserved_mib > 0


def test_reservations_never_exceed_what_a_card_has() -> None:
    """Deployments that want little are put beside each other until the card is full; the next one waits."""
    host, copy = make_lab()
    Artifact.objects.filter(pk=copy.artifact_id).update(facts=model("Qwen--Qwen2.5-1.5B-Instruct"))
    rows = []
    for number in range(6):
        row = builders.make_deployment(copy, f"small-{number}", desired="running")
        spec = {**row.revision.spec, "priority": "fit"}
        type(row.revision).objects.filter(pk=row.revision.pk).update(spec=spec)
        reconcile(row.pk)
        rows.append(row.pk)
    gpu = Gpu.objects.get(host=host)
    states = list(Deployment.objects.filter(pk__in=rows).order_by("pk").values_list("state", flat=True))
    assert states.count("starting") >= 3 and states[-1] == "queued"
    assert gpu.reserved_mib == sum(Reservation.objects.values_list("mib", flat=True)) <= gpu.total_mib


def with_a_smaller_form() -> tuple[Copy, Copy]:
    """A model that is too big for the card, and its quantised form beside it."""
    host, copy = make_lab()
    Artifact.objects.filter(pk=copy.artifact_id).update(facts=model("Qwen--Qwen3-14B"), size_bytes=28 << 30)
    small = builders.make_copy(host, "Qwen3-8B-AWQ")
    quantised = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}}
    Artifact.objects.filter(pk=small.artifact_id).update(
        facts=model("Qwen--Qwen3-14B", **quantised), size_bytes=9 << 30, label="AWQ 4-bit"
    )
    return copy, small


def test_a_quantised_form_in_the_catalog_is_proposed() -> None:
    copy, small = with_a_smaller_form()
    found = ask(copy)
    twin = next(change for change in found.changes if change.reason.code == "change.twin")
    assert twin.patch == {"artifact_id": small.artifact_id}
    assert "Qwen3-8B-AWQ (AWQ 4-bit), another form of this model, fits." in [c.text for c in changes(found.reason)]


@pytest.mark.parametrize(
    ("role", "approved", "offered"),
    [("operator", False, False), ("operator", True, True), ("admin", False, True), (None, False, False)],
)
def test_only_a_form_that_the_person_may_deploy_is_proposed(
    role: str | None, approved: bool, offered: bool, settings: Any
) -> None:
    settings.BERTH_APPROVED_MODELS_ONLY = True
    copy, small = with_a_smaller_form()
    CatalogModel.objects.filter(artifacts=small.artifact_id).update(approved=approved)
    actor = User.objects.create(username="mina", role=role) if role is not None else None
    found = preflight.check(DeploymentSpec(artifact_id=copy.artifact_id), name="x", actor=actor)
    assert ("change.twin" in [change.reason.code for change in found.changes]) is offered


def test_a_form_that_no_host_has_any_more_is_named_and_one_that_is_damaged_is_not() -> None:
    copy, small = with_a_smaller_form()
    Copy.objects.filter(pk=small.pk).update(present=False)
    (away,) = [change for change in ask(copy).changes if change.reason.code == "change.twin_away"]
    assert away.reason.params["artifact"] == small.artifact_id and not away.patch
    Copy.objects.filter(pk=small.pk).update(present=True, usable=False)
    assert not [change for change in ask(copy).changes if "twin" in change.reason.code]
