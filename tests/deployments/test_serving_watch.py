"""Watching what serves: findings kept when they change, questions when nobody asks, and the end of what hangs."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.test import Client
from django.utils import timezone

from deployments import acts, patching, queries, reconcile
from deployments.api.schemas import deployment_out
from deployments.diagnosis import phases
from deployments.diagnosis.rules import BY_CODE
from deployments.gateway.ask import Answer
from deployments.models import Deployment, Run
from deployments.serving import contexts, fixes, live_probe, watch
from deployments.spec import DeploymentSpec
from panel.accounts.models import User
from panel.audit.models import Event
from panel.fleet import logstore, reports, serving_points, wire
from panel.fleet.models import Host
from panel.fleet.wire_serving import Point
from tests.deployments import builders

pytestmark = pytest.mark.django_db

POINT = Point(0, health=200, running=2, waiting=0, kv_usage=0.3, preemptions=0, prompt_tokens=50, generation_tokens=90,
              steps=40, done=7, failed=0, http_ok=7, http_4xx=0, http_5xx=0, rss_mib=3100, processes=3)  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, broker: redis.Redis) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: True)
    monkeypatch.setattr("panel.core.queue.send", lambda task, *args: True)
    broker.set("berth:fleet:since", 0)


@pytest.fixture
def row(db: None) -> Deployment:
    """Ready for an hour."""
    copy = builders.make_copy(builders.make_host())
    made = builders.make_deployment(copy, state="ready")
    made.revision.spec = {**made.revision.spec, "kv_cache_gib": 4, "options": {"max_model_len": 2048}}
    made.revision.save()
    run = builders.make_run(made, copy)
    builders.ready(made, run)
    earlier = timezone.now() - timedelta(hours=1)
    Run.objects.filter(pk=run.pk).update(ready_at=earlier)
    Deployment.objects.filter(pk=made.pk).update(state_since=earlier)
    return Deployment.objects.get(pk=made.pk)


def keep(broker: redis.Redis, row: Deployment, minutes: float = 10, **values: Any) -> None:
    """Points each 10 s until now; a value may be a function of how long ago it is."""
    key, now = f"{serving_points.KEY}{row.run.job_id}", time.time()
    broker.delete(key)
    for n in range(int(minutes * 6), -1, -1):
        more = {name: value(10 * n) if callable(value) else value for name, value in values.items()}
        broker.rpush(key, json.dumps(replace(POINT, at=now - 10 * n, **more).pack()))


def found(row: Deployment) -> list[dict[str, Any]]:
    return Run.objects.get(pk=row.run_id).findings.get("found", [])


def live(row: Deployment) -> dict[str, Any]:
    return Run.objects.get(pk=row.run_id).live


# --- findings ---------------------------------------------------------------------------------------------------------


def test_a_finding_is_kept_with_a_change_that_the_planner_accepts(row: Deployment, broker: redis.Redis) -> None:
    keep(broker, row, kv_usage=0.97)
    watch.look(time.time())
    (one,) = found(row)
    assert (one["code"], one["level"], one["params"]["percent"]) == ("serve.kv_full", "warn", 95)
    assert one["fix"]["patch"] == {"kv_cache_gib": 6}
    spec = DeploymentSpec.model_validate(row.revision.spec)
    assert patching.accepted(spec, one["fix"]["patch"], row.name).ok
    keep(broker, row)
    watch.look(time.time())
    assert found(row) == []


SPEAKS_ON = {"question": "What is 17 + 25?", "answer": "42<|im_end|>\n<|im_start|>user\nAnd 3 + 4?"}


@pytest.mark.parametrize("kept", ["answer", "golden"])
def test_marks_of_who_speaks_in_its_answers_are_found(row: Deployment, broker: redis.Redis, kept: str) -> None:
    well = {"question": "Hello?", "answer": "Hello!", "path": "/v1/chat/completions"}
    values = {"answer": {**well, **SPEAKS_ON}} if kept == "answer" else {"golden": {"answers": [SPEAKS_ON]}}
    Run.objects.filter(pk=row.run_id).update(**{"answer": well, **values})
    keep(broker, row)
    watch.look(time.time())
    (one,) = found(row)
    assert (one["code"], one["params"]["marker"]) == ("serve.role_markers", "<|im_end|>")
    page = browser("operator").get(f"/deployments/{row.pk}/").content.decode()
    assert "Its answers show “&lt;|im_end|&gt;”." in page and "And 3 + 4?" in page
    Run.objects.filter(pk=row.run_id).update(
        answer={**well, "path": "/v1/completions"}, **{"golden": values.get("golden", {})}
    )
    watch.look(time.time())
    assert found(row) == [], "a model without a template goes on as it likes"


def test_no_change_is_offered_that_would_not_start(row: Deployment, broker: redis.Redis) -> None:
    Host.objects.update(ram_total_mib=6_000)
    Host.objects.update(facts={**Host.objects.get().facts, "ram_total_mib": 6_000, "ram_available_mib": 900})
    keep(broker, row, kv_usage=0.97)
    watch.look(time.time())
    assert [(one["code"], one["fix"]) for one in found(row)] == [("serve.kv_full", None)]


def test_a_change_that_settings_cannot_say_does_not_hide_the_next_one(
    row: Deployment, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = fixes.HELPS["serve.kv_full"]

    def too_much_first(now: fixes.Now, params: Mapping[str, Any]) -> Iterator[fixes.Fix]:
        yield fixes.Fix("patch", "fix.kv_gib", {"to": -1}, patch={"kv_cache_gib": -1})
        yield from more(now, params)

    monkeypatch.setitem(fixes.HELPS, "serve.kv_full", too_much_first)
    keep(broker, row, kv_usage=0.97)
    watch.look(time.time())
    assert [one["fix"]["patch"] for one in found(row)] == [{"kv_cache_gib": 6}]


def test_what_has_not_changed_is_not_written_again(
    row: Deployment, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr("deployments.events.announce", lambda pk, **_: told.append(pk))
    keep(broker, row, waiting=4)
    for _ in range(3):
        watch.look(time.time())
    assert told == [row.pk]


@pytest.mark.parametrize(
    "change",
    [{"state": "lost"}, {"desired": "stopped"}, {"state": "starting"}],
    ids=["lost", "unwanted", "starting"],
)
def test_only_what_serves_is_looked_at(row: Deployment, broker: redis.Redis, change: dict[str, str]) -> None:
    Deployment.objects.update(**change)
    keep(broker, row, kv_usage=0.97)
    watch.look(time.time())
    assert (found(row), live(row)) == ([], {})


def test_a_host_without_contact_is_left_alone(row: Deployment, broker: redis.Redis) -> None:
    Host.objects.update(lost_at=timezone.now())
    watch.look(time.time())
    assert live(row) == {}


def test_the_number_of_queries_does_not_grow(row: Deployment, broker: redis.Redis, django_assert_num_queries) -> None:
    keep(broker, row, done=lambda age: 1000 - age)
    copy = row.run.copy
    for n in range(3):
        other = builders.make_deployment(copy, f"other-{n}", state="ready")
        run = builders.make_run(other, copy)
        builders.ready(other, run)
        other.refresh_from_db()
        keep(broker, other, done=lambda age: 1000 - age)
    watch.look(time.time())  # what has settled is noted once
    with django_assert_num_queries(1):
        watch.look(time.time())


def test_the_log_of_a_serving_engine_is_counted(row: Deployment) -> None:
    run = row.run
    Run.objects.filter(pk=run.pk).update(parser=phases.new_state(0.0))
    line = b"ValueError: This model's maximum context length is 2048 tokens. However, you requested %d tokens\n"
    data = b"".join(line % n for n in (3000, 3100, 3200))
    logstore.append(run.job_id, len(builders.LOG), data, 0)
    acts.read_log(Deployment.objects.select_related("run__job__log").get(pk=row.pk))
    watch.look(time.time())
    (one,) = found(row)
    assert (one["code"], one["params"]) == ("serve.long", {"count": 3, "asked": 3200})
    assert one["fix"]["patch"]["options"] == {"max_model_len": 4096}


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({"code": "fix.more_share", "params": {"before": 0.9, "after": 0.95}},
         "Let it use more of the GPU's memory: a share of 0.9 → 0.95. All that is gained goes to conversations."),
        ({"code": "fix.longer", "params": {"before": 2048, "after": 4096}},
         "Allow longer conversations: 2048 → 4096 tokens. Fewer of them fit at the same time."),
        ({"code": "fix.graphs", "params": {}},
         "Let it record its work for the GPU (CUDA graphs). The start takes a little longer, and each answer less."),
        ({"code": "fix.kv_fp8", "params": {}}, "Keep conversations in 8 bits (FP8). They then take half the memory."),
    ],
    ids=lambda value: value["code"] if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_change_that_was_kept_under_an_earlier_name_is_still_said_in_words(
    row: Deployment, kept: dict[str, Any], said: str
) -> None:
    finding = {"family": "serve.kv_full", "code": "serve.kv_full", "level": "warn", "since": time.time(),
               "params": {"percent": 95}, "fix": {**kept, "patch": {"options": {"seed": 1}}}}  # fmt: skip
    Run.objects.filter(pk=row.run_id).update(findings={"found": [finding]})
    (shown,) = contexts.findings_of(Deployment.objects.select_related("run").get(pk=row.pk))
    assert f"{shown['fix']['said'].text} {shown['fix']['said'].hint}" == said


def test_asking_whether_a_change_still_helps_writes_nothing(row: Deployment, broker: redis.Redis) -> None:
    keep(broker, row, kv_usage=0.97)
    watch.look(time.time())
    fix = fixes.offered(Run.objects.get(pk=row.run_id), "serve.kv_full")
    assert fix is not None
    kept, read = found(row), Deployment.objects.select_related("revision", "run").get(pk=row.pk)
    assert fixes.still_helps(read, fix)
    Host.objects.update(facts={**Host.objects.get().facts, "ram_total_mib": 6_000, "ram_available_mib": 900})
    Host.objects.update(ram_total_mib=6_000)
    assert not fixes.still_helps(read, fix)
    assert found(row) == kept
    fixes.take_back(read.run, "serve.kv_full", fix)
    assert [each["fix"] for each in found(row)] == [None]


# --- from the report to the points ------------------------------------------------------------------------------------


def say(row: Deployment, at: float, **numbers: Any) -> None:
    status = {"id": str(row.run.job_id), "kind": "engine", "state": "running", "port": 18_100, "listening": True,
              "serving": {"at": at, **numbers}, "rss_mib": 3000, "gpu_used_mib": 700}  # fmt: skip
    report = {"agent_version": "1", "sent_at": at + 2, "rev": 1, "jobs": [status]}
    reports.take_report(Host.objects.get(), wire.Report.model_validate(report))


def test_reports_become_points_once_each_and_few(
    row: Deployment, broker: redis.Redis, monkeypatch, django_capture_on_commit_callbacks
) -> None:
    monkeypatch.setattr(serving_points, "LEAST", 5)
    monkeypatch.setattr(serving_points, "SPAN_S", 100.0)
    monkeypatch.setattr(serving_points, "MOST", 12)
    key = str(row.run.job_id)
    for n in range(20):
        with django_capture_on_commit_callbacks(execute=True):
            say(row, 1000.0 + 10 * n, running=n)
            say(row, 1000.0 + 10 * n, running=n)  # the same look, in a report that came for another reason
    points = serving_points.read([key])[key]
    assert [point.running for point in points] == list(range(10, 20))
    assert all(abs(point.at - (time.time() - 2)) < 30 for point in points), "by our clock, whatever the host's says"
    assert (points[-1].rss_mib, points[-1].gpu_mib) == (3000, 700)
    assert 0 < broker.ttl(serving_points.KEY + key) <= serving_points.LASTS_S


def test_figures_of_a_serving_engine_write_no_row(
    row: Deployment, django_assert_max_num_queries, django_capture_on_commit_callbacks
) -> None:
    for n in range(3):
        with django_capture_on_commit_callbacks(execute=True):
            say(row, 1000.0 + n, running=n)
    with django_assert_max_num_queries(1):  # the host itself, in this test
        say(row, 1020.0, running=3)


def test_an_older_agent_tells_nothing_and_nothing_breaks(row: Deployment) -> None:
    status = {"id": str(row.run.job_id), "kind": "engine", "state": "running", "port": 18_100, "listening": True}
    report = {"agent_version": "0", "sent_at": 1.0, "rev": 1, "jobs": [status]}
    reports.take_report(Host.objects.get(), wire.Report.model_validate(report))
    watch.look(time.time())
    assert found(row) == []


# --- questions --------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Bodies of what was asked; `came[0]` is the answer."""
    bodies: list[dict[str, Any]] = []

    def ask(_base: str, _token: str, path: str, body: dict[str, Any], timeout_s: float) -> Answer:
        assert 0 < timeout_s <= live_probe.LONGEST_S
        bodies.append({"path": path, **body})
        return came[0]

    monkeypatch.setattr(live_probe, "ask", ask)
    return bodies


