"""Each state that waits or has failed says on its page why, until when, and what to do next, whatever the reason."""

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.utils import timezone

from deployments.codes import CODES
from deployments.diagnosis.rules import BY_CODE
from deployments.models import Deployment
from deployments.pages import detail as detail_page
from deployments.states import DEADLINES, State
from deployments.wording import words
from models_catalog.models import Copy
from tests.deployments import builders

pytestmark = pytest.mark.django_db

# What is no reason of a state: changes and fixes, what Berth chose, findings of a check or of an engine that serves.
NO_REASON = (
    "change.",
    "chosen.",
    "behind.",
    "first.",
    "estimate.",
    "check.",
    "start.stalled",
    "start.silent",
    "lost.since",
)
NOT_FAILED = ("serve.", "queued.", "preparing.sidecar", "preparing.check")
PLACING = ("host.", "gpu.", "place.", "copy.", "runtime.", "reserve.", "cpu.", "artifact.")
OF_STATE: dict[State, tuple[str, ...]] = {
    State.PLACING: ("",),
    State.PREPARING: ("", "preparing.sidecar", "preparing.check"),
    State.STARTING: ("",),
    State.STOPPING: ("", "lost.no_contact"),
    State.LOST: ("", "lost.no_contact"),
}


def reasons(state: State) -> list[str]:
    real = [code for code in CODES if not code.startswith(NO_REASON) and not code.endswith(".now")]
    if state == State.QUEUED:
        return ["", *(code for code in real if code.startswith(PLACING))]
    if state == State.FAILED:
        some = list(BY_CODE)[::40]  # their pages differ by the sentence alone, which the test below reads of each
        return [*(code for code in real if not code.startswith(NOT_FAILED)), *some]
    return list(OF_STATE[state])


@pytest.fixture(autouse=True)
def _no_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """The poorest case: nothing fits that could be offered."""
    monkeypatch.setattr("deployments.remedies.of", lambda *args, **kwargs: [])
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def copy() -> Copy:
    return builders.make_copy(builders.make_host(gpus=1))


def row_in(state: State, copy: Copy) -> Deployment:
    row = builders.make_deployment(copy, state=state.value)
    if state == State.FAILED:
        builders.failed(row, copy)
    elif state not in (State.QUEUED, State.PLACING):
        builders.make_run(row, copy)
    seconds = DEADLINES[state].seconds
    row.deadline_at = timezone.now() + timedelta(seconds=seconds) if seconds else None
    row.save()
    return row


def reason_of(code: str) -> dict[str, Any]:
    """As the loop keeps it; of a class of the diagnosis as the end of a start does."""
    if code in BY_CODE:
        rule = BY_CODE[code]
        return {"code": "exit.code", "params": {"exit_code": 1, "cause": code, "title": rule.title, "why": rule.why}}
    return {"code": code, "params": {}} if code else {}


def shown(row: Deployment) -> str:
    context = detail_page.detail(row, may_operate=True, may_delete=True, may_ask=True, may_edit=True, part="page")
    template = "deployments/_failed.html" if context["kind"] == "failed" else "deployments/_moving.html"
    return render_to_string(template, context)


def lacking(page: str, code: str) -> Iterator[str]:
    """Which of the three the page does not say."""
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    why = re.search(r'id="(?:why|dx-h)"[^>]*>\s*(.*?)</', page, re.DOTALL) or re.search(
        r'class="note.*?<p>(.*?)</p>', page, re.DOTALL
    )
    if why is None or len(re.sub(r"<[^>]*>", "", why[1]).strip()) < 10:
        yield "reason"
    if not re.search(
        r"within \d|as long as it takes|by itself in \d|does not start it again by itself|says here when", text
    ):
        yield "deadline"
    if not re.search(
        r"[Nn]othing to do|[Ss]top ends|You need not|says here what|says here why|Open the settings", text
    ):
        yield "next step"
    if "no words yet" in text:
        yield f"words for {code}"


@pytest.mark.parametrize("state", [*OF_STATE, State.QUEUED, State.FAILED])
def test_the_page_says_why_until_when_and_what_next(state: State, copy: Copy) -> None:
    row = row_in(state, copy)
    missing: dict[str, list[str]] = {}
    for code in reasons(state):
        row.reason = reason_of(code)
        if row.run is not None and state == State.FAILED:
            row.run.reason = row.reason
        if found := list(lacking(shown(row), code)):
            missing[code or "none"] = found
    assert missing == {}


def test_the_table_has_every_state_that_waits_or_failed() -> None:
    assert {*OF_STATE, State.QUEUED, State.FAILED} == {*State} - {State.READY, State.STOPPED}
    assert len(reasons(State.FAILED)) > 120 and len(reasons(State.QUEUED)) > 30


def test_each_class_of_the_diagnosis_has_its_sentence() -> None:
    told = {code: words(reason_of(code)) for code in BY_CODE}
    assert len(told) > 120
    assert [code for code, said in told.items() if said is None or len(said.text) < 10 or len(said.hint) < 10] == []


def test_a_failure_that_is_tried_again_says_when(copy: Copy) -> None:
    row = row_in(State.FAILED, copy)
    row.next_attempt_at = timezone.now() + timedelta(seconds=20)
    page = shown(row)
    assert "Berth starts it again by itself in" in page and "does not start it again" not in page


def test_a_stop_that_waits_for_its_host_names_no_time(copy: Copy) -> None:
    row = row_in(State.STOPPING, copy)
    assert "within" in shown(row)
    row.reason = {"code": "lost.no_contact", "params": {}}
    row.deadline_at = timezone.now() - timedelta(hours=2)
    page = shown(row)
    assert "as long as it takes" in page and "within" not in page


def test_the_reason_is_in_the_words_of_its_code(copy: Copy) -> None:
    row = row_in(State.QUEUED, copy)
    row.reason = {"code": "host.lost", "params": {}}
    said = words(row.reason)
    assert said is not None and said.text in shown(row)
