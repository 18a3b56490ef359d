"""Secrets that settings name: who may name them, what a start is given, and that they stand nowhere."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from deployments import exported, pasted, pasted_secrets, portable, run_secrets, services
from deployments.checklist.look import look
from deployments.models import Deployment, Revision, Run
from deployments.spec import DeploymentSpec
from models_catalog.models import Copy
from panel.accounts import secret_store
from panel.accounts.actor import Actor
from panel.accounts.models import Secret, User
from panel.audit.models import Event
from panel.core.crypto import unseal
from panel.core.errors import Conflict, Denied, Invalid
from panel.fleet.models import Job
from tests.api.conftest import person, program
from tests.deployments import builders

pytestmark = pytest.mark.django_db
VALUE = "Zq8fW2kLmN4pR7tV0xYb"
NAMED = {"HF_TOKEN": "hf-token"}
COMMAND = "HF_TOKEN={} vllm serve acme/Tiny-1B-Instruct --max-model-len 2048"


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here."""
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def copy() -> Copy:
    found = builders.make_copy(builders.make_host(gpus=2), "Tiny-1B-Instruct")
    Copy.objects.filter(pk=found.pk).update(extra={"origin": "acme/Tiny-1B-Instruct"})
    return found


def actor(name: str, role: str = "operator") -> Actor:
    return Actor.from_user(User.objects.get_or_create(username=name, defaults={"role": role})[0])


def browser(who: Actor) -> Client:
    client = Client(headers={"Accept": "text/html", "Sec-Fetch-Mode": "navigate"})
    client.force_login(who.user)
    return client


def spec(copy: Copy, **more: Any) -> DeploymentSpec:
    return DeploymentSpec(artifact_id=copy.artifact_id, env_secrets=NAMED, **more)


def keep(who: Actor, *, team: bool = False, value: str = VALUE) -> Secret:
    return secret_store.keep("hf-token", value, team=team, actor=who)


# --- who may name which -----------------------------------------------------------------------------------------------


def test_old_settings_stay_as_they_were(copy: Copy) -> None:
    old = {"artifact_id": copy.artifact_id, "env": {"OMP_NUM_THREADS": "4"}}
    assert DeploymentSpec.model_validate(old).env_secrets == {}
    for wrong in ({"HF TOKEN": "x"}, {"HF_TOKEN": "hf_" + VALUE}, {"HF_TOKEN": ""}, {"HF_TOKEN": {"secret": "x"}}):
        with pytest.raises(Invalid) as caught:
            services.parse_spec({**old, "env_secrets": wrong})
        assert VALUE not in str(caught.value.as_dict())


def test_one_names_ones_own_and_the_teams_and_no_others(copy: Copy) -> None:
    ada, bob = actor("ada"), actor("bob")
    with pytest.raises(Invalid) as caught:
        services.create(name="chat", spec=spec(copy), actor=ada)
    assert "hf-token" in caught.value.fields["env_secrets"]
    keep(ada)
    row = services.create(name="chat", spec=spec(copy), actor=ada)
    assert run_secrets.values(row.revision) == {"HF_TOKEN": VALUE}
    with pytest.raises(Invalid):
        services.create(name="other", spec=spec(copy), actor=bob)
    with pytest.raises(Invalid):
        services.edit(row, spec=spec(copy, gpu_count=2), actor=bob)
    with pytest.raises(Invalid):
        services.start_fixed(row, spec=spec(copy, gpu_count=2), base_number=1, why={}, actor=bob)
    services.edit(row, spec=DeploymentSpec(artifact_id=copy.artifact_id), actor=bob)
    with pytest.raises(Invalid):
        services.use_revision(row, 1, actor=bob)
    keep(actor("boss", "admin"), team=True, value="of the team")
    row.refresh_from_db()
    services.use_revision(row, 1, actor=bob)
    row.refresh_from_db()
    assert run_secrets.values(row.revision) == {"HF_TOKEN": "of the team"}, "bob's settings mean no secret of ada's"
    services.start(row, actor=bob)


def test_what_the_panel_changes_itself_keeps_whose_they_are(copy: Copy) -> None:
    ada = actor("ada")
    keep(ada)
    row = services.create(name="chat", spec=spec(copy), actor=ada)
    services.edit(row, spec=spec(copy, gpu_count=2), actor=None)
    row.refresh_from_db()
    assert row.revision.created_by_id is None and run_secrets.values(row.revision) == {"HF_TOKEN": VALUE}
    services.edit(row, spec=spec(copy, gpu_count=1), actor=Actor.shell())
    with pytest.raises(Invalid):
        services.create(name="from-shell", spec=spec(copy), actor=Actor.shell())


