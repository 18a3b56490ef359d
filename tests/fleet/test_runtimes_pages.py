"""The engines' pages: what each person sees and may do, and a number of queries that does not grow."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from panel.accounts.models import User
from panel.audit.models import Event
from panel.fleet.models import Host, Job, Runtime, RuntimeInstall
from tests.deployments import builders

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here."""
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def host() -> Host:
    return builders.make_host()


def as_role(role: str) -> Client:
    client = Client(headers={"Sec-Fetch-Mode": "navigate", "Accept": "text/html"})
    if role != "stranger":
        client.force_login(User.objects.get_or_create(username=f"a {role}", defaults={"role": role})[0])
    return client


def text(client: Client, path: str, status: int = 200) -> str:
    answer = client.get(path)
    assert answer.status_code == status, answer.content[:500]
    return answer.content.decode()


def managed(host: Host, **values: Any) -> Runtime:
    return Runtime.objects.create(
        **{"host": host, "engine": "vllm", "executable": "/srv/engines/vllm-cpu-0.31.0/bin/vllm", "version": "0.31.0",
           "device": "cpu", "origin": "managed", **values}
    )  # fmt: skip


# --- the list ---------------------------------------------------------------------------------------------------------


def test_the_list_tells_each_engine_its_state_and_its_users(host: Host) -> None:
    copy = builders.make_copy(host)
    row = builders.make_deployment(copy, "team-chat", state="ready")
    run = builders.make_run(row, copy)
    run.runtime = managed(host)
    builders.ready(row, run)
    Runtime.objects.create(
        host=host,
        engine="vllm",
        executable="/b",
        refusal={"code": "probe_failed", "params": {"detail": "ImportError: libcudart"}},
    )
    Runtime.objects.create(
        host=host, engine="ollama", executable="/usr/bin/ollama", version="0.9", refusal={"code": "engine_not_used_yet"}
    )
    Runtime.objects.create(host=host, engine="vllm", executable="/gone", present=False)
    Runtime.objects.create(host=host, engine="vllm", executable="/removed", present=False, removed_at=timezone.now())
    page = text(as_role("viewer"), "/runtimes/")
    for part in ("vLLM 0.31.0 for CPU", "installed by Berth", f"/deployments/{row.pk}/", "runs from it", "ImportError: libcudart",
                 "Found, not used yet", "Not found any more"):  # fmt: skip
        assert part in page, part
    assert "/removed" not in page
    assert "Install an engine" not in page and "/remove" not in page, "a viewer may not"
    assert text(as_role("admin"), "/runtimes/").count("Install an engine") == 1, "one host, one button"


def test_names_from_hosts_are_text(host: Host) -> None:
    evil = "<script>alert(1)</script>"
    managed(host, version=evil, executable=evil, refusal={"code": evil, "params": {"detail": evil}}, plugins=[evil])
    builders.make_install(host, steps=[{"code": evil, "start": 1.0, "end": None, "done": 1, "total": 2, "note": evil}])
    row = builders.make_install(host, state="failed", refusal={"code": "install.pip_failed", "params": {"line": evil}})
    admin = as_role("admin")
    for path in ("/runtimes/", f"/runtimes/installs/{row.pk}/", "/hosts/"):
        assert "<script>alert" not in text(admin, path)


def test_queries_do_not_grow_with_a_thousand_engines(host: Host) -> None:
    client = as_role("admin")
    counts = []
    for start, n in ((0, 3), (1000, 1000)):
        Runtime.objects.bulk_create(
            Runtime(host=host, engine="vllm", executable=f"/e/{start + i}", version="0.1", flags=[{"name": "x"}] * 50)
            for i in range(n)
        )
        for i in range(3):
            other = builders.make_host(f"h{start}-{i}")
            copy = builders.make_copy(other, f"m{start}-{i}")
            builders.make_run(builders.make_deployment(copy, f"d{start}-{i}", state="ready"), copy)
            builders.make_install(other)
            builders.make_install(other, state="failed", refusal={"code": "task_failed"})
        with CaptureQueriesContext(connection) as seen:
            text(client, "/runtimes/")
        counts.append(len(seen))
    assert counts[0] == counts[1]
    assert "flags" not in " ".join(q["sql"] for q in seen).replace("jsonb_array_length", "").replace(
        '"flags")', ""
    ).replace("flag_count", "")
    assert "?page=2" in text(client, "/runtimes/")


def test_the_menu_and_the_live_part(host: Host) -> None:
    client = as_role("viewer")
    assert 'href="/runtimes/" aria-current="page"' in text(client, "/runtimes/")
    part = client.get("/runtimes/?part=list", headers={"HX-Request": "true"})
    assert part.status_code == 200 and b"<html" not in part.content and b'id="runtimes"' in part.content


