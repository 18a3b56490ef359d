"""A pasted command on a panel with models, hosts and GPUs: by page, API and shell; nothing is written, no secret stays."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from deployments import exported, pasted
from deployments.models import Deployment, Revision
from deployments.spec import DeploymentSpec
from models_catalog.models import Copy
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.audit.models import Event
from panel.core.errors import Conflict
from tests.api.conftest import person, program
from tests.deployments import builders

pytestmark = pytest.mark.django_db
SHELL = Actor.shell()
API = "/api/v1/deployments/from-command"


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here."""
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def copy() -> Copy:
    host = builders.make_host(gpus=2)
    found = builders.make_copy(host, "Tiny-1B-Instruct")
    Copy.objects.filter(pk=found.pk).update(extra={"origin": "acme/Tiny-1B-Instruct"})
    return found


@pytest.fixture
def operator() -> Client:
    client = Client(headers={"Accept": "text/html", "Sec-Fetch-Mode": "navigate"})
    client.force_login(User.objects.get_or_create(username="operator-1", defaults={"role": "operator"})[0])
    return client


def read(text: str, **more: Any) -> pasted.Reading:
    return pasted.read(text, actor=SHELL, **more)


def codes(reading: pasted.Reading) -> set[str]:
    return {finding.code for finding in reading.findings}


# --- the catalog ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        "/models/Tiny-1B-Instruct", "/models/Tiny-1B-Instruct/", "acme/Tiny-1B-Instruct", "ACME/tiny-1b-instruct",
        "other/Tiny-1B-Instruct", "Tiny-1B-Instruct", "~/models/Tiny-1B-Instruct", "/elsewhere/Tiny-1B-Instruct",
        "/models/Tiny-1B-Instruct/config.json",
    ],
)  # fmt: skip
def test_a_model_is_known_by_path_repository_or_name(copy: Copy, model: str) -> None:
    reading = read(f"vllm serve {model}")
    assert reading.spec is not None and reading.spec.artifact_id == copy.artifact_id
    assert reading.name == "tiny-1b-instruct"
    assert not any(finding.level == "error" for finding in reading.findings)


def test_a_snapshot_of_the_cache_is_known_by_its_repository() -> None:
    host = builders.make_host(gpus=1)
    copy = builders.make_copy(host, "Llama-3.1-8B-Instruct")
    path = "/root/.cache/huggingface/hub/models--meta-llama--Llama-3.1-8B-Instruct/snapshots/abc"
    Copy.objects.filter(pk=copy.pk).update(path=path)
    for text in (
        "meta-llama/Llama-3.1-8B-Instruct",
        "/x/hub/models--meta-llama--Llama-3.1-8B-Instruct/snapshots/other",
    ):
        reading = read(f"vllm serve {text}")
        assert reading.spec is not None and reading.spec.artifact_id == copy.artifact_id


def test_a_gguf_folder_becomes_its_file() -> None:
    copy = builders.make_copy(builders.make_host(gpus=1), "tiny-gguf")
    copy.artifact.format = "gguf"
    copy.artifact.save()
    Copy.objects.filter(pk=copy.pk).update(path="/models/tiny-gguf/tiny-Q4_K_M.gguf")
    reading = read("vllm serve /models/tiny-gguf")
    assert reading.spec is not None and "paste.gguf_file" in codes(reading)
    assert pasted.say(reading.findings[-1]).text


def test_several_forms_are_offered_and_the_choice_counts(copy: Copy) -> None:
    other = builders.make_copy(copy.host, "tiny-second")
    Copy.objects.filter(pk=other.pk).update(extra={"origin": "acme/Tiny-1B-Instruct"})
    reading = read("vllm serve acme/Tiny-1B-Instruct")
    assert reading.spec is None and "paste.model_several" in codes(reading)
    assert {form.artifact_id for form in reading.candidates} == {copy.artifact_id, other.artifact_id}
    chosen = read("vllm serve acme/Tiny-1B-Instruct", artifact_id=other.artifact_id)
    assert chosen.spec is not None and chosen.spec.artifact_id == other.artifact_id