def test_a_limited_token_cannot_bring_in_its_owners_secrets(copy: Copy) -> None:
    ada = actor("ada")
    keep(ada)
    row = services.create(name="chat", spec=DeploymentSpec(artifact_id=copy.artifact_id), actor=ada, start=False)
    limited = Actor.from_user(ada.user, deployments=frozenset([row.pk]))
    with pytest.raises(Denied):
        services.edit(row, spec=spec(copy), actor=limited)
    services.edit(row, spec=spec(copy), actor=ada)
    services.edit(row, spec=spec(copy, gpu_count=2), actor=limited)
    assert "Secret for HF_TOKEN" in browser(ada).get(reverse("deployment", args=[row.pk])).content.decode()


def test_nor_by_an_edit_that_leaves_the_name_of_another_persons(copy: Copy) -> None:
    ada, bo = actor("ada"), actor("bo")
    keep(ada)
    keep(bo)
    row = services.create(name="chat", spec=spec(copy), actor=ada, start=False)
    with pytest.raises(Denied):
        services.edit(
            row, spec=spec(copy, gpu_count=2), actor=Actor.from_user(bo.user, deployments=frozenset([row.pk]))
        )
    services.edit(row, spec=spec(copy, gpu_count=2), actor=bo)
    row.refresh_from_db()
    assert row.revision.created_by_id == bo.id


@pytest.mark.parametrize("headers", [{}, {"HX-Request": "true"}], ids=["page", "part"])
def test_a_click_that_would_need_the_secret_of_another_says_why_not(copy: Copy, headers: dict[str, str]) -> None:
    ada, bo = actor("ada"), actor("bo")
    keep(ada)
    row = services.create(name="chat", spec=spec(copy), actor=ada, start=False)
    services.edit(row, spec=DeploymentSpec(artifact_id=copy.artifact_id), actor=bo)
    answer = browser(bo).post(reverse("deployment-use-revision", args=[row.pk, 1]), headers=headers)
    assert answer.status_code == 422 and "There is no secret" in answer.content.decode()
    row.refresh_from_db()
    assert row.revision.number == 2


# --- a start ----------------------------------------------------------------------------------------------------------


def placed(row: Deployment) -> Deployment:
    """What a worker does with it until the order stands."""
    from deployments import reconcile

    for _step in range(4):
        reconcile.reconcile(row.pk)
        row.refresh_from_db()
        if row.state not in ("queued", "placing", "preparing", "stopped"):
            break
    return row


def test_a_start_gets_it_sealed_and_it_stands_nowhere_else(copy: Copy) -> None:
    ada = actor("ada")
    keep(ada)
    row = placed(services.create(name="chat", spec=spec(copy), actor=ada))
    assert row.state == "starting", row.reason
    run = Run.objects.get()
    job = Job.objects.get(pk=run.job_id)
    assert json.loads(unseal(job.secrets))["HF_TOKEN"] == VALUE
    assert run.env["HF_TOKEN"].strip("•") == "" and "secret_env" not in job.order
    client = program(ada.user)
    seen = [
        str(list(table.objects.values())) for table in (Deployment, Revision, Run, Event, Job)
    ] + [
        client.get(f"/api/v1/deployments/{row.pk}").content.decode(),
        client.get(f"/api/v1/runs/{run.pk}").content.decode(),
        client.get(f"/api/v1/deployments/{row.pk}/revisions").content.decode(),
        browser(ada).get(reverse("deployment", args=[row.pk])).content.decode(),
        browser(ada).get(reverse("deployment-edit", args=[row.pk])).content.decode(),
        browser(ada).get(reverse("run", args=[run.pk])).content.decode(),
        portable.dump([row]),
        *exported.exports(row).values(),
    ]  # fmt: skip
    for text in seen:
        assert VALUE not in text
    assert client.get(f"/api/v1/deployments/{row.pk}").json()["spec"]["env_secrets"] == NAMED
    assert yaml.safe_load(seen[-4])["deployments"][0]["env_secrets"] == NAMED
    assert "HF_TOKEN=hf-token" in seen[9]
    assert all("HF_TOKEN" in text for text in exported.exports(row).values())
    made = Event.objects.get(verb="deployment.created")
    assert made.after["spec"]["env_secrets"] == NAMED