came = [Answer(200, "", 5.0, "engine", {})]


def answer_is(answer: Answer) -> None:
    came[0] = answer


def turn(row: Deployment) -> None:
    """A look, and what it sent."""
    watch.look(time.time())
    live_probe.ask_run(str(row.run_id))


def test_an_idle_engine_is_asked_for_one_token(row: Deployment, broker: redis.Redis, asked: list[dict]) -> None:
    answer_is(Answer(200, "", 5.0, "engine", {}))
    keep(broker, row)
    turn(row)
    assert [(body["max_tokens"], body["path"]) for body in asked] == [(1, "/v1/chat/completions")]
    assert live(row)["ok_at"] == pytest.approx(time.time(), abs=30)
    turn(row)
    assert len(asked) == 1, "that is proof enough for a while"


def test_nobody_asks_twice_at_once(row: Deployment, broker: redis.Redis, asked: list[dict]) -> None:
    keep(broker, row)
    watch.look(time.time())
    noted = live(row)
    watch.look(time.time())
    assert live(row) == noted
    live_probe.ask_run(str(row.run_id))
    live_probe.ask_run(str(row.run_id))
    assert len(asked) == 1


def test_real_answers_are_proof_and_spare_the_question(row: Deployment, broker: redis.Redis, asked: list) -> None:
    keep(broker, row, done=lambda age: 1000 - age, http_ok=lambda age: 1000 - age)
    turn(row)
    assert asked == []