def test_an_unknown_model_says_so_and_offers_what_sounds_alike(copy: Copy) -> None:
    reading = read("vllm serve someone/Tiny-1B-Base")
    assert reading.spec is None and "paste.model_unknown" in codes(reading)
    assert [form.artifact_id for form in reading.candidates] == [copy.artifact_id]
    assert read("vllm serve someone/Whatever-70B").candidates == ()


def test_gpus_by_number_become_those_of_the_host(copy: Copy) -> None:
    reading = read("CUDA_VISIBLE_DEVICES=1 vllm serve acme/Tiny-1B-Instruct")
    assert reading.spec is not None and reading.spec.gpu_uuids == ["GPU-quay-1"] and reading.spec.gpu_count == 1
    reading = read("CUDA_VISIBLE_DEVICES=0,7 vllm serve acme/Tiny-1B-Instruct -tp 2")
    assert reading.spec is not None and reading.spec.gpu_uuids == [] and reading.spec.gpu_count == 2
    assert "paste.gpu_unknown" in codes(reading)
    builders.make_copy(builders.make_host("pier", gpus=2), "Tiny-1B-Instruct")
    reading = read("CUDA_VISIBLE_DEVICES=1 vllm serve Tiny-1B-Instruct")
    assert reading.spec is not None and reading.spec.gpu_uuids == [] and "paste.gpus_where" in codes(reading)


def test_gpus_where_there_are_none_and_where_no_host_is_known(copy: Copy) -> None:
    builders.make_copy(builders.make_host("bare"), "Small-1B")
    reading = read("CUDA_VISIBLE_DEVICES=0 vllm serve Small-1B --max-model-len 4096")
    told = [pasted.say(one).text for one in reading.findings]
    assert "There is no GPU on bare; the model would run on the CPU." in told
    assert not {"paste.gpu_unknown", "paste.gpus_where"} & codes(reading)
    assert "Taken: --max-model-len." in told, "what was not taken is not said to be"
    assert reading.spec is not None and reading.spec.gpu_uuids == []
    reading = read("CUDA_VISIBLE_DEVICES=0 vllm serve someone/else-70B")
    assert codes(reading) == {"paste.model_unknown"}
    taken = read("CUDA_VISIBLE_DEVICES=0 vllm serve acme/Tiny-1B-Instruct")
    assert "Taken: CUDA_VISIBLE_DEVICES." in [pasted.say(one).text for one in taken.findings]


def test_every_copy_that_a_start_could_take_is_named(copy: Copy) -> None:
    Copy.objects.create(artifact=copy.artifact, host=copy.host, path="/root/models/other-folder")
    told = [pasted.say(one).text for one in read("vllm serve acme/Tiny-1B-Instruct").findings]
    found = next(text for text in told if text.startswith("acme/Tiny-1B-Instruct is "))
    assert "quay:/models/Tiny-1B-Instruct" in found and "quay:/root/models/other-folder" in found


def test_a_taken_name_becomes_a_free_one(copy: Copy) -> None:
    builders.make_deployment(copy, "chat")
    reading = read("vllm serve Tiny-1B-Instruct --served-model-name chat")
    assert reading.name == "chat-2" and "paste.name_taken" in codes(reading)


