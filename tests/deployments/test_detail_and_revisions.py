"""One start with a detailed log, an engine that is chosen, and the way back to earlier settings."""

from typing import Any

import pytest
from django.test import Client

from deployments import moves, placing, preflight, services
from deployments.models import Deployment, Run
from deployments.spec import DeploymentSpec
from deployments.wording import words
from panel.accounts.models import User
from panel.audit.models import Event
from panel.core import claims
from panel.core.errors import Conflict
from panel.fleet.models import Runtime
from tests.deployments import builders

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def broken() -> Deployment:
    copy = builders.make_copy(builders.make_host())
    row = builders.make_deployment(copy, state="failed")
    builders.failed(row, copy)
    return row


def as_role(role: str) -> Client:
    client = Client(headers={"Sec-Fetch-Mode": "navigate", "Accept": "text/html"})
    client.force_login(User.objects.get_or_create(username=f"a {role}", defaults={"role": role})[0])
    return client


def place(row: Deployment) -> Run:
    """The next run, as the loop makes it."""
    Deployment.objects.filter(pk=row.pk).update(state="placing")
    with claims.hold(Deployment, row.pk) as claim:
        assert claim is not None
        fresh = Deployment.objects.select_related("revision").get(pk=row.pk)
        placing.place(claim, fresh)
    row.refresh_from_db()
    assert row.run is not None
    return row.run


def env_of(run: Run, row: Deployment) -> dict[str, str]:
    return preflight.launch_of(moves.spec_of(row), run, name=row.name, api_key="k").env