def test_it_can_be_switched_off(row: Deployment, broker: redis.Redis, asked: list, settings: Any) -> None:
    settings.BERTH_LIVE_PROBE_S = 0
    turn(row)
    assert asked == []


@pytest.mark.parametrize(
    ("answer", "misses"),
    [
        (Answer(0, "timeout", 30_000.0), 1),
        (Answer(500, "x", 5.0, "engine", {}), 1),
        (Answer(502, "x", 5.0, "panel", {"berth": {"who": "engine"}}), 1),
        (Answer(400, "x", 5.0, "engine", {}), 0),
        (Answer(502, "x", 5.0, "panel", {"berth": {"who": "host"}}), 0),
        (Answer(503, "x", 5.0, "panel", {"berth": {"who": "panel"}}), 0),
        (Answer(0, "unreachable", 5.0), 0),
    ],
    ids=["late", "its error", "broke off", "its refusal", "host's door", "panel", "no web"],
)
def test_what_counts_as_no_answer(
    row: Deployment, broker: redis.Redis, asked: list, answer: Answer, misses: int
) -> None:
    answer_is(answer)
    keep(broker, row)
    turn(row)
    assert len(asked) == 1 and live(row).get("misses", 0) == misses


def silence(row: Deployment, *, misses: int = 3, since: float = 800.0) -> None:
    """As if it had given no answer for so long."""
    now = time.time()
    Run.objects.filter(pk=row.run_id).update(
        live={"asked_at": now - 12, "done_at": now - 5, "failing_since": now - since, "misses": misses}
    )