def test_the_number_of_queries_does_not_grow_with_the_catalog(copy: Copy, django_assert_max_num_queries: Any) -> None:
    for number in range(12):
        builders.make_copy(copy.host, f"model-{number}")
    with django_assert_max_num_queries(14):
        read("CUDA_VISIBLE_DEVICES=0 vllm serve acme/Tiny-1B-Instruct --served-model-name x")


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_opens_the_usual_form_filled(copy: Copy, operator: Client) -> None:
    text = "OMP_NUM_THREADS=4 vllm serve acme/Tiny-1B-Instruct --max-model-len 4k --seed 7 --swap-space 4 --port 80"
    answer = operator.post(reverse("deployment-paste"), {"text": text})
    page = answer.content.decode()
    assert answer.status_code == 200 and answer["Cache-Control"] == "no-store"
    form = answer.context["form"]
    assert form["artifact"].value() == copy.artifact_id and form["max_model_len"].value() == 4000
    assert form["extra_args"].value() == "--seed 7" and form["env"].value() == "OMP_NUM_THREADS=4"
    assert "--swap-space no longer exists" in page and "--port was left out" in page
    assert f'action="{reverse("deployment-new")}"' in page
    assert not Deployment.objects.exists() and not Event.objects.exists()
    values = {name: form[name].value() for name in form.fields if form[name].value() not in (None, "")}
    saved = operator.post(reverse("deployment-new"), {**values, "act": "save"})
    assert saved.status_code == 302
    spec = Revision.objects.get().spec
    assert spec["env"] == {"OMP_NUM_THREADS": "4"} and spec["extra_args"] == ["--seed", "7"]


def test_what_the_form_does_not_show_comes_along(copy: Copy, operator: Client) -> None:
    text = "docker run --stop-timeout 90 --restart on-failure:2 vllm/vllm-openai --model acme/Tiny-1B-Instruct"
    form = operator.post(reverse("deployment-paste"), {"text": text}).context["form"]
    values = {name: form[name].value() for name in form.fields if form[name].value() not in (None, "")}
    assert operator.post(reverse("deployment-new"), {**values, "act": "save"}).status_code == 302
    spec = Revision.objects.get().spec
    assert spec["grace_s"] == 90 and spec["restart"] == {"policy": "on_failure", "max_attempts": 2}


def test_a_text_without_a_command_comes_back_with_words(operator: Client) -> None:
    answer = operator.post(reverse("deployment-paste"), {"text": "hello <script>"})
    assert answer.status_code == 422
    assert b"No command that starts an engine" in answer.content and b"hello &lt;script&gt;" in answer.content


def test_candidates_are_chosen_by_a_click_and_unknown_models_lead_on(copy: Copy, operator: Client) -> None:
    secret = "vllm serve someone/Tiny-1B-Base --api-key thisisverysecret --seed 3"
    answer = operator.post(reverse("deployment-paste"), {"text": secret})
    page = answer.content.decode()
    assert "thisisverysecret" not in page
    assert f'name="artifact" value="{copy.artifact_id}"' in page
    assert f"{reverse('download-new')}?source=huggingface&amp;repo=someone%2FTiny-1B-Base" in page
    again = operator.post(reverse("deployment-paste"), {"text": answer.context["text"], "artifact": copy.artifact_id})
    form = again.context["form"]
    assert form["artifact"].value() == copy.artifact_id and form["extra_args"].value() == "--seed 3"


def test_the_box_is_reached_from_the_form_and_the_first_steps(copy: Copy, operator: Client) -> None:
    for where in (reverse("deployment-new"), reverse("deployments")):
        assert f'href="{reverse("deployment-paste")}"' in operator.get(where).content.decode()
    assert operator.get(reverse("deployment-paste")).status_code == 200


def test_variables_can_be_changed_in_the_form_and_stay_where_it_does_not_ask(copy: Copy, operator: Client) -> None:
    row = builders.make_deployment(copy)
    spec = {**row.revision.spec, "env": {"OMP_NUM_THREADS": "4"}}
    Revision.objects.filter(pk=row.revision_id).update(spec=spec)
    base = {
        "artifact": copy.artifact_id,
        "name": row.name,
        "device": "auto",
        "gpu_count": 1,
        "task": "generate",
        "restart": "on_failure",
    }
    edit = reverse("deployment-edit", args=[row.pk])
    assert "OMP_NUM_THREADS=4" in operator.get(edit).content.decode()
    operator.post(edit, {**base, "max_model_len": 2048})
    row.refresh_from_db()
    assert row.revision.spec["env"] == {"OMP_NUM_THREADS": "4"}
    operator.post(edit, {**base, "env": "TZ=UTC\n\nOMP_NUM_THREADS=a=b"})
    row.refresh_from_db()
    assert row.revision.spec["env"] == {"TZ": "UTC", "OMP_NUM_THREADS": "a=b"}
    assert operator.post(edit, {**base, "env": "nonsense"}).status_code == 422


