"""The check before a start on rows: who is asked and when, what is kept, what a start makes of it, the page, the API."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from deployments import preflight, services
from deployments.checklist import engine, failed_here, forget
from deployments.checklist.look import CheckList, look
from deployments.models import Deployment, Run
from deployments.reconcile import reconcile
from deployments.spec import DeploymentSpec
from models_catalog.models import Artifact, Copy
from panel.accounts.models import User
from panel.accounts.services import create_token
from panel.audit.models import Event
from panel.fleet import wire
from panel.fleet.models import Gpu, Host, Job, JobLog, Reservation, Runtime
from tests.deployments import builders
from tests.deployments.pure.plans import CARDS, model

pytestmark = pytest.mark.django_db
PASSED = {"verdict": "passed", "output": "", "seconds": 8.4,
          "host": {"shm_mib": 64_000, "open_files": 1 << 20, "disks": {"log": 50_000, "cache": 50_000}}}  # fmt: skip
TOO_LONG = (
    "INFO 11-30 14:02:09 [api_server.py:1894] vLLM API server version 0.32.0\n"
    "INFO 11-30 14:02:09 [utils.py:253] non-default args: {'model': '/models/tiny', 'max_model_len': 999999}\n"
    "Traceback (most recent call last):\n"
    '  File "/opt/vllm/config/model.py", line 99, in create_engine_config\n'
    "ValueError: User-specified max_model_len (999999) is greater than the derived max_model_len "
    "(max_position_embeddings=2048 or model_max_length=None in model's config.json).\n"
)
REFUSED = {**PASSED, "verdict": "refused", "exit_code": 1, "output": TOO_LONG}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def copy(db: None) -> Copy:
    return builders.make_copy(builders.make_host())


@pytest.fixture
def operator(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_user(username="mina", role="operator"))
    return client


def spec(copy: Copy, **values: Any) -> DeploymentSpec:
    return DeploymentSpec(artifact_id=copy.artifact_id, **values)


def answer(item: dict[str, Any] | None = None, *, code: str = "", state: str = "ended") -> Job:
    """The host's answer to the newest check."""
    job = Job.objects.filter(kind="check").latest("created_at")
    job.state, job.open, job.ended_at = state, False, timezone.now()
    job.status = {"state": state, "refusal": {"code": code, "params": {}} if code else None, "started_at": 1.0}
    job.result = {"items": [item], "refusal": None} if item else None
    job.save()
    return job


def part(found: CheckList, name: str) -> Any:
    return next(one for one in found.parts if one.name == name)


def codes(found: CheckList) -> list[str]:
    """What was found, but for what is so of the small model of these tests on any CPU: there is no estimate of it."""
    found_codes = [finding.code for one in found.parts for finding in one.findings]
    return [code for code in found_codes if code not in ("check.no_estimate", "cpu.for_tests")]


# --- asking the engine ------------------------------------------------------------------------------------------------


def test_the_engine_is_shown_the_command_of_a_start_once(copy: Copy) -> None:
    first = look(spec(copy), name="soon")
    assert (first.verdict, part(first, "engine").state, part(first, "host").state) == ("running",) * 3
    order = wire.CheckTask.model_validate(Job.objects.get().order)
    launch = preflight.check(spec(copy), name="soon").launch
    assert launch is not None and (order.argv, order.env) == (launch.argv, launch.env)
    assert Job.objects.get().secrets is None and "VLLM_API_KEY" not in order.env, "no key is needed for that"
    assert Event.objects.filter(verb="deployment.checked").count() == 1
    for name in ("soon", "another-name"):
        assert look(spec(copy), name=name).verdict == "running" and Job.objects.count() == 1
    answer(PASSED)
    found = look(spec(copy), name="soon")
    assert (found.verdict, part(found, "engine").seconds, codes(found)) == ("passed", 8.4, [])
    assert Job.objects.count() == 1, "the answer is known"