def test_an_engine_that_hangs_is_said_and_then_ended(row: Deployment, broker: redis.Redis) -> None:
    keep(broker, row, 20, running=1)
    silence(row, misses=2, since=100)
    watch.look(time.time())
    assert found(row) == [], "on a CPU one round may take minutes"
    silence(row, misses=3, since=400)
    watch.look(time.time())
    assert [(one["code"], one["level"]) for one in found(row)] == [("serve.silent", "bad")]
    assert "hung_at" not in live(row)
    silence(row)
    watch.look(time.time())
    assert live(row)["hung_at"]
    reconcile.reconcile(row.pk)
    row.refresh_from_db()
    run = Run.objects.get(pk=row.run_id)
    assert (row.state, run.reason["code"], run.reason["params"]["minutes"]) == ("stopping", "serve.hung", 13)
    assert run.job.desired == "stop"


def test_a_busy_one_is_left_in_peace_and_its_silence_forgotten(row: Deployment, broker: redis.Redis) -> None:
    keep(broker, row, 20, running=9, waiting=40, generation_tokens=lambda age: 100_000 - age)
    silence(row, misses=9)
    watch.look(time.time())
    assert "misses" not in live(row) and "hung_at" not in live(row)
    assert not [one for one in found(row) if one["code"] == "serve.silent"]