# --- API and shell ----------------------------------------------------------------------------------------------------


def test_the_api_answers_with_a_spec_that_can_be_sent_back(copy: Copy) -> None:
    client = program(person("operator"))
    text = "HF_TOKEN=hf_thisisverysecret123 vllm serve acme/Tiny-1B-Instruct --max-model-len 2048 --middleware x.Y"
    before = Event.objects.count()
    answer = client.post(API, {"text": text}, content_type="application/json")
    said = answer.json()
    assert answer.status_code == 200 and said["engine"] == "vllm" and said["name"] == "tiny-1b-instruct"
    assert "thisisverysecret" not in answer.content.decode()
    assert {"paste.secret_offered", "option.denied_code"} <= {finding["code"] for finding in said["findings"]}
    assert all(finding["message"] for finding in said["findings"])
    assert Event.objects.count() == before and not Deployment.objects.exists()
    made = client.post(
        "/api/v1/deployments",
        {"name": said["name"], "spec": said["spec"], "start": False},
        content_type="application/json",
    )
    assert made.status_code == 201, made.content
    assert not any("thisisverysecret" in str(row) for row in Event.objects.values())


def test_the_api_says_what_is_missing(copy: Copy) -> None:
    client = program(person("operator"))
    said = client.post(API, {"text": "vllm serve a/b"}, content_type="application/json").json()
    assert said["spec"] is None and said["findings"][0]["level"] == "error"
    said = client.post(API, {"text": "hello"}, content_type="application/json").json()
    assert said["engine"] == "" and said["findings"][0]["code"] == "paste.nothing"
    assert client.post(API, {"text": "x" * 70_000}, content_type="application/json").status_code == 422