def test_another_command_engine_or_model_is_asked_anew(copy: Copy) -> None:
    look(spec(copy), name="m")
    answer(PASSED)
    assert look(spec(copy, options={"seed": 1}), name="m").verdict == "running"
    answer(PASSED)
    Artifact.objects.update(fingerprint="other files")
    assert look(spec(copy), name="m").verdict == "running"
    answer(PASSED)
    Runtime.objects.update(version="0.33.0", updated_at=timezone.now())
    assert look(spec(copy), name="m").verdict == "running"
    answer(PASSED)
    assert look(spec(copy, kv_cache_gib=3), name="m").verdict == "passed", "how much memory is the plan's matter"
    assert look(spec(copy), name="m", again=True).verdict == "running"


def test_the_order_of_settings_is_nothing_to_it(copy: Copy) -> None:
    """The database keeps them in an order of its own."""
    look(spec(copy, options={"seed": 1, "max_num_seqs": 4, "hf_overrides": {"b": 1, "a": 2}}), name="m")
    look(spec(copy, options={"max_num_seqs": 4, "hf_overrides": {"a": 2, "b": 1}, "seed": 1}), name="m")
    assert Job.objects.count() == 1
    look(spec(copy, options={"max_num_seqs": 1, "seed": 4}), name="m")
    assert Job.objects.count() == 2


def test_a_refusal_is_said_in_plain_words_with_its_fix(copy: Copy) -> None:
    look(spec(copy, options={"max_model_len": 4096}), name="m")
    answer(REFUSED)
    found = look(spec(copy, options={"max_model_len": 4096}), name="m")
    (finding,) = part(found, "engine").findings
    assert (found.verdict, finding.level, finding.params["cause"]) == ("refused", "error", "config.len_gt_derived")
    assert "User-specified max_model_len (999999)" in finding.params["root"]
    assert finding.fixes[0].patch == {"options": {"max_model_len": 2048}}


@pytest.mark.parametrize(
    ("item", "code", "state", "wanted"),
    [
        (None, "kind_unknown", "refused", "check.old_agent"),
        (None, "runtime_unknown", "refused", "check.not_made"),
        ({**PASSED, "verdict": "unknown"}, "", "ended", "check.cannot_be_asked"),
        ({"verdict": 7, "host": [], "seconds": "x", "output": None}, "", "ended", "check.cannot_be_asked"),
    ],
    ids=["old-agent", "not-made", "old-engine", "nonsense"],
)
def test_an_engine_that_cannot_be_asked_holds_up_nothing(
    copy: Copy, item: dict[str, Any] | None, code: str, state: str, wanted: str
) -> None:
    look(spec(copy), name="m")
    answer(item, code=code, state=state)
    found = look(spec(copy), name="m")
    assert (found.verdict, part(found, "engine").state, codes(found)) == ("passed", "skipped", [wanted])
    row = builders.make_deployment(copy, desired="running")
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "starting"


def test_an_unknown_message_is_shown_as_it_is(copy: Copy) -> None:
    look(spec(copy), name="m")
    answer({**PASSED, "verdict": "refused", "exit_code": 1, "output": "Traceback (most recent call last):\n"
            '  File "/opt/x.py", line 1\nFrobnicationError: the wibble is not wobbled, --api-key sk-0123456789abcdef0123\n'})  # fmt: skip
    (finding,) = part(look(spec(copy), name="m"), "engine").findings
    assert (finding.level, finding.code) == ("error", "check.refused_unknown")
    assert "the wibble is not wobbled" in finding.params["root"]
    assert "0123456789abcdef" not in finding.params["root"], "as in logs"
    assert "0123456789abcdef" not in finding.params["root"], "as in logs"


def test_one_that_does_not_answer_is_asked_again_later(copy: Copy) -> None:
    look(spec(copy), name="m")
    Job.objects.update(created_at=timezone.now() - timedelta(minutes=10))
    found = look(spec(copy), name="m")
    assert found.verdict == "running" and Job.objects.count() == 2, "the first one is given up"
    found = look(spec(copy), name="m", ask=False)
    assert Job.objects.count() == 2


def test_a_host_has_only_a_few_in_hand(copy: Copy) -> None:
    for seed in range(4):
        look(spec(copy, options={"seed": seed}), name="m")
    found = look(spec(copy, options={"seed": 99}), name="m")
    assert codes(found) == ["check.host_busy"] and Job.objects.count() == 4


