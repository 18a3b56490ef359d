"""Creating, changing, starting and stopping by the API: the services' own rules, and keys that make a repeat harmless."""

import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from deployments import ticker
from deployments.models import Deployment
from models_catalog.models import Artifact
from panel.accounts.models import ApiToken
from panel.accounts.tokens import find_token
from panel.audit.models import Event
from panel.core import idempotency
from panel.core.models import IdempotencyKey
from tests.api.conftest import person, program
from tests.deployments import builders
from tests.deployments.pure.plans import model

API = "/api/v1"


def send(client: Client, method: str, where: str, body: Any = None, **headers: str) -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    return client.generic(method, API + where, data, content_type="application/json", headers=headers)


def new(world: dict[str, Any], name: str = "second", **more: Any) -> dict[str, Any]:
    return {"name": name, "spec": {"artifact_id": world["copy"].artifact_id, "device": "cpu"}, **more}


@pytest.mark.django_db
def test_created_changed_stopped_deleted(as_: Any, world: dict[str, Any]) -> None:
    client = as_("operator")
    answer = send(client, "POST", "/deployments", new(world))
    made = answer.json()
    assert answer.status_code == 201 and answer["Location"] == f"{API}/deployments/{made['id']}"
    assert (made["desired"], made["revision"], made["created_by"]) == ("running", 1, "operator-1")
    event = Event.objects.get(verb="deployment.created")
    assert event.actor == "operator-1" and event.facts["via"] == "token api:write token"
    where = f"/deployments/{made['id']}"
    changed = send(client, "PATCH", where, {"spec": {"options": {"max_model_len": 2048}}, "revision": 1}).json()
    assert changed["revision"] == 2 and changed["spec"]["options"] == {"max_model_len": 2048}
    assert changed["spec"]["device"] == "cpu", "what was not sent stays"
    assert send(client, "PATCH", where, {"spec": {"options": {"max_model_len": 2048}}}).json()["revision"] == 2
    answer = send(client, "PATCH", where, {"spec": {"gpu_count": 2}, "revision": 1})
    assert (answer.status_code, answer.json()["code"]) == (409, "deployment.edited")
    assert send(client, "PATCH", where, {"spec": {"artifact_id": 10**30}}).json()["fields"].keys() == {"artifact_id"}
    assert send(client, "POST", f"{where}/stop").json()["desired"] == "stopped"
    answer = send(client, "POST", f"{where}/start")
    assert (answer.status_code, answer.json()["desired"]) == (202, "running")
    assert send(client, "POST", f"{where}/restart").status_code == 202
    assert send(client, "DELETE", where).status_code == 204
    assert send(client, "GET", where).status_code == 404 and send(client, "DELETE", where).status_code == 404
    assert Deployment.objects.get(pk=made["id"]).deleted_at


@pytest.mark.django_db
def test_refusals_of_the_services_are_told(as_: Any, world: dict[str, Any]) -> None:
    client = as_("operator")
    for body, field in (
        (new(world, "team-chat"), "name"),
        (new(world, "Not A Name"), "name"),
        ({"name": "x", "spec": {"artifact_id": 99999}}, "artifact_id"),
        ({**new(world), "colour": "red"}, "colour"),
    ):
        answer = send(client, "POST", "/deployments", body)
        assert answer.status_code == 422 and field in answer.json()["fields"], answer.content
    assert Deployment.objects.count() == 1
    stopped = send(client, "POST", "/deployments", new(world, start=False)).json()
    assert stopped["desired"] == "stopped"


@pytest.mark.django_db
def test_a_hidden_secret_that_comes_back_stays_as_it_is(as_: Any, world: dict[str, Any]) -> None:
    row = world["row"]
    row.revision.spec = {**row.revision.spec, "env": {"HF_TOKEN": "hf_abcdefghijklmnopqr"}}
    row.revision.save()
    type(row).objects.filter(pk=row.pk).update(state="stopped", desired="stopped")  # no new start is allowed with it
    client = as_("operator")
    said = send(client, "GET", f"/deployments/{row.pk}").json()
    assert "abcdefghij" not in json.dumps(said)
    spec = {"env": {**said["spec"]["env"], "OMP_NUM_THREADS": "4"}}
    assert send(client, "PATCH", f"/deployments/{row.pk}", {"spec": spec}).status_code == 200
    row.refresh_from_db()
    assert row.revision.spec["env"] == {"HF_TOKEN": "hf_abcdefghijklmnopqr", "OMP_NUM_THREADS": "4"}