def run(*words: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command(*words, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_the_shell_prints_what_apply_takes(copy: Copy, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("vllm serve acme/Tiny-1B-Instruct --max-model-len 2048 --seed 5 --api-key thisisverysecret\n")
    out, err = run("import-command", str(file), "--name", "from-shell")
    assert "thisisverysecret" not in out + err and "--api-key is a secret" in err
    entry = yaml.safe_load(out)["deployments"][0]
    assert entry["name"] == "from-shell" and entry["options"] == {"max_model_len": 2048}
    target = tmp_path / "d.yaml"
    target.write_text(out + "    running: false\n")
    run("apply", str(target))
    assert Revision.objects.get(deployment__name="from-shell").spec["extra_args"] == ["--seed", "5"]
    out, _err = run("import-command", str(file), "--create", "--no-start")
    assert Deployment.objects.filter(name="tiny-1b-instruct", desired="stopped").exists()
    out, _err = run("import-command", str(file), "--json")
    assert json.loads(out)["spec"]["artifact_id"] == copy.artifact_id


def test_the_shell_fails_where_something_is_missing(copy: Copy, tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text("vllm serve someone/Tiny-1B-Base")
    err = StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("import-command", str(file), stdout=StringIO(), stderr=err)
    assert caught.value.returncode == 1 and f"--model {copy.artifact_id}" in err.getvalue()
    with pytest.raises(CommandError) as caught:
        call_command("import-command", str(tmp_path / "none"))
    assert caught.value.returncode == 2


# --- and back ---------------------------------------------------------------------------------------------------------


def with_spec(copy: Copy, name: str = "team-chat", **values: Any) -> Deployment:
    row = builders.make_deployment(copy, name)
    spec = DeploymentSpec(artifact_id=copy.artifact_id, **values)
    Revision.objects.filter(pk=row.revision_id).update(spec=spec.model_dump(mode="json"))
    row.refresh_from_db()
    return row


@pytest.mark.parametrize("form", ["command", "compose", "systemd"])
def test_an_exported_deployment_comes_back_the_same(copy: Copy, form: Any) -> None:
    row = with_spec(
        copy, device="gpu", gpu_count=2, host_id=copy.host_id, runtime_id=copy.host.runtimes.get().pk,
        options={"max_model_len": 4096}, extra_args=["--seed", "7"], env={"OMP_NUM_THREADS": "4"}, grace_s=12.0,
        restart={"policy": "never", "max_attempts": 3},
    )  # fmt: skip
    text = exported.export(row, form)
    Deployment.objects.filter(pk=row.pk).update(name="renamed")
    reading = read(text)
    assert reading.spec is not None
    assert reading.spec.model_dump() == row.revision.spec | {"gpu_uuids": []}
    assert reading.name == "team-chat"


def test_a_ready_deployment_is_exported_as_it_runs(copy: Copy) -> None:
    row = with_spec(copy, device="gpu", options={"max_model_len": 4096})
    placement = {"device": "gpu", "gpus": [1], "gpu_uuids": ["GPU-quay-1"], "utilisation": 0.7, "kv_cache_gib": 4}
    run_ = builders.make_run(row, copy, placement=placement)
    builders.ready(row, run_)
    for gpu in copy.host.gpus.all():  # no room for a second one
        gpu.reserved_mib = gpu.total_mib
        gpu.save()
    text = exported.export(row, "command")
    assert "CUDA_VISIBLE_DEVICES=GPU-quay-1" in text and "--gpu-memory-utilization 0.7" in text


def test_where_nobody_can_say_how_it_runs(copy: Copy, operator: Client) -> None:
    row = with_spec(copy, device="gpu", gpu_count=8)
    with pytest.raises(Conflict) as caught:
        exported.export(row, "command")
    assert "cannot be said now" in caught.value.text and "—" not in caught.value.text
    answer = operator.get(reverse("deployment-export", args=[row.pk]))
    assert answer.status_code == 200 and b"cannot be said now" in answer.content


def test_the_export_page_api_and_shell(copy: Copy, operator: Client) -> None:
    row = with_spec(copy, device="gpu")
    assert (
        reverse("deployment-export", args=[row.pk])
        in operator.get(reverse("deployment", args=[row.pk])).content.decode()
    )
    page = operator.get(reverse("deployment-export", args=[row.pk])).content.decode()
    assert "ExecStart=" in page and "services:" in page and "vllm serve" in page
    client = program(person("viewer"))
    for form, kind in (("command", "text/plain"), ("compose", "application/yaml"), ("systemd", "text/plain")):
        answer = client.get(f"/api/v1/deployments/{row.pk}/export?form={form}")
        assert answer.status_code == 200 and answer["Content-Type"].startswith(kind)
        assert answer["Content-Disposition"].startswith('attachment; filename="team-chat.')
    assert client.get(f"/api/v1/deployments/{row.pk}/export?form=none").status_code == 422
    assert yaml.safe_load(client.get(f"/api/v1/deployments/{row.pk}/export").content)["berth"] == 1
    out, _err = run("export", "team-chat", "--as", "systemd")
    assert "[Service]" in out
    with_spec(copy, "second")
    with pytest.raises(CommandError):
        run("export", "--as", "command")


@pytest.mark.parametrize(
    "model", ["https://ada:s3cr3tXYZ9876@hub.example.org/a/b", "https://hub.example.org/a/b?token=s3cr3tXYZ9876"]
)
def test_a_login_in_the_models_address_is_told_nowhere(model: str) -> None:
    who = Actor.from_user(User.objects.create(username="pasting", role="admin"))
    reading = pasted.read(f"vllm serve {model}", actor=who)
    told = [reading.text, reading.model, *(str(one.as_dict()) for one in reading.findings)]
    assert "hub.example.org" in reading.model and not any("s3cr3tXYZ9876" in text for text in told)
