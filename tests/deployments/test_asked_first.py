"""A start asks its engine first, when nobody has yet: what ends it, what lets it go on, and that nothing waits for ever."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from deployments import applying, events, queries, remedies, services
from deployments.diagnosis.rules import BY_CODE
from deployments.models import Deployment, Failure, Run
from deployments.pages.run import steps
from deployments.reconcile import reconcile
from deployments.wording import words
from models_catalog.models import Copy
from panel.accounts.models import User
from panel.audit.models import Event
from panel.fleet import logstore
from panel.fleet.models import Host, Job, Reservation
from tests.deployments import builders
from tests.deployments.test_check import PASSED, REFUSED, TOO_LONG, answer, look, spec

pytestmark = pytest.mark.django_db
OPTIONS = {"max_num_seqs": 4}


@pytest.fixture(autouse=True)
def _asks(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.BERTH_CHECK_BEFORE_START = True
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.queue.send", lambda task, *args: True)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def copy(db: None) -> Copy:
    return builders.make_copy(builders.make_host())


@pytest.fixture
def row(copy: Copy) -> Deployment:
    return wanted(copy)


@pytest.fixture
def operator(db: None) -> Client:
    client = Client()
    client.force_login(User.objects.create_user(username="mina", role="operator"))
    return client


def wanted(copy: Copy, name: str = "team-chat", options: dict[str, Any] = OPTIONS) -> Deployment:
    row = builders.make_deployment(copy, name, desired="running", wanted_by="maria")
    row.revision.spec = spec(copy, options=options).model_dump(mode="json")
    row.revision.save()
    return row


def looked_at(row: Deployment) -> Deployment:
    reconcile(row.pk)
    return Deployment.objects.select_related("run__job", "run__host", "run__revision", "revision").get(pk=row.pk)


def checks() -> list[Job]:
    return list(Job.objects.filter(kind="check").order_by("created_at"))


def names(run: Run, *, failed: bool = False) -> dict[str, str]:
    return {step.name: step.kind for step in steps(run, {}, failed=failed)}


# --- the way up -------------------------------------------------------------------------------------------------------


def test_it_waits_for_the_engines_word_and_goes_on(row: Deployment) -> None:
    row = looked_at(row)
    assert (row.state, row.reason["code"], row.run.job) == ("preparing", "preparing.check", None)
    said = words(row.reason)
    assert said is not None and "%(" not in said.text
    (job,) = checks()
    assert job.order["argv"] == row.run.command and "VLLM_API_KEY" not in str(job.order) and job.secrets is None
    assert names(row.run)["Placed"] == "yes" and names(row.run)["The engine is asked about the settings"] == "now"
    assert looked_at(row).state == "preparing" and len(checks()) == 1, "it is asked once"
    assert not Event.objects.filter(verb="deployment.checked").exists(), "nobody pressed a button"
    answer(PASSED)
    row = looked_at(row)
    assert (row.state, row.reason, row.run.job_id) == ("starting", {}, row.run_id)
    assert names(row.run)["Settings checked by the engine"] == "yes"
    assert row.due_at <= timezone.now() + timedelta(seconds=6)


def test_what_it_accepted_once_is_not_asked_again(copy: Copy, row: Deployment) -> None:
    looked_at(row)
    answer(PASSED)
    looked_at(row)
    other = looked_at(wanted(copy, "other"))
    assert other.state == "starting" and len(checks()) == 1 and "check" not in other.run.placement


def test_who_pressed_check_asked_for_the_start_too(copy: Copy, row: Deployment) -> None:
    look(spec(copy, options=OPTIONS), name=row.name)
    row = looked_at(row)
    assert row.state == "preparing" and len(checks()) == 1, "the question is shared"
    services.stop(row, actor=None)
    assert looked_at(row).state == "stopped" and checks()[0].desired == "run", "and not taken from who asked it"


def test_the_answer_wakes_it(row: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    row = looked_at(row)
    woken: list[int] = []
    monkeypatch.setattr(events, "nudge", woken.append)
    job = answer(PASSED)
    events.on_job_changed(None, job_id=job.pk, kind="check", state="ended", log_grew=False)
    assert woken == [row.pk]


@pytest.mark.parametrize(
    ("item", "code", "state"),
    [
        (None, "kind_unknown", "refused"),
        (None, "runtime_unknown", "refused"),
        ({**PASSED, "verdict": "unknown"}, "", "ended"),
        ({"verdict": 7, "host": [], "output": None}, "", "ended"),
        ({**PASSED, "verdict": "refused", "exit_code": 1, "output": "FrobnicationError: the wibble"}, "", "ended"),
        ({**PASSED, "verdict": "refused", "signal": 9, "output": ""}, "", "ended"),
    ],
    ids=["old-agent", "not-made", "old-engine", "nonsense", "unknown-words", "killed"],
)
def test_only_a_sure_refusal_ends_it(row: Deployment, item: dict[str, Any] | None, code: str, state: str) -> None:
    looked_at(row)
    answer(item, code=code, state=state)
    row = looked_at(row)
    assert row.state == "starting", "the start tells the truth"
    assert names(row.run)["Settings checked by the engine"] == "over"


def test_an_engine_that_cannot_be_asked_is_not_asked_at_each_start(copy: Copy, row: Deployment) -> None:
    looked_at(row)
    answer(None, code="kind_unknown", state="refused")
    looked_at(row)
    assert looked_at(wanted(copy, "other")).state == "starting" and len(checks()) == 1
    Job.objects.update(created_at=timezone.now() - timedelta(days=2))
    assert looked_at(wanted(copy, "third")).state == "preparing" and len(checks()) == 2, "a newer agent may be there"


def test_nothing_waits_longer_than_a_minute(row: Deployment) -> None:
    row = looked_at(row)
    found = {**row.run.placement, "check": {**row.run.placement["check"], "since": timezone.now().timestamp() - 61}}
    Run.objects.update(placement=found)
    row = looked_at(row)
    assert row.state == "starting" and names(row.run)["Settings checked by the engine"] == "over"
    (job,) = checks()
    assert job.desired == "run", "the next start knows the answer"


def test_a_host_without_contact_is_not_waited_for(row: Deployment) -> None:
    looked_at(row)
    Host.objects.update(lost_at=timezone.now())
    assert looked_at(row).state in ("starting", "lost")


def test_a_host_with_enough_in_hand_is_not_waited_for(copy: Copy, row: Deployment) -> None:
    for seed in range(4):
        look(spec(copy, options={"seed": seed}), name="m")
    assert looked_at(row).state == "starting" and len(checks()) == 4


def test_a_clock_that_was_put_back_holds_up_nothing(row: Deployment) -> None:
    row = looked_at(row)
    found = {**row.run.placement, "check": {**row.run.placement["check"], "since": timezone.now().timestamp() + 9_000}}
    Run.objects.update(placement=found)
    assert looked_at(row).state == "preparing"
    Job.objects.update(created_at=timezone.now() - timedelta(minutes=10))
    assert looked_at(row).state == "starting", "an answer that is lost is not waited for"


def test_it_can_be_switched_off(row: Deployment, settings: Any) -> None:
    settings.BERTH_CHECK_BEFORE_START = False
    assert looked_at(row).state == "starting" and not checks()


@pytest.mark.parametrize("why", ["restart_policy", "host_restarted"])
def test_what_berth_starts_again_by_itself_is_not_asked_about(row: Deployment, why: str) -> None:
    row = looked_at(row)
    answer(PASSED)
    row = looked_at(row)
    Job.objects.filter(kind="check").delete()
    reason = {"code": why, "params": {}} if why == "host_restarted" else {}
    Run.objects.update(ended_at=timezone.now(), outcome="failed", reason=reason)
    Reservation.objects.all().delete()
    Host.objects.update(ram_reserved_mib=0)
    Deployment.objects.update(state="queued", attempts=1, next_attempt_at=None)
    row = looked_at(row)
    assert (row.state, row.run.cause, row.run.number) == ("starting", why, 2) and not checks()


# --- the way down -----------------------------------------------------------------------------------------------------


def refused(row: Deployment, log: str = "") -> Deployment:
    looked_at(row)
    job = answer(REFUSED)
    if log:
        logstore.append(job.pk, 0, log.encode())
    return looked_at(row)


def test_a_refusal_ends_it_as_a_failed_start_with_proof_and_fixes(row: Deployment) -> None:
    row = refused(row)
    run = row.run
    assert (row.state, row.reason["code"], row.reason["params"]["cause"]) == (
        "failed", "check.refused", "config.len_gt_derived",
    )  # fmt: skip
    assert (run.outcome, run.reason, run.job_id, row.next_attempt_at) == ("failed", row.reason, None, None)
    assert run.diagnosis["class"] == "config.len_gt_derived" and run.command[1] == "serve"
    assert "User-specified" in "\n".join(run.error_block["lines"]) and run.reason["params"]["confidence"] > 0.5
    assert Failure.objects.get().code == "config.len_gt_derived"
    assert not Reservation.objects.exists() and Host.objects.get().ram_reserved_mib == 0
    assert not Job.objects.filter(kind="engine").exists()
    assert Event.objects.get(verb="run.failed").target_id == str(run.pk)
    assert names(run, failed=True) == {"Placed": "yes", "Settings checked by the engine": "no"}
    said = words(row.reason)
    assert said is not None and said.text == BY_CODE["config.len_gt_derived"].title


def test_its_page_and_its_record_show_what_the_engine_said(operator: Client, row: Deployment) -> None:
    row = refused(row, log=f"$ python check_script.py\n{TOO_LONG}")
    assert row.run.error_block["root_line"] == 6 and row.run.error_block["root_at"] > 0
    for where in (reverse("deployment", args=[row.pk]), reverse("run", args=[row.run_id])):
        page = operator.get(where).content.decode()
        assert "User-specified max_model_len (999999)" in page and "Nothing was started." in page
        assert "What the engine said when it was asked" in page and "The line that proves it" in page
    log = operator.get(reverse("run-log", args=[row.run_id]), {"offset": 0})
    assert log.status_code == 200 and b"User-specified" in log.content
    assert operator.get(reverse("run-log-file", args=[row.run_id])).status_code == 200


def test_its_first_fix_starts_it_and_the_new_settings_are_asked_about(row: Deployment) -> None:
    row = refused(row)
    fixes = remedies.of(queries.one(row.pk))
    first = next(fix for fix in fixes if fix.by_click and fix.kind == "patch")
    applying.apply(queries.one(row.pk), first.key, base_number=1, actor=None)
    row = looked_at(row)
    assert (row.state, row.run.number, row.run.parent.number, len(checks())) == ("preparing", 2, 1, 2)
    assert row.revision.why["class"] == "config.len_gt_derived"


def test_the_same_once_more_is_told_by_the_start_itself(copy: Copy, row: Deployment) -> None:
    row = refused(row)
    services.start(row, actor=None)
    assert looked_at(row).state == "starting" and len(checks()) == 1, "what was mended on the host is in no key"
    other = looked_at(wanted(copy, "other"))
    assert other.state == "failed" and other.run.job is None, "what was told to one is still told to the next"


@pytest.mark.parametrize("act", ["stop", "edit"])
def test_who_changes_their_mind_waits_for_nothing(row: Deployment, act: str) -> None:
    row = looked_at(row)
    if act == "stop":
        services.stop(row, actor=None)
        assert looked_at(row).state == "stopped"
    else:
        services.edit(row, spec=services.parse_spec({**row.revision.spec, "options": {"seed": 1}}), actor=None)
        row = looked_at(row)
        assert (row.state, row.run.number, len(checks())) == ("preparing", 2, 2)
    assert checks()[0].desired == "stop", "the host is free for the next"
    assert Run.objects.get(number=1).outcome == "stopped"


def test_a_stopped_question_says_nothing_to_the_next(row: Deployment) -> None:
    row = looked_at(row)
    services.stop(row, actor=None)
    looked_at(row)
    answer(None, code="stopped", state="refused")
    services.start(row, actor=None)
    assert looked_at(row).state == "preparing" and len(checks()) == 2


def test_a_preparation_that_takes_too_long_is_a_failed_start(row: Deployment) -> None:
    row = looked_at(row)
    now = timezone.now()
    Deployment.objects.update(deadline_at=now, looked_at=now)
    row = looked_at(row)
    assert (row.state, row.reason["code"], row.run.reason) == ("failed", "preparing.deadline", row.reason)
    assert Failure.objects.get().code == "preparing.deadline" and checks()[0].desired == "stop"


def test_a_restart_while_it_is_asked_asks_anew(row: Deployment) -> None:
    services.restart(looked_at(row), actor=None)
    row = looked_at(row)
    assert row.state == "preparing" and [job.desired for job in checks()] == ["stop", "run"], "one ends unanswered"
    assert row.run.placement["check"]["job"] == str(checks()[1].pk)


def test_who_shares_a_question_keeps_it_when_the_other_stops(copy: Copy, row: Deployment) -> None:
    looked_at(row)
    other = looked_at(wanted(copy, "other"))
    assert other.state == "preparing" and len(checks()) == 1
    services.stop(row, actor=None)
    assert looked_at(row).state == "stopped" and checks()[0].desired == "run"
    answer(REFUSED)
    assert looked_at(other).state == "failed"