def test_a_start_without_it_is_refused_with_a_sentence(copy: Copy) -> None:
    ada = actor("ada")
    kept = keep(ada)
    row = services.create(name="chat", spec=spec(copy), actor=ada)
    secret_store.remove(kept, actor=ada)
    row = placed(row)
    assert (row.state, row.reason["code"]) == ("failed", "secret.missing") and Run.objects.get().job is None
    page = browser(ada).get(reverse("deployment", args=[row.pk])).content.decode()
    assert "The secret hf-token is not there any more" in page
    keep(ada)
    services.start(row, actor=actor("bob"))
    assert placed(row).state == "starting"


def test_one_that_was_sealed_with_another_key_says_so(copy: Copy) -> None:
    ada = actor("ada")
    keep(ada)
    Secret.objects.update(value=b"other")
    row = placed(services.create(name="chat", spec=spec(copy), actor=ada))
    for _more in range(3):
        row = placed(row)
    assert row.reason["code"] == "secret_unreadable" or Run.objects.get().reason["code"] == "secret_unreadable"


def test_the_check_before_a_start_says_it_too(copy: Copy) -> None:
    ada = actor("ada")

    def codes() -> set[str]:
        found = look(spec(copy), name="chat", actor=ada, ask=False)
        return {finding.code for part in found.parts for finding in part.findings if finding.level == "error"}

    assert codes() == {"secret.unknown"}
    keep(ada)
    assert codes() == set()


@pytest.mark.parametrize(
    ("named", "env", "code"),
    [
        ({"VLLM_API_KEY": "hf-token"}, {}, "env.denied_house"),
        ({"LD_PRELOAD": "hf-token"}, {}, "env.denied_secret"),
        ({"VLLM_PLUGINS": "hf-token"}, {}, "env.denied_secret"),
        ({"OMP_NUM_THREADS": "hf-token"}, {"OMP_NUM_THREADS": "4"}, "env.twice"),
    ],
)
def test_variables_that_take_none(copy: Copy, named: dict[str, str], env: dict[str, str], code: str) -> None:
    keep(actor("ada"))
    values = {"artifact_id": copy.artifact_id, "env_secrets": named, "env": env}
    client = program(actor("ada").user)
    said = client.post("/api/v1/deployments/plan", {"spec": values}, content_type="application/json").json()
    assert not said["ok"] and said["reason"]["code"] == code and said["reason"]["message"]


def test_the_page_names_them_and_what_uses_them(copy: Copy) -> None:
    ada = actor("ada")
    keep(ada)
    client = browser(ada)
    form = {
        "artifact": copy.artifact_id, "name": "chat", "device": "auto", "gpu_count": 1, "task": "generate",
        "restart": "on_failure", "act": "save",
    }  # fmt: skip
    bad = client.post(reverse("deployment-new"), {**form, "env_secrets": f"HF_TOKEN=hf_{VALUE}"})
    assert bad.status_code == 422 and b"as NAME=name of the secret" in bad.content
    assert client.post(reverse("deployment-new"), {**form, "env_secrets": "HF_TOKEN=nothing"}).status_code == 422
    assert client.post(reverse("deployment-new"), {**form, "env_secrets": " HF_TOKEN = hf-token "}).status_code == 302
    row = Deployment.objects.get()
    assert row.revision.spec["env_secrets"] == NAMED
    edit = reverse("deployment-edit", args=[row.pk])
    assert client.post(edit, {**form, "max_model_len": 1024, "revision": 1}).status_code == 302
    row.refresh_from_db()
    assert row.revision.spec["env_secrets"] == NAMED, "a form without the field leaves them"
    assert "given to chat" in client.get(reverse("secrets")).content.decode()
    assert (
        "HF_TOKEN=&quot;$HF_TOKEN&quot;"
        in client.post(reverse("deployment-plan"), {**form, "env_secrets": "HF_TOKEN=hf-token"}).content.decode()
    )


# --- a pasted command -------------------------------------------------------------------------------------------------