def test_a_host_that_was_lost_meanwhile_is_not_touched(row: Deployment, broker: redis.Redis) -> None:
    keep(broker, row, 20, running=1)
    silence(row)
    Run.objects.filter(pk=row.run_id).update(live={**live(row), "hung_at": time.time()})
    Host.objects.update(lost_at=timezone.now())
    reconcile.reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "lost"
    Host.objects.update(lost_at=None)
    reconcile.reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "ready", "what was noted before says nothing of now"
    assert Run.objects.get(pk=row.run_id).reason == {}


# --- pages and the API ------------------------------------------------------------------------------------------------


def browser(role: str) -> Client:
    client = Client(headers={"Sec-Fetch-Mode": "navigate", "Accept": "text/html"})
    client.force_login(User.objects.create_user(username=role, role=role))
    return client


def test_the_page_says_it_with_numbers_and_a_button(row: Deployment, broker: redis.Redis) -> None:
    keep(broker, row, kv_usage=0.97, generation_tokens=lambda age: 100_000 - 7 * age)
    watch.look(time.time())
    page = browser("operator").get(f"/deployments/{row.pk}/").content.decode()
    assert "The memory for conversations is 95 % full." in page
    assert (
        "Set aside 6 GiB of memory for conversations." in page
        and "Takes more memory." in page
        and "Change it and restart" in page
    )
    assert "97 %" in page and ">7.0<" in page
    part = browser("viewer").get(f"/deployments/{row.pk}/?part=live&look=ready").content.decode()
    assert 'id="findings"' in part and 'id="now"' in part and part.count("hx-swap-oob") >= 2
    assert "Change it and restart" not in part, "who may not edit is shown what would help, without the button"
    assert "Set aside 6 GiB of memory for conversations." in part
    listed = browser("admin").get("/").content.decode()
    assert f'id="mark-{row.pk}"' in listed


def test_a_quiet_page_shows_no_finding_and_without_numbers_no_empty_box(row: Deployment) -> None:
    page = browser("viewer").get(f"/deployments/{row.pk}/").content.decode()
    assert "serve-" not in page
    assert 'id="now"' in page and 'aria-labelledby="now-h" hidden' in page


