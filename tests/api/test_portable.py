"""Deployments as files: what is exported comes back the same, twice changes nothing, and a mistake is told with its line."""

import json
import threading
from typing import Any

import pytest
import yaml
from django.db import connection

from deployments import portable
from deployments.models import Deployment, Revision
from deployments.spec import DeploymentSpec
from models_catalog.models import Artifact
from panel.accounts.actor import Actor
from panel.audit.models import Event
from panel.core.errors import Invalid
from tests.api.conftest import person, program
from tests.deployments import builders

pytestmark = pytest.mark.django_db
API = "/api/v1"
SHELL = Actor.shell()


def apply(text: str | dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    data = text if isinstance(text, str) else yaml.safe_dump(text)
    return [item.as_dict() for item in portable.apply(data.encode(), actor=SHELL, **more)]


def file(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"berth": 1, "deployments": list(entries)}


def mistakes(text: str) -> dict[str, str]:
    rows, events = Deployment.objects.count(), Event.objects.count()
    with pytest.raises(Invalid) as caught:
        portable.apply(text.encode(), actor=SHELL)
    assert caught.value.code == "file.invalid" and (Deployment.objects.count(), Event.objects.count()) == (rows, events)
    return caught.value.fields


def test_exported_and_applied_twice_nothing_changes(world: dict[str, Any]) -> None:
    row, host = world["row"], world["host"]
    spec = DeploymentSpec(
        artifact_id=world["copy"].artifact_id, host_id=host.pk, runtime_id=host.runtimes.get().pk, device="gpu",
        options={"max_model_len": 4096, "note": "on"}, extra_args=["--enforce-eager"], env={"OMP_NUM_THREADS": "4"},
        restart={"policy": "never"},
    )  # fmt: skip
    Revision.objects.filter(pk=row.revision_id).update(spec=spec.model_dump(mode="json"))
    builders.make_deployment(world["copy"], "plain")
    text = portable.dump(Deployment.objects.select_related("revision").order_by("name"))
    first, second = yaml.safe_load(text)["deployments"]
    assert first == {"name": "plain", "running": False, "model": "Tiny-1B-Instruct"}
    assert second["host"] == "quay" and second["runtime"]["version"] == "0.32.0" and second["options"]["note"] == "on"
    assert "artifact_id" not in text and str(host.pk) not in second
    before = (Revision.objects.count(), Event.objects.count(), list(Deployment.objects.values()))
    for _again in range(2):
        assert {item["action"] for item in apply(text)} == {"unchanged"}
    assert before == (Revision.objects.count(), Event.objects.count(), list(Deployment.objects.values()))


def test_makes_changes_starts_and_stops(world: dict[str, Any]) -> None:
    text = file(
        {"name": "team-chat", "model": "Tiny-1B-Instruct", "running": False, "options": {"max_model_len": 2048}},
        {"name": "new-one", "model": "/models/Tiny-1B-Instruct", "host": "quay"},
        {"name": "left-stopped", "model": "Tiny-1B-Instruct", "running": False},
    )
    looked = apply(text, dry_run=True)
    assert [item["action"] for item in looked] == ["changed", "created", "created"] and looked[1]["id"] is None
    assert Deployment.objects.count() == 1 and not Event.objects.exists()
    done = apply(text)
    assert done[0]["changes"] == {"options.max_model_len": [None, 2048]} and done[0]["run"] == "stopped"
    made = {row.name: row for row in Deployment.objects.select_related("revision")}
    assert made["new-one"].desired == "running" and made["new-one"].revision.spec["host_id"] == world["host"].pk
    assert made["left-stopped"].desired == "stopped" and made["team-chat"].desired == "stopped"
    verbs = sorted(Event.objects.values_list("verb", flat=True))
    assert verbs == ["deployment.created", "deployment.created", "deployment.edited", "deployment.stopped"]
    events = Event.objects.count()
    assert {item["action"] for item in apply(text)} == {"unchanged"} and Event.objects.count() == events


def test_what_is_not_said_of_running_stays(world: dict[str, Any]) -> None:
    failed = builders.make_deployment(world["copy"], "failed-one", state="failed")
    apply(file({"name": "failed-one", "model": "Tiny-1B-Instruct", "running": True}))
    failed.refresh_from_db()
    assert failed.restart_asked == 0, "a failure is not tried again by applying twice"
    apply(file({"name": "team-chat", "model": "Tiny-1B-Instruct"}))
    world["row"].refresh_from_db()
    assert world["row"].desired == "running"


def test_a_hidden_secret_stays(world: dict[str, Any]) -> None:
    row = world["row"]
    spec = {**row.revision.spec, "env": {"HF_TOKEN": "hf_abcdefghijklmnopqr"}}
    Revision.objects.filter(pk=row.revision_id).update(spec=spec)
    text = portable.dump(Deployment.objects.select_related("revision"))
    assert "abcdef" not in text
    assert [item["action"] for item in apply(text)] == ["unchanged"]


def test_texts_of_any_signs_come_back_the_same(world: dict[str, Any]) -> None:
    row = world["row"]
    odd = [
        "a\x85b",
        "\u2028",
        "x\u2029",
        "\ufeff",
        "on",
        "1:30",
        "=",
        "<<",
        "",
        " a ",
        "a\n\nb\t",
        "\x01",
        "#",
        "~",
        "1e3",
        "é😀",
    ]
    spec = {**row.revision.spec, "options": {f"o{n}": text for n, text in enumerate(odd)}, "extra_args": odd}
    Revision.objects.filter(pk=row.revision_id).update(spec=spec)
    text = portable.dump(Deployment.objects.select_related("revision"))
    assert [item["changes"] for item in apply(text)] == [{}]


def test_several_forms_of_a_model_are_told_apart(world: dict[str, Any]) -> None:
    model = world["copy"].artifact.model
    second = Artifact.objects.create(
        model=model, format="gguf", label="Q4_K_M", fingerprint="other", facts={"format": "gguf"}
    )
    assert "form" in mistakes(yaml.safe_dump(file({"name": "x", "model": model.name})))["line 3"]
    apply(file({"name": "x", "model": model.name, "form": "Q4_K_M"}))
    assert Deployment.objects.get(name="x").revision.spec["artifact_id"] == second.pk
    assert yaml.safe_load(portable.dump([Deployment.objects.get(name="x")]))["deployments"][0]["form"] == "Q4_K_M"


HEAD = "berth: 1\ndeployments:\n"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "empty"),
        ("berth: 2\ndeployments: []\n", 1, "berth"),
        ("deployments: []\n", 1, "berth"),
        ("berth: 1\nberth: 1\ndeployments: []\n", 2, "twice"),
        (HEAD + "  - name: a\n    model: [\n", 5, ""),
        (HEAD + "  - name: a\n    model: Nothing\n", 4, "no model"),
        (HEAD + "  - name: a\n    model: Tiny-1B-Instruct\n    host: nowhere\n", 5, "no host"),
        (HEAD + "  - name: a\n    model: Tiny-1B-Instruct\n    gpu_count: many\n", 5, "gpu_count"),
        (HEAD + "  - name: a\n    model: Tiny-1B-Instruct\n    restart:\n      policy: maybe\n", 6, "policy"),
        (HEAD + "  - name: a\n    model: Tiny-1B-Instruct\n    colour: red\n", 5, "no such field"),
        (HEAD + "  - model: Tiny-1B-Instruct\n", 3, "name"),
        (HEAD + "  - name: Not A Name\n    model: Tiny-1B-Instruct\n", 3, "small letters"),
        (HEAD + "  - &a\n    name: a\n    model: m\n  - *a\n", 3, "nchors"),
        (HEAD + "  - name: !!python/object/apply:os.system [id]\n    model: m\n", 3, "plain values"),
        (HEAD + "  - name: !!python/name:os.system\n    model: m\n", 3, ""),
        (HEAD + '  - name: "a\\0b"\n    model: m\n', 3, "kept"),
        (HEAD + "  - name: a\n    model: Tiny-1B-Instruct\n    grace_s: .inf\n", 5, "kept"),
        (HEAD + "  - name: a\n    model: Tiny-1B-Instruct\n    options: {1: 2}\n", 5, "texts"),
        (HEAD + "  - name: a\n    model: Tiny-1B-Instruct\n    runtime: {version: 9.9.9}\n", 5, "engine"),
        (HEAD + "  - name: a\n    model: Tiny-1B-Instruct\n  - name: a\n    model: Tiny-1B-Instruct\n", 5, "twice"),
        (HEAD + "\x01", 3, ""),
        (HEAD + "  - name: a\n    model: !!timestamp soon\n", 4, "kept"),
        (HEAD + "  - name: a\n    running: !!bool maybe\n", 4, "kept"),
        (HEAD + "  - name: a\n    gpu_count: !!int ''\n", 4, "kept"),
        (HEAD + "  - name: a\n    grace_s: !!float ''\n", 4, "kept"),
        (HEAD + f"  - name: a\n    options:\n      x: 0x{'f' * 5000}\n", 5, "kept"),
        (HEAD + f"  - name: a\n    grace_s: {'59:' * 3000}59.5\n", 4, "kept"),
        (HEAD + f"  - name: a\n    grace_s: {'59:' * 30}59.5\n", 4, ""),
        (HEAD + f"  - name: a\n    options: {{x: [{'1,' * 60_000}]}}\n", 4, "At most 20000"),
        ("[" * 3000, 1, ""),
        ("just a text", 1, ""),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_line(world: dict[str, Any], text: str, line: int, said: str) -> None:
    found = mistakes(text)
    assert f"line {line}" in found, found
    assert said in found[f"line {line}"], found