@pytest.mark.django_db
def test_a_plan_says_where_or_why_not_and_writes_nothing(as_: Any, world: dict[str, Any]) -> None:
    client, spec = as_("operator"), {"artifact_id": world["copy"].artifact_id, "device": "gpu"}
    plan = send(client, "POST", "/deployments/plan", {"name": "soon", "spec": spec}).json()
    assert (plan["ok"], plan["host"], plan["gpus"], plan["engine_version"]) == (True, "quay", [0], "0.32.0"), plan
    assert "--served-model-name soon" in plan["command"] and plan["reserve_mib"] > 0
    no = send(client, "POST", "/deployments/plan", {"spec": {**spec, "gpu_count": 4}}).json()
    assert (no["ok"], no["host"], no["command"]) == (False, None, "") and no["reason"]["code"] == "place.none"
    assert no["candidates"] and all(item["message"] for item in no["candidates"])
    assert (no["fit"], no["people"], no["longest_context"], no["changes"]) == (None, None, None, [])
    Artifact.objects.filter(pk=spec["artifact_id"]).update(facts=model())
    told = send(client, "POST", "/deployments/plan", {"spec": {**spec, "people": 4}}).json()
    assert told["fit"] == "fits" and told["people"] > 4 and told["longest_context"] == 40_960
    many = send(client, "POST", "/deployments/plan", {"spec": {**spec, "people": 4_000}}).json()
    assert not many["ok"] and many["reason"]["code"] == "place.none"
    long = send(
        client, "POST", "/deployments/plan", {"spec": {**spec, "options": {"gpu_memory_utilization": 0.3}}}
    ).json()
    assert {"code": "change.share", "spec": {"options": {"gpu_memory_utilization": 0.9}}}.items() <= long["changes"][
        0
    ].items()
    assert Deployment.objects.count() == 1 and not Event.objects.filter(verb__startswith="deployment").exists()


@pytest.mark.django_db
def test_searching_for_models(as_: Any, world: dict[str, Any]) -> None:
    away = builders.make_host("away", lost_at=timezone.now())
    client = as_("operator")
    found = send(client, "POST", "/models/scan", {}).json()["items"]
    assert {(item["host"], item["job"] is not None) for item in found} == {("quay", True), ("away", False)}
    assert next(item for item in found if item["host"] == "away")["reason"]["code"] == "host.away"
    again = send(client, "POST", "/models/scan", {"host": "quay"}).json()["items"]
    assert again[0]["job"] == next(item["job"] for item in found if item["host"] == "quay")
    assert send(client, "POST", "/models/scan", {"host": away.name}).status_code == 409


@pytest.mark.django_db
def test_hosts_engines_and_people(as_: Any, world: dict[str, Any]) -> None:
    client, host = as_("admin"), world["host"]
    where = f"/hosts/{host.pk}"
    said = send(client, "PATCH", where, {"name": "pier", "schedulable": False, "note": "new disks"}).json()
    assert (said["name"], said["schedulable"]) == ("pier", False)
    assert send(client, "PATCH", where, {"schedulable": True}).json()["schedulable"] is True
    assert send(client, "PATCH", where, {"name": "no spaces please"}).json()["fields"].keys() == {"name"}
    made = send(client, "POST", "/runtimes/installs", {"host": "pier", "variant": "cpu"}, **{"Idempotency-Key": "i"})
    if made.status_code == 201:  # the host's facts may say no, with the page's own words
        assert send(client, "POST", f"/runtimes/installs/{made.json()['id']}/cancel").json()["state"] == "cancelling"
    assert send(client, "POST", "/runtimes/installs", {"host": "x", "variant": "cpu"}).json()["fields"].keys() == {
        "host"
    }
    answer = send(client, "DELETE", f"/runtimes/{host.runtimes.get().pk}")
    assert (answer.status_code, answer.json()["code"]) == (409, "runtime.not_managed")

    mina = person("viewer", "mina")
    assert send(client, "PATCH", f"/users/{mina.pk}", {"role": "operator"}).json()["role"] == "operator"
    assert send(client, "PATCH", f"/users/{mina.pk}", {"active": False}).json()["active"] is False
    own = send(client, "PATCH", f"/users/{person('admin').pk}", {"role": "viewer"})
    assert (own.status_code, own.json()["code"]) == (409, "people.own")
    key = {"Idempotency-Key": "invite"}
    first = send(client, "POST", "/users/invitations", {"label": "Ada", "role": "operator"}, **key).json()
    again = send(client, "POST", "/users/invitations", {"label": "Ada", "role": "operator"}, **key).json()
    assert "/invite/" in first["link"] and again == {**first, "link": None}
    assert [item["label"] for item in send(client, "GET", "/users/invitations").json()["items"]] == ["Ada"]
    assert send(client, "DELETE", f"/users/invitations/{first['id']}").status_code == 204
    assert send(client, "GET", "/users/invitations").json()["items"] == []
    assert send(client, "DELETE", f"/users/invitations/{first['id']}").status_code == 409