def test_what_cannot_be_placed_is_not_asked(copy: Copy) -> None:
    found = look(spec(copy, kv_cache_gib=4000), name="m")
    assert found.verdict == "refused" and part(found, "engine").state == "skipped" and not Job.objects.exists()
    assert codes(found) == ["place.none"]
    wrong = look(spec(copy, options={"max_modl_len": 5}), name="m")
    assert codes(wrong) == ["flag.unknown"] and not Job.objects.exists()


def test_the_name_at_the_door(copy: Copy) -> None:
    row = builders.make_deployment(copy, "taken")
    assert "check.name_taken" in codes(look(spec(copy), name="taken", ask=False))
    assert "check.name_taken" not in codes(look(spec(copy), name="taken", ask=False, own=row.pk))


# --- what a start makes of it -----------------------------------------------------------------------------------------


def test_a_start_that_the_engine_refused_takes_nothing_and_says_why(copy: Copy) -> None:
    row = builders.make_deployment(copy, desired="running")
    look(spec(copy), name=row.name)
    answer(REFUSED)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.reason["params"]["cause"]) == ("failed", "config.len_gt_derived")
    run = Run.objects.get()
    assert (run.outcome, run.reason, run.job_id, run.host_name) == ("failed", row.reason, None, "quay")
    assert run.diagnosis["class"] == "config.len_gt_derived" and "User-specified" in run.error_block["lines"][-1]
    assert not Job.objects.filter(kind="engine").exists() and not Reservation.objects.exists()
    Job.objects.filter(kind="check").update(created_at=timezone.now() - timedelta(days=2))
    Deployment.objects.filter(pk=row.pk).update(state="queued", next_attempt_at=None)
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "starting", "an old refusal is not held against it"


def test_who_starts_it_once_more_may_have_mended_it_on_the_host(copy: Copy) -> None:
    row = builders.make_deployment(copy, desired="running")
    look(spec(copy), name=row.name)
    answer(REFUSED)
    reconcile(row.pk)
    reconcile(row.pk)
    row.refresh_from_db()
    assert (row.state, row.reason["code"]) == ("failed", "check.refused"), "nothing starts it again by itself"
    services.start(row, actor=None)
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "starting", "the engine says itself what it thinks of it now"
    Deployment.objects.filter(pk=row.pk).update(state="queued", next_attempt_at=None)
    look(spec(copy), name=row.name, again=True)
    answer(REFUSED)
    other = builders.make_deployment(copy, "other", desired="running")
    reconcile(other.pk)
    other.refresh_from_db()
    assert other.state == "failed", "what was told to one is still told to the next"


@pytest.mark.parametrize("item", [None, PASSED], ids=["nobody-asked", "passed"])
def test_a_start_never_waits_for_a_check(copy: Copy, item: dict[str, Any] | None) -> None:
    row = builders.make_deployment(copy, desired="running")
    if item:
        look(spec(copy), name=row.name)
        answer(item)
    reconcile(row.pk)
    row.refresh_from_db()
    assert row.state == "starting" and Job.objects.filter(kind="engine").count() == 1
    assert Job.objects.filter(kind="check").count() == int(item is not None)


def test_what_the_check_passed_is_never_refused_by_the_start_in_the_same_state(copy: Copy) -> None:
    """Random fleets and settings: where the list has no error, the start finds a place, and where it has, none."""
    source, passed = random.Random(20261201), 0
    home = 0
    for number in range(60):
        if not number or source.random() < 0.6:  # else on what the starts before have left of the same host
            home = number
            fleet(source, number)
        found_copy = Copy.objects.filter(host__name=f"h{home}").get()
        asked = DeploymentSpec(artifact_id=found_copy.artifact_id, **wish(source))
        found = look(asked, name=f"d{number}", ask=False)
        row = builders.make_deployment(found_copy, f"d{number}", desired="running")
        row.revision.spec = asked.model_dump(mode="json")
        row.revision.save()
        reconcile(row.pk)
        row.refresh_from_db()
        fine = found.verdict in ("passed", "warnings")
        assert (row.state == "starting") == fine, (asked, codes(found), row.state, row.reason)
        if fine:
            placed = found.check.placement
            assert placed is not None and row.run.placement["reserve"] == [list(share) for share in placed.reserve]
            assert row.run.placement["gpu_uuids"] == list(placed.gpu_uuids)
        passed += fine
    assert 10 < passed < 55, "both happen"