def test_a_pasted_secret_is_kept_by_one_click(copy: Copy) -> None:
    ada = actor("ada")
    client = browser(ada)
    first = client.post(reverse("deployment-paste"), {"text": COMMAND.format(f"hf_{VALUE}")})
    page = first.content.decode()
    assert VALUE not in page and "Keep HF_TOKEN as the secret hf-token" in page
    assert not Secret.objects.exists(), "nothing is kept that nobody asked for"
    told = first.context["pasted"]
    clicked = {
        "text": first.context["text"],
        "sealed": told["sealed"],
        "artifact": copy.artifact_id,
        "keep": "HF_TOKEN",
    }
    second = client.post(reverse("deployment-paste"), clicked)
    assert secret_store.values(["hf-token"], ada.id) == {"hf-token": f"hf_{VALUE}"}
    form = second.context["form"]
    assert form["env_secrets"].value() == "HF_TOKEN=hf-token" and form["max_model_len"].value() == 2048
    assert VALUE not in second.content.decode() and not second.context["pasted"]["offers"]
    assert "HF_TOKEN comes from the secret hf-token." in second.content.decode()
    again = client.post(reverse("deployment-paste"), clicked)
    assert again.status_code == 200 and Secret.objects.count() == 1, "pressed twice"
    values = {name: form[name].value() for name in form.fields if form[name].value() not in (None, "")}
    assert client.post(reverse("deployment-new"), {**values, "act": "save"}).status_code == 302
    assert Revision.objects.get().spec["env_secrets"] == NAMED
    assert VALUE not in str(list(Event.objects.values()))