def test_one_mistake_and_nothing_is_changed(world: dict[str, Any]) -> None:
    text = yaml.safe_dump(
        file({"name": "good", "model": "Tiny-1B-Instruct"}, {"name": "bad", "model": "x"}, {"name": "b2", "model": "y"})
    )
    assert len(mistakes(text)) == 2


def test_by_the_api(as_: Any, world: dict[str, Any]) -> None:
    client = as_("operator")
    exported = client.get(f"{API}/deployments/{world['row'].pk}/export")
    assert exported.status_code == 200 and exported["Content-Type"] == "application/yaml"
    assert exported["Content-Disposition"] == 'attachment; filename="team-chat.yaml"'
    answer = client.post(f"{API}/apply", exported.content, content_type="application/yaml")
    assert answer.json() == {
        "dry_run": False,
        "changed": 0,
        "items": [{"name": "team-chat", "id": world["row"].pk, "action": "unchanged", "run": "", "changes": {}}],
    }
    as_json = json.dumps(file({"name": "by-json", "model": "Tiny-1B-Instruct", "running": False}))
    looked = client.post(f"{API}/apply?dry_run=true", as_json, content_type="application/json").json()
    assert (looked["dry_run"], looked["changed"]) == (True, 1) and not Deployment.objects.filter(
        name="by-json"
    ).exists()
    assert client.post(f"{API}/apply", as_json, content_type="application/json").status_code == 200
    assert Event.objects.get(verb="deployment.created").actor == "operator-1"
    wrong = client.post(f"{API}/apply", b"berth: [", content_type="application/yaml")
    assert wrong.status_code == 422 and list(wrong.json()["fields"]) == ["line 1"]
    large = client.post(f"{API}/apply", b"#" * (portable.MOST_BYTES + 1), content_type="application/yaml")
    assert large.status_code == 413 and large.json()["code"] == "file.too_large"
    assert client.post(f"{API}/apply", b"\xff\xfe", content_type="application/yaml").status_code == 422