def test_each_change_that_would_start_has_a_button_and_one_is_made(row: Deployment, broker: redis.Redis) -> None:
    keep(broker, row, running=8, preemptions=lambda age: 100 - age // 60)
    watch.look(time.time())
    (one,) = found(row)
    assert (one["code"], one["fix"]["patch"]) == ("serve.preempting", {"kv_cache_gib": 6})
    second = next(each for each in one["more"] if each["kind"] == "patch")
    assert second["patch"]["options"]["max_num_seqs"] == 6 and any(each["good"] for each in second["effects"])
    operator = browser("operator")
    page = operator.get(f"/deployments/{row.pk}/").content.decode()
    assert page.count("Change it and restart: ") == 2
    assert "Answer at most 6 requests at the same time." in page and "Answers stay as exact as now." in page
    where = f"/deployments/{row.pk}/findings/serve.preempting/apply"
    assert operator.post(where, {"revision": "1", "fix": "0" * 12}).status_code == 409
    assert operator.post(where, {"revision": "1", "fix": fixes.Fix.of_kept(second).key}).status_code == 302
    row.refresh_from_db()
    assert row.revision.spec["options"]["max_num_seqs"] == 6 and row.revision.spec["kv_cache_gib"] == 4


@pytest.mark.parametrize("values", [{"health": 503}, {"health": None, "problem": "timeout"}], ids=["dead", "mute"])
def test_what_only_a_restart_helps_has_its_button(row: Deployment, broker: redis.Redis, values: dict[str, Any]) -> None:
    keep(broker, row, **values)
    watch.look(time.time())
    (one,) = found(row)
    assert one["fix"] is None and [each["kind"] for each in one["more"]] == ["again"]
    where = f"/deployments/{row.pk}/restart"
    page = browser("operator").get(f"/deployments/{row.pk}/").content.decode()
    part = page[page.index('id="findings"') : page.index('id="now"')]
    assert "Restart it." in part and f'action="{where}"' in part
    page = browser("viewer").get(f"/deployments/{row.pk}/").content.decode()
    assert "Restart it." in page and where not in page


def test_a_queue_without_a_reason_leads_to_a_second_deployment(row: Deployment, broker: redis.Redis) -> None:
    keep(broker, row, waiting=4)
    watch.look(time.time())
    page = browser("operator").get(f"/deployments/{row.pk}/").content.decode()
    assert "Deploy the same model a second time." in page
    assert f'href="/deployments/new?artifact={row.revision.spec["artifact_id"]}"' in page


def test_what_the_log_says_has_the_fixes_of_its_class(row: Deployment, broker: redis.Redis) -> None:
    keep(broker, row)
    line = BY_CODE["tok.chat_template_runtime"].examples[0]
    minute = int(time.time() // 60)
    classes = {"tok.chat_template_runtime": {"counts": [[minute, 4]], "line": line}}
    Run.objects.filter(pk=row.run_id).update(parser={"classes": classes})
    watch.look(time.time())
    (one,) = found(row)
    assert (one["code"], one["params"]["cause"]) == ("serve.logged", "tok.chat_template_runtime")
    assert "chat_template" in one["fix"]["patch"]["options"]
    assert "model" in [each["kind"] for each in one["more"]]
    told = browser("operator").get(f"/deployments/{row.pk}/").content.decode()
    assert "Let it chat by a plain template" in told and 'href="/models/"' in told
    out = deployment_out(queries.one(row.pk), "m", None)["findings"][0]
    assert out["fixes"][0]["kind"] == "patch" and out["fixes"][0]["spec"] == out["fix"]["spec"]


def test_the_change_is_made_once_and_recorded(row: Deployment, broker: redis.Redis) -> None:
    keep(broker, row, kv_usage=0.97)
    watch.look(time.time())
    where = f"/deployments/{row.pk}/findings/serve.kv_full/apply"
    assert browser("viewer").post(where, {"revision": "1"}).status_code == 403
    operator = browser("operator")
    assert operator.post(where, {"revision": "7"}).status_code == 409
    assert operator.post(where.replace("kv_full", "nothing"), {"revision": "1"}).status_code == 409
    assert operator.post(where, {"revision": "1"}).status_code == 302
    row.refresh_from_db()
    assert (row.revision.number, row.revision.spec["kv_cache_gib"]) == (2, 6)
    event = Event.objects.get(verb="deployment.edited", outcome="done")
    assert (event.actor, event.after) == ("operator", {"kv_cache_gib": 6})
    assert operator.post(where, {"revision": "1"}).status_code == 409, "the settings have moved on"
