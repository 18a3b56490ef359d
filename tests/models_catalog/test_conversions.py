"""Conversions: what one takes, who may, what is refused before it begins, what becomes of it."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from models_catalog.conversions import outcomes, services, wording
from models_catalog.conversions.services import Wish
from models_catalog.models import CatalogModel, Conversion, Copy
from panel.accounts.models import User
from panel.audit.models import Event
from panel.core.errors import Conflict, Denied, Invalid
from panel.fleet import reports, wire
from panel.fleet import services as fleet
from panel.fleet.models import LOST_RESULT, Host, Job, Runtime
from panel.fleet.runtimes import packages
from tests.deployments import builders

pytestmark = pytest.mark.django_db

GIB = 1 << 30
WISH = Wish("float16", "/models", "tiny-float16")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)
    monkeypatch.setattr("models_catalog.conversions.events.send", lambda job_id: None)


def person(role: str) -> User:
    return User.objects.create_user(username=role, role=role)


@pytest.fixture
def copy(db: None) -> Copy:
    """A GGUF of a billion parameters on a host with 10 GiB free and vLLM for the CPU."""
    host = builders.make_host()
    host.facts = {**host.facts, "disks": [{"path": "/", "total_mib": 99_000, "free_mib": 10 << 10}]}
    host.save()
    made = builders.make_copy(host)
    made.path = "/models/tiny/tiny-Q8_0.gguf"
    made.save()
    row = made.artifact
    row.format, row.label = "gguf", "Q8_0"
    row.facts = {**row.facts, "format": "gguf", "parameters": 1_000_000_000}
    row.save()
    return Copy.objects.select_related("host", "artifact__model").get(pk=made.pk)


def say(row: Conversion, state: str, result: Any = None, **status: Any) -> Conversion:
    """What the host reports of its job, taken."""
    Job.objects.filter(pk=row.job_id).update(
        state=state,
        status={"state": state, **status},
        result=result,
        ended_at=timezone.now() if state in ("ended", "refused") else None,
    )
    outcomes.take(row.job_id)
    row.refresh_from_db()
    return row


def verbs() -> list[str]:
    return list(Event.objects.order_by("pk").values_list("verb", flat=True))


# --- before it begins -------------------------------------------------------------------------------------------------


def test_its_size_is_parameters_times_bytes(copy: Copy) -> None:
    assert services.size_of(copy.artifact, "float16") == 2_000_000_000
    assert services.size_of(copy.artifact, "float32") == 4_000_000_000
    assert services.need_mib(2_000_000_000) == 1908 + 64


@pytest.mark.parametrize(
    ("facts", "dtype"),
    [
        ({}, "float16"),
        ({"dtype_bytes": {"BF16": 900, "F32": 9}}, "bfloat16"),
        ({"dtype_bytes": {"Q8_0": 900, "F32": 9}}, "float16"),
        ({"model_type": "gemma3"}, "bfloat16"),
    ],
    ids=["usual", "made in it", "packed", "leaves the range"],
)
def test_the_number_format_suits_the_model(copy: Copy, facts: dict, dtype: str) -> None:
    copy.artifact.facts = {**copy.artifact.facts, **facts}
    assert services.usual_dtype(copy.artifact) == dtype


def test_an_operator_has_a_copy_converted(copy: Copy) -> None:
    row = services.start(copy, WISH, actor=person("operator"))
    order = Job.objects.get(pk=row.job_id).order
    assert order == wire.ConvertTask(executable="/opt/quay/bin/vllm", path=copy.path, folder="/models",
                                     name="tiny-float16").model_dump(mode="json")  # fmt: skip
    assert (row.state, row.bytes_total, row.asked_by) == ("waiting", 2_000_000_000, "operator")
    assert services.start(copy, WISH, actor=None).pk == row.pk, "pressed twice it is one"
    assert verbs() == ["conversion.started"]


def test_a_viewer_may_not(copy: Copy) -> None:
    with pytest.raises(Denied):
        services.start(copy, WISH, actor=person("viewer"))
    assert not Conversion.objects.exists() and Event.objects.get().outcome == "denied"


def test_what_does_not_fit_the_disk_is_refused_before_it_begins(copy: Copy) -> None:
    copy.host.facts["disks"][0]["free_mib"] = 1900
    copy.host.save()
    with pytest.raises(services.NoSpace) as refusal:
        services.start(copy, WISH, actor=None)
    assert "1.9" in refusal.value.text and refusal.value.hint_text and not Job.objects.exists()


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        (Wish("int4", "/models", "x"), "dtype"),
        (Wish("float16", "/etc", "x"), "folder"),
        (Wish("float16", "/models", "../x"), "name"),
        (Wish("float16", "/models", ".x"), "name"),
        (Wish("float16", "/models", "a/b"), "name"),
        (Wish("float16", "/models", ""), "name"),
        (Wish("float16", "/models", "x" * 200), "name"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_impossible_wish(copy: Copy, wish: Wish, field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        services.start(copy, wish, actor=None)
    assert list(refusal.value.fields) == [field] and not Job.objects.exists()


def test_a_name_that_is_taken(copy: Copy) -> None:
    other = builders.make_copy(copy.host, "Other")
    Copy.objects.filter(pk=other.pk).update(path="/models/tiny-float16")
    with pytest.raises(Invalid):
        services.start(copy, WISH, actor=None)


@pytest.mark.parametrize("what", ["not usable", "no size", "no engine", "forbidden", "forgotten", "no gguf"])
def test_what_stands_in_the_way_is_told(copy: Copy, what: str) -> None:
    if what == "not usable":
        Copy.objects.update(usable=False)
    elif what == "no size":
        copy.artifact.facts = {**copy.artifact.facts, "parameters": None}
        copy.artifact.save()
    elif what == "no engine":
        Runtime.objects.update(present=False)
    elif what == "forbidden":
        Host.objects.update(facts={**copy.host.facts, "allow_download": False})
    elif what == "forgotten":
        Host.objects.update(forgotten_at=timezone.now())
    else:
        copy.artifact.format = "hf"
        copy.artifact.save()
    with pytest.raises(Conflict) as refusal:
        services.start(copy, WISH, actor=None)
    assert refusal.value.text and not Job.objects.exists()


# --- what becomes of it -----------------------------------------------------------------------------------------------


def test_it_ends_as_a_model_that_knows_its_source(copy: Copy) -> None:
    CatalogModel.objects.update(licence="apache-2.0", source_url="https://example.org/tiny")
    row = services.start(copy, WISH, actor=person("operator"))
    assert say(row, "running").state == "running"
    assert say(row, "ended").state == "running", "its result is on the way"
    item = {"path": "/models/tiny-float16", "format": "hf"}
    row = say(row, "ended", {"items": [item], "refusal": None})
    assert (row.state, row.made) == ("done", "/models/tiny-float16")
    assert Job.objects.filter(kind="scan").exists(), "the catalog is told by a look through the folders"
    assert verbs() == ["conversion.started", "conversion.done"]
    found = builders.make_copy(copy.host, "tiny-float16")
    Copy.objects.filter(pk=found.pk).update(path="/models/tiny-float16")
    for _twice in range(2):
        outcomes.note(copy.host)
        model = CatalogModel.objects.get(name="tiny-float16")
        assert model.added_by == "operator" and model.licence == "apache-2.0" and model.source_url
        assert model.added_from["how"] == "converted" and model.added_from["model"] == copy.artifact.model_id
    assert CatalogModel.objects.get(pk=copy.artifact.model_id).added_from.get("how") != "converted"


def test_a_failure_is_told_and_can_be_tried_again(copy: Copy) -> None:
    row = services.start(copy, WISH, actor=None)
    refusal = {"code": "convert.no_memory", "params": {"free_mib": 1000, "need_mib": 4000}}
    row = say(row, "ended", {"items": [], "refusal": refusal})
    assert row.state == "failed" and "3.9\u00a0GiB" in wording.failure(row.refusal).text
    assert verbs() == ["conversion.started", "conversion.failed"]
    first = row.job_id
    row = services.try_again(row, actor=None)
    assert (row.state, row.tries, row.refusal) == ("waiting", 2, None) and row.job_id != first


def test_a_cancelled_one_is_cancelled_whatever_the_host_calls_it(copy: Copy) -> None:
    row = services.start(copy, WISH, actor=None)
    for _twice in range(2):
        row = services.cancel(row, actor=None)
        assert row.state == "cancelling" and Job.objects.get(pk=row.job_id).desired == "stop"
    row = say(row, "ended", {"items": [], "refusal": {"code": "stopped", "params": {}}})
    assert row.state == "cancelled" and row.refusal is None
    assert verbs() == ["conversion.started", "conversion.cancelled"]


def test_one_that_was_done_before_the_cancel_came_is_done(copy: Copy) -> None:
    row = services.cancel(services.start(copy, WISH, actor=None), actor=None)
    row = say(row, "ended", {"items": [{"path": "/models/tiny-float16"}], "refusal": None})
    assert row.state == "done"


def test_nothing_rests_for_ever(copy: Copy) -> None:
    row = services.start(copy, WISH, actor=None)
    long_ago = timezone.now() - 2 * LOST_RESULT
    Job.objects.filter(pk=row.job_id).update(state="ended", ended_at=long_ago)
    outcomes.sweep(every_s=0)
    row.refresh_from_db()
    assert (row.state, row.refusal["code"]) == ("failed", "task_failed")
    row = services.try_again(row, actor=None)
    say(row, "refused", refusal={"code": "kind_unknown", "params": {"kind": "convert"}})
    assert row.state == "failed" and wording.failure(row.refusal).hint
    row = services.try_again(row, actor=None)
    Host.objects.update(forgotten_at=timezone.now())
    outcomes.sweep(every_s=0)
    row.refresh_from_db()
    assert row.state == "failed"


@pytest.mark.parametrize("code", wording.FAILURES)
def test_every_code_has_whole_sentences(code: str) -> None:
    params = dict.fromkeys(
        ["detail", "package", "architecture", "path", "error", "executable", "limit", "seconds", "files"], "x"
    ) | {"free_mib": 10, "need_mib": 20}
    said = wording.failure({"code": code, "params": params})
    assert "%(" not in said.text + said.hint and said.text.endswith(".")


# --- pages ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def browser(db: None) -> Client:
    client = Client(headers={"Accept": "text/html", "Sec-Fetch-Mode": "navigate"})
    client.force_login(person("operator"))
    return client


def shown(browser: Client, path: str) -> str:
    """Numbers keep their units on the line."""
    return browser.get(path).content.decode().replace("\u00a0", " ")


def test_the_model_page_explains_and_offers(copy: Copy, browser: Client) -> None:
    page = shown(browser, f"/models/{copy.artifact.model_id}/")
    assert "its kernels need a GPU" in page and "≈ 1.9 GiB" in page
    assert page.index("Convert it to a Hugging Face folder: “Ways") < page.index("Longest context"), "what helps first"
    assert "Without experts" not in page and "Chat and text" in page
    assert page.index("/convert") < page.index("Longest context")
    assert f"/models/copies/{copy.pk}/convert" in page and "Serve it with llama.cpp" in page
    Runtime.objects.create(
        host=copy.host,
        engine="llamacpp",
        executable="/opt/llama-server",
        version="b1",
        origin="path",
        refusal={"code": "engine_not_used_yet", "params": {}},
    )
    page = browser.get(f"/models/{copy.artifact.model_id}/").content.decode()
    assert "/opt/llama-server -m /models/tiny/tiny-Q8_0.gguf --host 127.0.0.1" in page
    Runtime.objects.filter(engine="vllm").update(device="cuda", plugins=["gguf"])
    page = browser.get(f"/models/{copy.artifact.model_id}/").content.decode()
    assert "Ways to serve it" not in page, "an engine serves it"


def test_from_the_question_to_the_page_of_it(copy: Copy, browser: Client) -> None:
    where = f"/models/copies/{copy.pk}/convert"
    page = shown(browser, where)
    assert (
        "1.9 GiB" in page
        and "3.7 GiB" in page
        and "10.0 GiB free" in page
        and 'value="Tiny-1B-Instruct-float16"' in page
    )
    assert "<b>float16 · ≈ 1.9 GiB</b>" in page and "<b>bfloat16 · ≈ 1.9 GiB</b>" in page, "two of one size"
    again = browser.post(where, {"dtype": "float16", "folder": "/models", "name": "../x"})
    assert again.status_code == 422
    began = browser.post(where, {"dtype": "float16", "folder": "/models", "name": "tiny-float16"})
    row = Conversion.objects.get()
    assert began["Location"] == f"/models/conversions/{row.pk}/"
    assert "Waiting for the host" in browser.get(began["Location"]).content.decode()
    say(row, "running", progress={"phase": "reading", "done": 96, "total": 272, "passed": ["checking"], "note": ""})
    page = browser.get(began["Location"]).content.decode()
    assert "Reading and unpacking weights" in page and 'id="ask-cancel"' in page and "96 / 272" in page
    Conversion.objects.filter(pk=row.pk).update(created_at=timezone.now() - timedelta(seconds=70))
    assert "asked 70 s ago" in shown(browser, began["Location"] + "?part=live"), "in the part that goes on"
    page = browser.get(f"/models/{copy.artifact.model_id}/").content.decode()
    assert f"/models/conversions/{row.pk}/" in page
    browser.post(f"/models/conversions/{row.pk}/cancel")
    say(row, "ended", {"items": [], "refusal": {"code": "stopped", "params": {}}})
    page = browser.get(began["Location"]).content.decode()
    assert "Nothing of it is left" in page and "Try again" in page
    browser.post(f"/models/conversions/{row.pk}/again")
    row.refresh_from_db()
    assert row.tries == 2


def test_the_folder_that_the_file_lies_in_is_the_first(copy: Copy, browser: Client) -> None:
    """Others may not exist yet; and what was made says where it lies, not that it is beside the file."""
    host = copy.host
    host.facts = {**host.facts, "model_roots": ["/aaa/not-there", "/models"]}
    host.save()
    page = shown(browser, f"/models/copies/{copy.pk}/convert")
    assert 'value="/models" checked' in page and 'value="/aaa/not-there" required' in page
    row = services.start(copy, Wish("float16", "/aaa/not-there", "tiny"), actor=None)
    Conversion.objects.filter(pk=row.pk).update(state="done")
    page = shown(browser, f"/models/conversions/{row.pk}/")
    assert "The GGUF file is as it was." in page and "/aaa/not-there/tiny" in page
    assert "beside" not in page


def test_where_it_cannot_be_it_says_so(copy: Copy, browser: Client) -> None:
    Runtime.objects.all().delete()
    page = browser.get(f"/models/copies/{copy.pk}/convert").content.decode()
    assert "It takes a working vLLM" in page and "disabled" in page


# --- the plugin -------------------------------------------------------------------------------------------------------


@pytest.fixture
def runtime(copy: Copy) -> Runtime:
    row = Runtime.objects.get()
    row.device, row.origin = "cuda", "managed"
    row.save()
    return row


def take(job: Job, result: dict) -> None:
    fleet.lock_host(job.host_id)
    reports.take_result(job.host, job.pk, wire.JobResult.model_validate(result))


def test_an_admin_has_the_plugin_added(runtime: Runtime, settings: Any) -> None:
    settings.BERTH_PIP_INDEX_URL = "https://ann:secret@index.example.org/simple"
    job = packages.add_plugin(runtime, actor=person("admin"))
    assert packages.add_plugin(runtime, actor=None).pk == job.pk, "pressed twice it is one"
    assert job.order["package"] == "vllm-gguf-plugin" and "secret" not in str(job.order) and job.secrets
    assert packages.adding([runtime])[runtime.pk].going
    found = {"engine": "vllm", "executable": runtime.executable, "version": "0.32.0", "device": "cuda",
             "plugins": ["gguf"], "origin": "managed"}  # fmt: skip
    take(job, {"items": [found], "refusal": None})
    runtime.refresh_from_db()
    assert runtime.plugins == ["gguf"] and packages.adding([runtime]) == {}
    assert verbs() == ["runtime.package_asked", "runtime.package_added"]


def test_a_failure_is_shown_where_it_was_asked_for(runtime: Runtime, copy: Copy) -> None:
    job = packages.add_plugin(runtime, actor=None)
    refusal = {"code": "install.package_broken", "params": {"package": "vllm-gguf-plugin", "line": "no kernels"}}
    Job.objects.filter(pk=job.pk).update(state="ended", ended_at=timezone.now(), open=False)
    take(job, {"items": [], "refusal": refusal})
    assert packages.adding([runtime])[runtime.pk].refusal["code"] == "install.package_broken"
    client = Client(headers={"Accept": "text/html", "Sec-Fetch-Mode": "navigate"})
    client.force_login(person("admin"))
    page = client.get(f"/models/{copy.artifact.model_id}/").content.decode()
    assert "no kernels" in page and "taken out again" in page and "Install the plugin" in page


def test_the_plugin_is_for_admins(runtime: Runtime, copy: Copy, browser: Client) -> None:
    with pytest.raises(Denied):
        packages.add_plugin(runtime, actor=person("viewer"))
    page = browser.get(f"/models/{copy.artifact.model_id}/").content.decode()
    assert "Add the plugin" in page and "An admin can do that" in page
    assert browser.post(f"/runtimes/{runtime.pk}/plugin").status_code == 403


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"origin": "path"}, "package.not_managed"),
        ({"device": "cpu"}, "package.not_needed"),
        ({"plugins": ["gguf"]}, "package.not_needed"),
        ({"version": "0.11.2"}, "package.not_needed"),
        ({"present": False}, "runtime.gone"),
    ],
    ids=["another's", "cpu", "there", "old", "gone"],
)
def test_where_the_plugin_is_refused(runtime: Runtime, change: dict, code: str) -> None:
    Runtime.objects.update(**change)
    with pytest.raises(Conflict) as refusal:
        packages.add_plugin(runtime, actor=None)
    assert refusal.value.code == code and "%(" not in f"{refusal.value.text} {refusal.value.hint_text}"
    assert not Job.objects.exists()
    if code == "package.not_managed":
        assert "pip install --no-deps vllm-gguf-plugin" in refusal.value.hint_text