# --- keys of repeated requests ----------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_same_key_makes_one_deployment(as_: Any, world: dict[str, Any]) -> None:
    client, key = as_("operator"), {"Idempotency-Key": "k-1"}
    first = send(client, "POST", "/deployments", new(world), **key)
    Deployment.objects.filter(name="second").update(state="ready")
    again = send(client, "POST", "/deployments", new(world), **key)
    assert first.status_code == again.status_code == 201 and first.json() == again.json()
    assert again["Idempotency-Replayed"] == "true" and again["Location"] == first["Location"]
    assert "Idempotency-Replayed" not in first
    other = send(client, "POST", "/deployments", new(world, "third"), **key)
    assert (other.status_code, other.json()["code"]) == (409, "idempotency.other_request")
    assert send(client, "POST", "/tokens", {"name": "x"}, **key).status_code == 409
    assert Deployment.objects.count() == 2 and Event.objects.filter(verb="deployment.created").count() == 1
    assert send(as_("admin"), "POST", "/deployments", new(world, "fourth"), **key).status_code == 201, (
        "keys are one's own"
    )


@pytest.mark.django_db
def test_what_was_refused_may_be_tried_again_with_its_key(as_: Any, world: dict[str, Any]) -> None:
    client, key = as_("operator"), {"Idempotency-Key": "k-2"}
    assert send(client, "POST", "/deployments", new(world, "team-chat"), **key).status_code == 422
    assert not IdempotencyKey.objects.exists()
    assert send(client, "POST", "/deployments", new(world, "free"), **key).status_code == 201
    for odd in ("x" * 101, "é", "\x01"):
        assert send(client, "POST", "/deployments", new(world, "y"), **{"Idempotency-Key": odd}).status_code == 422


@pytest.mark.django_db
def test_a_tokens_secret_is_shown_once_and_kept_nowhere(as_: Any) -> None:
    client, key = as_("viewer"), {"Idempotency-Key": "k-3"}
    first = send(client, "POST", "/tokens", {"name": "nightly", "days": None}, **key).json()
    again = send(client, "POST", "/tokens", {"name": "nightly", "days": None}, **key)
    assert find_token(first["token"]) and first["expires_at"] is None
    assert again.json() == {**first, "token": None} and again["Idempotency-Replayed"] == "true"
    assert ApiToken.objects.filter(name="nightly").count() == 1
    assert first["token"] not in json.dumps(list(IdempotencyKey.objects.values("answer")))


@pytest.mark.django_db
def test_a_key_is_forgotten_after_a_day(as_: Any, world: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    client, key = as_("operator"), {"Idempotency-Key": "k-4"}
    send(client, "POST", "/deployments", new(world), **key)
    IdempotencyKey.objects.update(created_at=timezone.now() - timedelta(hours=25))
    assert send(client, "POST", "/deployments", new(world, "third"), **key).status_code == 201
    IdempotencyKey.objects.update(created_at=timezone.now() - timedelta(hours=25))
    monkeypatch.setattr(idempotency, "_swept", float("-inf"))
    ticker.tick()
    assert not IdempotencyKey.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_two_changes_at_once_do_not_undo_each_other() -> None:
    row = builders.make_deployment(builders.make_copy(builders.make_host()), state="stopped")
    clients = [program(person("operator")) for _ in range(2)]
    for n in range(1, 6):
        wanted: list[dict[str, Any]] = [{"grace_s": float(n)}, {"kv_cache_gib": n}]
        statuses, ready = [0, 0], threading.Barrier(2)

        def change(
            who: int, wanted: Any = wanted, statuses: list[int] = statuses, ready: threading.Barrier = ready
        ) -> None:
            try:
                ready.wait(10)
                statuses[who] = send(clients[who], "PATCH", f"/deployments/{row.pk}", {"spec": wanted[who]}).status_code
            finally:
                connection.close()

        threads = [threading.Thread(target=change, args=[who]) for who in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        spec = send(clients[0], "GET", f"/deployments/{row.pk}").json()["spec"]
        assert 200 in statuses and set(statuses) <= {200, 409}
        for status, change_made in zip(statuses, wanted, strict=True):
            assert status == 409 or change_made.items() <= spec.items(), (n, statuses, spec)


@pytest.mark.django_db(transaction=True)
def test_two_at_once_make_one() -> None:
    copy = builders.make_copy(builders.make_host())
    user = person("operator")
    clients = [program(user) for _ in range(6)]
    answers: list[Any] = []
    ready = threading.Barrier(len(clients))

    def press(client: Client) -> None:
        try:
            ready.wait(10)
            answers.append(send(client, "POST", "/tokens", {"name": "race"}, **{"Idempotency-Key": "k-5"}))
        finally:
            connection.close()

    threads = [threading.Thread(target=press, args=[client]) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [answer.status_code for answer in answers] == [201] * len(clients), [a.content for a in answers]
    assert ApiToken.objects.filter(name="race").count() == 1
    assert sum(answer.json()["token"] is not None for answer in answers) == 1
    assert len({answer.json()["id"] for answer in answers}) == 1 and copy.pk