@pytest.mark.django_db(transaction=True)
def test_the_same_deployments_in_another_order_at_once() -> None:
    """Neither file waits for the other for ever: a deadlock would be a failure of the panel."""
    copy = builders.make_copy(builders.make_host())
    clients = [program(person("operator")) for _ in range(2)]
    statuses: list[int] = []

    def send(client: Any, order: list[int], grace_s: int, ready: threading.Barrier) -> None:
        items = [
            {"name": f"d{n}", "running": False, "model": copy.artifact.model.name, "grace_s": grace_s} for n in order
        ]
        try:
            ready.wait(10)
            answer = client.post(f"{API}/apply", json.dumps(file(*items)), content_type="application/yaml")
            statuses.append(answer.status_code)
        finally:
            connection.close()

    for round_ in range(3):  # the first makes them, the others change them
        ready = threading.Barrier(2)
        orders = list(range(8)), list(reversed(range(8)))
        threads = [
            threading.Thread(target=send, args=[clients[n], orders[n], 10 * round_ + n + 1, ready]) for n in range(2)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        kept = {row.revision.spec["grace_s"] for row in Deployment.objects.select_related("revision")}
        assert kept <= {10 * round_ + 1, 10 * round_ + 2} and len(kept) == 1, "one file or the other, whole"
    assert statuses == [200] * 6


def test_what_cannot_be_named_any_more_is_told(as_: Any, world: dict[str, Any]) -> None:
    row = world["row"]
    Revision.objects.filter(pk=row.revision_id).update(spec={**row.revision.spec, "host_id": 99_999})
    answer = as_("viewer").get(f"{API}/deployments/{row.pk}/export")
    assert (answer.status_code, answer.json()["code"]) == (409, "export.gone")
    assert "team-chat" in answer.json()["message"]