def test_what_the_page_carries_is_for_this_person_and_for_a_while(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    ada, bob = actor("ada"), actor("bob")
    reading = pasted.read(COMMAND.format(f"hf_{VALUE}"), actor=ada)
    carried = pasted_secrets.sealed(reading.offers, {}, ada)
    assert VALUE not in carried and VALUE not in repr(reading)
    for text, who in ((carried, bob), (carried[:-4], ada), ("x", ada), ("é", ada), ("x" * 200_000, ada)):
        with pytest.raises(Conflict):
            pasted_secrets.carried(text, who, keep="HF_TOKEN")
        assert pasted_secrets.carried(text, who) == pasted_secrets.Carried()
    monkeypatch.setattr(pasted_secrets, "time", lambda: 9e12)
    with pytest.raises(Conflict):
        pasted_secrets.carried(carried, ada, keep="HF_TOKEN")
    assert not Secret.objects.exists()


def test_a_choice_between_models_does_not_lose_the_offer(copy: Copy) -> None:
    client = browser(actor("ada"))
    first = client.post(reverse("deployment-paste"), {"text": f"HF_TOKEN=hf_{VALUE} vllm serve someone/Tiny-1B-Base"})
    again = client.post(
        reverse("deployment-paste"),
        {"text": first.context["text"], "sealed": first.context["pasted"]["sealed"], "artifact": copy.artifact_id},
    )
    assert "Keep HF_TOKEN as the secret hf-token" in again.content.decode()


def test_a_secret_that_is_there_is_used_and_another_gets_a_free_name(copy: Copy) -> None:
    ada = actor("ada")
    keep(ada, value=f"hf_{VALUE}")

    def offer(value: str) -> tuple[str, bool]:
        (found,) = pasted.read(COMMAND.format(value), actor=ada).offers
        return found.name, found.there

    assert offer(f"hf_{VALUE}") == ("hf-token", True)
    assert offer("$HF_TOKEN") == ("hf-token", True)
    assert offer(f"hf_{VALUE}x") == ("hf-token-2", False)
    assert pasted.read(COMMAND.format("$HF_TOKEN"), actor=actor("bob")).offers == ()
    assert pasted.read("VLLM_API_KEY=abc vllm serve acme/Tiny-1B-Instruct", actor=ada).offers == ()
    assert pasted.read("vllm serve acme/Tiny-1B-Instruct --api-key abc", actor=ada).offers == ()


SEVERAL = f"HF_TOKEN=hf_{VALUE} WANDB_API_KEY=wb{VALUE} VLLM_API_KEY=key{VALUE} vllm serve acme/Tiny-1B-Instruct"


def test_every_secret_that_an_engine_can_be_given_is_offered(copy: Copy) -> None:
    client = browser(actor("ada"))
    first = client.post(reverse("deployment-paste"), {"text": SEVERAL})
    page = first.content.decode()
    assert "Keep HF_TOKEN as the secret hf-token" in page and "Keep WANDB_API_KEY as the secret wandb-api-key" in page
    assert "Keep VLLM_API_KEY" not in page and "Berth protects each engine by a key of its own" in page
    assert VALUE not in page and page.count("Berth can keep it sealed") == 2
    told = {"text": first.context["text"], "artifact": copy.artifact_id}
    second = client.post(
        reverse("deployment-paste"), {**told, "sealed": first.context["pasted"]["sealed"], "keep": "WANDB_API_KEY"}
    )
    assert second.context["form"]["env_secrets"].value() == "WANDB_API_KEY=wandb-api-key"
    page = second.content.decode()
    assert "WANDB_API_KEY comes from the secret wandb-api-key." in page and "Keep HF_TOKEN as" in page
    third = client.post(
        reverse("deployment-paste"), {**told, "sealed": second.context["pasted"]["sealed"], "keep": "HF_TOKEN"}
    )
    assert not third.context["pasted"]["offers"] and Secret.objects.count() == 2
    assert "WANDB_API_KEY=wandb-api-key" in third.context["form"]["env_secrets"].value()


def test_the_shell_keeps_a_secret_for_the_team(copy: Copy, tmp_path: Path) -> None:
    file = tmp_path / "command"
    file.write_text(SEVERAL)
    out, err = StringIO(), StringIO()
    call_command("import-command", str(file), stdout=out, stderr=err)
    assert "--keep WANDB_API_KEY  (wandb-api-key)" in err.getvalue() and not Secret.objects.exists()
    with pytest.raises(CommandError) as caught:
        call_command("import-command", str(file), keep=["WANDB_API_KEY", "VLLM_API_KEY"], stderr=StringIO())
    assert "VLLM_API_KEY" in str(caught.value) and not Secret.objects.exists()
    out = StringIO()
    call_command(
        "import-command", str(file), keep=["WANDB_API_KEY"], create=True, no_start=True, stdout=out, stderr=err
    )
    [row] = Secret.objects.all()
    assert (row.name, row.owner, unseal(row.value)) == ("wandb-api-key", None, f"wb{VALUE}")
    assert run_secrets.values(Revision.objects.get()) == {"WANDB_API_KEY": f"wb{VALUE}"}
    assert VALUE not in out.getvalue() + err.getvalue() + str(list(Event.objects.values()))
    file.write_text(SEVERAL.replace("Tiny-1B-Instruct", "Other-9B").replace("HF_", "MY_HF_"))
    with pytest.raises(CommandError):
        call_command("import-command", str(file), keep=["MY_HF_TOKEN"], stdout=StringIO(), stderr=StringIO())
    assert Secret.objects.count() == 1, "nothing is kept for what cannot be made"


@pytest.mark.parametrize(
    "text",
    [
        "export HUGGING_FACE_HUB_TOKEN=hf_{0}\nvllm serve acme/Tiny-1B-Instruct",
        "docker run --env HUGGINGFACE_TOKEN=hf_{0} vllm/vllm-openai --model acme/Tiny-1B-Instruct",
        "vllm serve acme/Tiny-1B-Instruct --hf-token hf_{0}",
        "llama-server -hf acme/Tiny-1B-Instruct -hft hf_{0}",
    ],
)
def test_the_ways_in_which_a_token_for_hugging_face_is_given(copy: Copy, text: str) -> None:
    (offer,) = pasted.read(text.format(VALUE), actor=actor("ada")).offers
    assert (offer.variable, offer.value) == ("HF_TOKEN", f"hf_{VALUE}")


def test_the_api_says_what_can_be_kept_and_never_what_it_is(copy: Copy) -> None:
    client = program(person("operator"))
    body = {"text": COMMAND.format(f"hf_{VALUE}")}
    answer = client.post("/api/v1/deployments/from-command", body, content_type="application/json")
    assert answer.json()["secrets"] == [{"variable": "HF_TOKEN", "name": "hf-token", "there": False}]
    assert VALUE not in answer.content.decode()


def test_an_exported_command_names_them_and_comes_back(copy: Copy) -> None:
    ada = actor("ada")
    keep(ada)
    row = services.create(name="chat", spec=spec(copy, options={"max_model_len": 2048}), actor=ada, start=False)
    for text in exported.exports(row).values():
        reading = pasted.read(text, actor=ada)
        assert reading.spec is not None and reading.spec.env_secrets == NAMED
        assert "paste.secret_named" in {finding.code for finding in reading.findings}
        shown = pasted.read(reading.text, actor=ada, artifact_id=copy.artifact_id)
        assert shown.spec is not None and shown.spec.env_secrets == NAMED, "also from the text that is shown again"