def test_one_run_is_detailed_and_the_next_is_not(broken: Deployment) -> None:
    services.start_in_detail(broken, actor=None)
    services.start_in_detail(broken, actor=None)
    assert Event.objects.filter(verb="deployment.started_in_detail").count() == 1, "pressed twice is one wish"
    first = place(broken)
    assert first.detail and env_of(first, broken)["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert first.revision_id == broken.revision_id and broken.revisions.count() == 1
    second = place(broken)  # a restart that Berth makes by itself
    assert not second.detail and "VLLM_LOGGING_LEVEL" not in env_of(second, broken)
    Deployment.objects.filter(pk=broken.pk).update(state="failed")
    services.start(broken, actor=None)
    assert not place(broken).detail


def test_the_wish_outlives_a_wait_for_room(broken: Deployment) -> None:
    services.start_in_detail(broken, actor=None)
    host = broken.run.host
    type(host).objects.update(facts={**host.facts, "ram_available_mib": 10})
    Deployment.objects.filter(pk=broken.pk).update(state="placing")
    with claims.hold(Deployment, broken.pk) as claim:
        placing.place(claim, Deployment.objects.select_related("revision").get(pk=broken.pk))
    broken.refresh_from_db()
    assert broken.state == "queued"
    type(host).objects.update(facts=host.facts)
    assert place(broken).detail


def test_other_settings_are_not_the_ones_it_was_asked_for(broken: Deployment) -> None:
    services.start_in_detail(broken, actor=None)
    spec = moves.spec_of(broken).model_copy(update={"kv_cache_gib": 2})
    services.edit(broken, spec=spec, actor=None)
    assert not place(broken).detail


def test_what_runs_is_not_started_in_detail(broken: Deployment) -> None:
    Deployment.objects.update(state="starting", desired="running")
    with pytest.raises(Conflict):
        services.start_in_detail(broken, actor=None)


def test_the_failed_page_and_the_record_offer_it(broken: Deployment) -> None:
    operator, viewer = as_role("operator"), as_role("viewer")
    action = f'action="/deployments/{broken.pk}/start-in-detail"'
    record = f"/runs/{broken.run_id}/"
    assert action in operator.get(f"/deployments/{broken.pk}/").content.decode()
    assert action in operator.get(record).content.decode()
    assert action not in viewer.get(record).content.decode()
    assert viewer.post(f"/deployments/{broken.pk}/start-in-detail").status_code == 403
    assert operator.post(f"/deployments/{broken.pk}/start-in-detail").status_code == 302
    run = place(broken)
    page = operator.get(f"/runs/{run.pk}/").content.decode()
    assert "VLLM_LOGGING_LEVEL=DEBUG" in page and "Later starts log as ever." in page
    assert "with more detail" in operator.get(f"/deployments/{broken.pk}/").content.decode()


def test_a_start_by_berth_itself_is_said_so_everywhere(broken: Deployment) -> None:
    Run.objects.filter(pk=broken.run_id).update(started_by="system")
    for path in (f"/deployments/{broken.pk}/", f"/runs/{broken.run_id}/"):
        page = as_role("viewer").get(path).content.decode()
        assert "Berth" in page and ">system<" not in page and "by system" not in page


@pytest.mark.parametrize(("near", "hint"), [("--max-num-seqs", "--max-num-seqs"), ("", "Look at how it is written")])
def test_an_unknown_flag_names_a_similar_one_or_none(near: str, hint: str) -> None:
    said = words({"code": "flag.unknown", "params": {"flag": "--flag", "near": near}})
    assert said is not None and type(said.hint) is str
    assert hint in said.hint and "—" not in said.hint


# --- engines ----------------------------------------------------------------------------------------------------------


def second_engine(row: Deployment, version: str = "0.33.0", **values: Any) -> Runtime:
    return Runtime.objects.create(
        **{"host": row.run.host, "engine": "vllm", "executable": f"/opt/{version}/bin/vllm", "version": version, "device": "cpu",
           "flags": builders.FLAGS, **values}
    )  # fmt: skip


def test_the_newest_engine_unless_one_is_chosen(broken: Deployment) -> None:
    old, new = broken.run.runtime, second_engine(broken)
    spec = moves.spec_of(broken)
    assert preflight.check(spec, name="x").runtime == new
    assert preflight.check(spec.model_copy(update={"runtime_id": old.pk}), name="x").runtime == old
    Runtime.objects.filter(pk=new.pk).update(refusal={"code": "probe_failed", "params": {"detail": "x"}})
    assert preflight.check(spec, name="x").runtime == old, "one that does not work is no choice"


def test_an_engine_of_another_host_is_named_as_the_reason(broken: Deployment) -> None:
    other = builders.make_host("pier")
    builders.make_copy(other)
    chosen = broken.run.runtime
    Runtime.objects.filter(pk=chosen.pk).update(refusal={"code": "probe_failed", "params": {}})
    spec = moves.spec_of(broken).model_copy(update={"runtime_id": chosen.pk})
    reasons = preflight.check(spec, name="x").reason["params"]["candidates"]
    assert {(r["name"], r["code"]) for r in reasons} == {("quay", "runtime.broken"), ("pier", "runtime.elsewhere")}


def test_an_upgrade_is_tried_beside_the_old_engine_and_a_click_leads_back(broken: Deployment) -> None:
    operator, old, new = as_role("operator"), broken.run.runtime, second_engine(broken)
    form = operator.get(f"/deployments/{broken.pk}/edit").content.decode()
    assert "Berth decides: the newest that fits" in form and f'<option value="{new.pk}">' in form
    values = {
        "revision": 1,
        "name": broken.name,
        "artifact": broken.revision.spec["artifact_id"],
        "device": "auto",
        "task": "generate",
        "restart": "on_failure",
    }
    assert operator.post(f"/deployments/{broken.pk}/edit", {**values, "runtime": old.pk}).status_code == 302
    broken.refresh_from_db()
    assert broken.revision.spec["runtime_id"] == old.pk
    assert (
        operator.post(f"/deployments/{broken.pk}/edit", {**values, "revision": 2, "runtime": new.pk}).status_code == 302
    )
    page = operator.get(f"/deployments/{broken.pk}/").content.decode()
    assert "vLLM 0.33.0 for CPU (quay)" in page and "Go back to these" in page
    assert "Go back to these" not in as_role("viewer").get(f"/deployments/{broken.pk}/").content.decode()
    assert operator.post(f"/deployments/{broken.pk}/settings/2/use").status_code == 302
    broken.refresh_from_db()
    assert (broken.revision.number, broken.revision.spec["runtime_id"]) == (4, old.pk)
    assert operator.post(f"/deployments/{broken.pk}/settings/99/use").status_code == 409
    assert as_role("viewer").post(f"/deployments/{broken.pk}/settings/1/use").status_code == 403
    assert DeploymentSpec.model_validate(broken.revisions.get(number=4).spec) == DeploymentSpec.model_validate(
        broken.revisions.get(number=2).spec
    )