def fleet(source: random.Random, number: int) -> None:
    """A host with a model of its own, some cards, and strangers on them."""
    Host.objects.update(lost_at=timezone.now())
    host = builders.make_host(f"h{number}", device=source.choice(["cuda", "cuda", "cpu"]))
    for index in range(source.choice([0, 1, 2, 4])):
        name, total, capability = CARDS[source.choice(list(CARDS))]
        Gpu.objects.create(host=host, uuid=f"GPU-{number}-{index}", index=index, name=name, total_mib=total,
                           used_mib=source.choice([300, 300, total // 3]),
                           measured={"compute_capability": f"{capability[0]}.{capability[1]}"})  # fmt: skip
    made = builders.make_copy(host, f"Qwen3-8B-{number}")
    Artifact.objects.filter(pk=made.artifact_id).update(facts=model(), size_bytes=16 << 30)


def wish(source: random.Random) -> dict[str, Any]:
    options = {
        name: value
        for name, value in {
            "max_model_len": source.choice([2048, 8192, 40_960, 200_000]),
            "gpu_memory_utilization": source.choice([0.5, 0.9, 0.97]),
            "kv_cache_dtype": source.choice(["fp8", "fp9"]),
            "max_num_seqs": source.choice([8, 256, 0]),
        }.items()
        if source.random() < 0.35
    }
    people = source.choice([None, None, 1, 8])
    return {"options": options, "gpu_count": source.choice([1, 1, 2, 3]), "people": people}


# --- page and API -----------------------------------------------------------------------------------------------------


def form(copy: Copy, **more: Any) -> dict[str, Any]:
    return {"artifact": copy.artifact_id, "name": "soon", "device": "auto", "task": "generate",
            "restart": "on_failure", "priority": "quality", **more}  # fmt: skip


def test_the_card_asks_for_itself_until_the_engine_has_answered(operator: Client, copy: Copy) -> None:
    where = reverse("deployment-check")
    page = operator.post(where, form(copy)).content.decode()
    assert "every 1s" in page and "The engine is being asked" in page and "Start anyway" not in page
    answer(PASSED)
    page = operator.post(where, form(copy)).content.decode()
    assert "every 1s" not in page and "Nothing speaks against a start." in page
    assert operator.post(where, form(copy, artifact="")).content.decode().count("Not complete yet") == 1


def test_a_fix_is_put_into_the_fields(operator: Client, copy: Copy) -> None:
    page = operator.post(reverse("deployment-check"), form(copy, extra_args="--max-modl-len 4096 --seed 1"))
    (fix,) = [f for p in page.context["parts"] for one in p["findings"] for f in one["fixes"]][:1]
    assert json.loads(fix["patch"]) == {"extra_args": "--seed 1", "max_model_len": "4096"}
    assert "Write max_model_len instead of max_modl_len." in page.content.decode()


def test_start_anyway_is_for_warnings_and_is_recorded(operator: Client, copy: Copy) -> None:
    Artifact.objects.update(facts={**copy.artifact.facts, "chat_template": False})
    where = reverse("deployment-check")
    operator.post(where, form(copy))
    answer(PASSED)
    page = operator.post(where, form(copy)).content.decode()
    assert "Start anyway" in page and "does not say how a chat is written down" in page
    assert operator.post(reverse("deployment-new"), form(copy, act="anyway")).status_code == 302
    event = Event.objects.get(verb="deployment.started_despite")
    assert "check.no_chat_template" in event.facts["warnings"]
    assert Deployment.objects.get().desired == "running"


def test_start_anyway_does_not_start_what_would_fail(operator: Client, copy: Copy) -> None:
    operator.post(reverse("deployment-check"), form(copy))
    answer(REFUSED)
    again = operator.post(reverse("deployment-new"), form(copy, act="anyway"))
    assert again.status_code == 422 and "It would not start so." in again.content.decode()
    assert not Deployment.objects.exists()


def test_without_scripts_the_button_shows_the_page_with_the_list(operator: Client, copy: Copy) -> None:
    page = operator.post(reverse("deployment-new"), form(copy, act="check")).content.decode()
    assert 'id="check"' in page and "The engine is being asked" in page and "<html" in page
    assert not Deployment.objects.exists()


def test_the_api_says_the_same(copy: Copy) -> None:
    from tests.api.conftest import person, program

    client = program(person("operator"), "api:write")
    body = {"name": "soon", "spec": {"artifact_id": copy.artifact_id, "options": {"max_model_len": 4096}}}

    def ask(**more: Any) -> dict[str, Any]:
        got = client.post("/api/v1/deployments/check", json.dumps({**body, **more}), content_type="application/json")
        assert got.status_code == 200, got.content
        return dict(got.json())

    assert ask()["verdict"] == "running"
    answer(REFUSED)
    told = ask()
    assert told["verdict"] == "refused" and told["plan"]["ok"]
    (finding,) = next(p for p in told["parts"] if p["name"] == "engine")["findings"]
    assert finding["level"] == "error" and finding["code"] == "config.len_gt_derived" and finding["message"]
    assert "999999" in finding["proof"] and finding["fixes"][0]["spec"] == {"options": {"max_model_len": 2048}}
    assert ask(again=True)["verdict"] == "running"


def test_a_look_costs_the_same_however_many_checks_there_were(copy: Copy) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as caught:
            look(spec(copy), name="m", ask=False)
        return len(caught)

    look(spec(copy), name="m")
    answer(PASSED)
    one = cost()
    for seed in range(6):
        look(spec(copy, options={"seed": seed}), name="m")
        answer(PASSED)
    assert cost() == one


def test_two_people_who_ask_the_same_share_the_answer(copy: Copy) -> None:
    """Also where neither saw the other's order: the second finds it when the host is its."""
    check = preflight.check(spec(copy), name="m")
    first, second = (engine.order(check, name="m", actor=None) for _ in range(2))
    assert first is not None and first == second and Job.objects.count() == 1
    assert Event.objects.filter(verb="deployment.checked").count() == 1
    answer(PASSED)
    assert engine.order(check, name="m", actor=None) != first, "asked anew, since that one has its answer"


def test_verdicts_that_count_no_more_are_forgotten(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    look(spec(copy), name="m")
    old = answer(PASSED)
    look(spec(copy, options={"seed": 1}), name="m")
    new = Job.objects.exclude(pk=old.pk).get()
    Job.objects.update(created_at=timezone.now() - timedelta(days=8))  # the second is still the host's work
    run = builders.make_run(builders.make_deployment(copy), copy, job_state="ended", ended_at=timezone.now())
    Job.objects.filter(pk=run.job_id).update(created_at=timezone.now() - timedelta(days=400))
    told = answer_of_a_start(copy)
    monkeypatch.setattr(forget, "AT_ONCE", 1)
    assert forget.old_checks() and not forget.old_checks()
    assert set(Job.objects.values_list("pk", flat=True)) == {new.pk, run.job_id, told.pk}
    assert not JobLog.objects.filter(job=old.pk).exists()


def answer_of_a_start(copy: Copy) -> Job:
    """An old check that a start ended by: its log is that of the start."""
    look(spec(copy, options={"seed": 2}), name="m")
    job = answer(REFUSED)
    Job.objects.filter(pk=job.pk).update(created_at=timezone.now() - timedelta(days=8))
    Run.objects.update(placement={"check": {"job": str(job.pk), "over": "refused"}})
    return job


def test_the_api_checks_settings_for_a_deployment_that_is_there(copy: Copy) -> None:
    mina = User.objects.create_user(username="mina", role="operator")
    _row, plain = create_token(mina, "t", actor=mina, scope="api:write")
    program = Client(headers={"Authorization": f"Bearer {plain}"})

    def ask(number: int) -> int:
        body = {"name": "m", "spec": {"artifact_id": copy.artifact_id}, "deployment_id": number}
        return program.post("/api/v1/deployments/check", body, content_type="application/json").status_code

    row = builders.make_deployment(copy)
    assert (ask(row.pk), ask(row.pk + 1)) == (200, 404)


# --- a start that failed with the very same ---------------------------------------------------------------------------

STAYS = {"class": "config.len_gt_derived", "offers": []}
ENDED: dict[str, Any] = {"outcome": "failed", "diagnosis": STAYS, "job_state": "ended", "exit_code": 1}


def began(copy: Copy, row: Deployment, settings: DeploymentSpec, **values: Any) -> Run:
    """A start as the loop makes it, and what became of it."""
    check = preflight.check(settings, name=row.name)
    placement = check.facts() | {failed_here.KEY: engine.key_of(check)} | values.pop("placed", {})
    run = builders.make_run(row, copy, placement=placement, ended_at=timezone.now(), **values)
    Run.objects.filter(pk=run.pk).update(created_at=timezone.now())
    return run


def failed_before(copy: Copy, settings: DeploymentSpec, **how: Any) -> Any:
    found = part(look(settings, name="m", **how), "engine").findings
    return next((finding for finding in found if finding.code == "check.failed_here"), None)


def test_a_start_of_the_very_same_that_failed_here_is_told(copy: Copy, operator: Client) -> None:
    row = builders.make_deployment(copy)
    settings = spec(copy, options={"max_model_len": 4096})
    run = began(copy, row, settings, **ENDED)
    found = failed_before(copy, settings)
    assert found.level == "warning" and found.params["run"] == str(run.pk)
    answer(PASSED)
    assert look(settings, name="m").verdict == "warnings", "the engine accepts it, and it failed all the same"
    page = operator.post(
        reverse("deployment-check"), {"artifact": copy.artifact_id, "device": "auto", "task": "generate",
                                      "restart": "never", "max_model_len": "4096"},
    )  # fmt: skip
    assert "These settings failed here before" in page.content.decode()
    assert reverse("run", args=[run.pk]) in page.content.decode() and "start 1 of team-chat" in page.content.decode()


@pytest.mark.parametrize(
    "other",
    [
        {"diagnosis": {"class": "mem.gpu_busy"}},  # by itself it may go well the next time
        {"diagnosis": {}},
        {"outcome": "stopped"},
        {"placed": {failed_here.KEY: "something else"}},
        {"placed": {"kv_cache_gib": 1}},  # it had less memory than this one would have
    ],
    ids=["passing", "not-recognised", "stopped", "other-settings", "less-memory"],
)
def test_another_end_or_another_start_says_nothing(copy: Copy, other: dict[str, Any]) -> None:
    settings = spec(copy, options={"max_model_len": 4096})
    began(copy, builders.make_deployment(copy), settings, **{**ENDED, **other})
    assert failed_before(copy, settings) is None


def test_ready_since_or_long_ago_it_is_no_news(copy: Copy) -> None:
    settings = spec(copy, options={"max_model_len": 4096})
    row = builders.make_deployment(copy)
    run = began(copy, row, settings, **ENDED)
    assert failed_before(copy, settings) is not None
    good = began(copy, row, settings, outcome="stopped", ready_at=timezone.now(), job_state="ended")
    assert failed_before(copy, settings) is None
    Run.objects.filter(pk=good.pk).update(ready_at=None)
    Run.objects.filter(pk=run.pk).update(created_at=timezone.now() - timedelta(days=8))
    assert failed_before(copy, settings) is None


def test_it_costs_one_query(copy: Copy) -> None:
    settings = spec(copy, options={"max_model_len": 4096})
    check = preflight.check(settings, name="m")
    for number in range(3):
        began(copy, builders.make_deployment(copy, f"d{number}"), settings, **{**ENDED, "outcome": "stopped"})
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert failed_here.last(check) is None
    assert len(asked) == 1


def test_the_loop_names_what_it_starts_as_the_check_does(copy: Copy) -> None:
    row = builders.make_deployment(copy, state="queued", desired="running")
    reconcile(row.pk)
    check = preflight.check(spec(copy, device="auto"), name="any")
    assert Run.objects.get().placement[failed_here.KEY] == engine.key_of(check)