# --- install ----------------------------------------------------------------------------------------------------------


def test_an_admin_installs_from_the_form(host: Host) -> None:
    client = as_role("admin")
    form = text(client, "/runtimes/install")
    assert 'value="0.32.0"' in form and '<option value="cpu" selected>' in form
    answer = client.post(
        "/runtimes/install", {"host": host.pk, "variant": "cpu", "version": "0.31.0", "extras": ["gguf"]}
    )
    row = RuntimeInstall.objects.get()
    assert (answer.status_code, answer.headers["Location"]) == (302, f"/runtimes/installs/{row.pk}/")
    assert (row.version, row.extras, row.asked_by) == ("0.31.0", ["gguf"], "a admin")


def test_a_host_with_a_gpu_opens_the_form_for_cuda() -> None:
    owner = builders.make_host("gpu", gpus=1)
    Host.objects.update(facts={**owner.facts, "cuda_driver_version": "13.0", "gpu_driver": "580"})
    assert '<option value="cuda" selected>' in text(as_role("admin"), f"/runtimes/install?host={owner.pk}")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"version": "1; rm"}, "Give a version such as"),
        ({"version": "0.32.0", "extras": ["flashinfer"]}, "CUDA only"),
        ({"variant": "cuda"}, "no working NVIDIA driver"),
        ({"variant": "npu"}, "npu"),
        ({"host": "999"}, "valid choice"),
    ],
)
def test_an_impossible_form_comes_back(host: Host, values: dict[str, Any], said: str) -> None:
    answer = as_role("admin").post("/runtimes/install", {"host": host.pk, "variant": "cpu", "version": "", **values})
    assert answer.status_code == 422
    assert said in answer.content.decode()
    assert not RuntimeInstall.objects.exists()


def test_the_form_says_before_what_would_be_refused_and_how_to_go_offline(host: Host, settings: Any) -> None:
    settings.BERTH_PIP_INDEX_URL = "https://ada:pa55word@packages.example/simple"
    client = as_role("admin")
    answer = client.post("/runtimes/install/check", {"host": host.pk, "variant": "cuda", "version": "0.32.0"})
    said = answer.content.decode()
    assert "This host has no working NVIDIA driver." in said and "install vLLM for the CPU" in said
    assert "••••@packages.example" in said and "pa55word" not in said
    assert "-m pip download --only-binary" in said and "/srv/wheels" in said and "vllm==0.32.0" in said
    settings.BERTH_WHEEL_FOLDER = "/data/wheels"
    offline = client.post(
        "/runtimes/install/check", {"host": host.pk, "variant": "cpu", "version": ""}
    ).content.decode()
    assert "--dest /data/wheels" in offline and "Nothing is fetched" in offline and "packages.example" not in offline
    assert not Job.objects.exists()


# --- one install ------------------------------------------------------------------------------------------------------


def test_the_page_shows_steps_log_and_acts_by_right(host: Host) -> None:
    row = builders.make_install(host)
    address = f"/runtimes/installs/{row.pk}/"
    page = text(as_role("admin"), address)
    for part in ("Checked the host", "Downloading packages", "12 / 41 · torch", "A tiny model answered", "Cancel it", f"{address}log",
                 'aria-current="step"', "Berth ends it and says here why"):  # fmt: skip
        assert part in page, part
    seen = text(as_role("viewer"), address)
    assert "Downloading packages" in seen and "Cancel it" not in seen
    assert text(as_role("viewer"), f"{address}log?offset=0") == "Collecting vllm\n"
    assert as_role("stranger").get(address).status_code == 302


def test_steps_that_were_passed_over_are_not_said_to_come(host: Host) -> None:
    """What was prepared before is only verified."""
    step = {"code": "verifying", "start": 1.0, "end": None, "done": 0, "total": 0, "note": ""}
    row = builders.make_install(host, steps=[step])
    page = text(as_role("viewer"), f"/runtimes/installs/{row.pk}/")
    assert page.count("— not needed here") == 3 and page.count("— not started") == 1


def test_the_page_loads_itself_whole_when_it_is_over(host: Host) -> None:
    row = builders.make_install(host)
    client, address = as_role("viewer"), f"/runtimes/installs/{row.pk}/"
    look = f"{row.job_id}-on"
    ask = {"part": "live", "look": look}
    part = client.get(address, ask, headers={"HX-Request": "true"})
    assert part.status_code == 200 and b"<html" not in part.content
    RuntimeInstall.objects.update(state="failed", refusal={"code": "install.deadline", "params": {"minutes": 120}})
    over = client.get(address, ask, headers={"HX-Request": "true"})
    assert (over.status_code, over.headers["HX-Redirect"]) == (204, address)
    page = text(client, address)
    assert "did not end within 120 min" in page and "what was downloaded is used again" in page
    assert "hx-get" not in page.split('id="steps"')[1].split(">")[0], "a page that is over asks no more"


def test_a_host_that_is_away_is_said(host: Host) -> None:
    row = builders.make_install(host, state="waiting", steps=[])
    Host.objects.update(lost_at=timezone.now())
    assert "No contact with quay now. It goes on when the host is back." in text(
        as_role("viewer"), f"/runtimes/installs/{row.pk}/"
    )


def test_nothing_moving_for_long_is_said(host: Host) -> None:
    row = builders.make_install(host)
    Job.objects.filter(pk=row.job_id).update(
        status={"still_since": (timezone.now() - timedelta(minutes=30)).timestamp()}
    )
    assert "Nothing has moved for 30 min" in text(as_role("viewer"), f"/runtimes/installs/{row.pk}/")


def test_cancel_and_try_again_by_button(host: Host) -> None:
    client = as_role("admin")
    row = builders.make_install(host)
    assert client.post(f"/runtimes/installs/{row.pk}/cancel").status_code == 302
    row.refresh_from_db()
    assert row.state == "cancelling"
    failed = builders.make_install(host, state="failed", refusal={"code": "task_failed"}, name="other")
    assert "Try again" in text(client, f"/runtimes/installs/{failed.pk}/")
    assert client.post(f"/runtimes/installs/{failed.pk}/again").status_code == 302
    failed.refresh_from_db()
    assert (failed.state, failed.tries) == ("waiting", 2)
    assert set(Event.objects.values_list("verb", flat=True)) >= {
        "runtime.install_cancelled",
        "runtime.install_tried_again",
    }


def test_an_install_that_is_not_there(host: Host) -> None:
    for end in ("", "log", "log.txt", "live"):
        assert as_role("admin").get(f"/runtimes/installs/{uuid.uuid4()}/{end}").status_code == 404


# --- remove, look -----------------------------------------------------------------------------------------------------


def test_removal_names_what_uses_it_and_what_would_lose_it(host: Host) -> None:
    row = managed(host)
    copy = builders.make_copy(host)
    running = builders.make_deployment(copy, "team-chat", state="ready")
    run = builders.make_run(running, copy)
    run.runtime = row
    builders.ready(running, run)
    stopped = builders.make_deployment(copy, "night-batch")
    stopped.revision.spec["runtime_id"] = row.pk
    stopped.revision.save()
    client, address = as_role("admin"), f"/runtimes/{row.pk}/remove"
    page = text(client, address)
    assert "These run from it now:" in page and f"/deployments/{running.pk}/" in page and "night-batch" in page
    refused = client.post(address, {"confirmed": "1"})
    assert refused.status_code == 422 and "team-chat runs from this engine now." in refused.content.decode()
    run.ended_at = timezone.now()
    run.save()
    asked = client.post(address)
    assert (
        asked.status_code == 422
        and "night-batch" in asked.content.decode()
        and not Job.objects.filter(kind="remove").exists()
    )
    assert client.post(address, {"confirmed": "1"}).status_code == 302
    assert Job.objects.get(kind="remove").order["executable"] == row.executable
    assert "Being removed" in text(client, "/runtimes/")


def test_nothing_new_starts_from_an_engine_that_is_being_removed(host: Host) -> None:
    from deployments import preflight
    from deployments.spec import DeploymentSpec

    host.runtimes.all().delete()
    row = managed(host, flags=builders.FLAGS)
    copy = builders.make_copy(host)
    spec = DeploymentSpec(artifact_id=copy.artifact_id)
    assert preflight.check(spec, name="x").ok
    as_role("admin").post(f"/runtimes/{row.pk}/remove")
    assert preflight.check(spec, name="x").reason["params"]["candidates"][0]["code"] == "runtime.none"


def test_folders_by_page(host: Host) -> None:
    client, address = as_role("admin"), f"/runtimes/hosts/{host.pk}/folders"
    assert client.post(address, {"folder": "relative"}).status_code == 422
    assert client.post(address, {"folder": "/opt/engines"}).status_code == 302
    assert "/opt/engines" in text(client, address)
    assert client.post(f"{address}/forget", {"folder": "/opt/engines"}).status_code == 302
    host.refresh_from_db()
    assert host.runtime_folders == []
    assert client.post(f"/runtimes/hosts/{host.pk}/find").status_code == 302
