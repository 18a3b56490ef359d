"""Golden questions: asked once after each start that answered, kept as they come, edited by whoever may edit."""

from typing import Any

import pytest

from deployments import golden
from deployments.gateway.ask import Answer
from deployments.models import Deployment, Run
from deployments.spec import DeploymentSpec
from panel.audit.models import Event
from panel.core.errors import Conflict, Invalid
from tests.deployments import builders

pytestmark = pytest.mark.django_db

PATH = "/v1/chat/completions"


@pytest.fixture
def run(db: None) -> Run:
    copy = builders.make_copy(builders.make_host())
    row = builders.make_deployment(copy, state="ready")
    return builders.make_run(row, copy, answer={"answer": "Paris.", "path": PATH})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Bodies of what was asked; each answer is its question in capital letters."""
    bodies: list[dict[str, Any]] = []

    def ask(_base: str, _token: str, path: str, body: dict[str, Any], timeout_s: float) -> Answer:
        assert 0 < timeout_s <= golden.TOTAL_S
        bodies.append({"path": path, **body})
        text = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        said = {"message": {"content": text.upper()}} if "messages" in body else {"text": text.upper()}
        return Answer(200, "", 12.4, "engine", {"choices": [said]})

    monkeypatch.setattr(golden, "ask", ask)
    return bodies


def answers(run: Run) -> list[dict[str, Any]]:
    run.refresh_from_db()
    return run.golden.get("answers", [])


def test_the_usual_ones_are_asked_once_and_bounded(run: Run, asked: list[dict[str, Any]]) -> None:
    golden.ask_run(str(run.pk))
    golden.ask_run(str(run.pk))
    assert [each["question"] for each in answers(run)] == list(golden.USUAL)
    assert answers(run)[0]["answer"] == golden.USUAL[0].upper()
    assert answers(run)[0]["latency_ms"] == 12
    assert {(body["max_tokens"], body["temperature"], body["path"]) for body in asked} == {(golden.TOKENS, 0, PATH)}


def test_own_questions_and_none(run: Run, asked: list[dict[str, Any]]) -> None:
    golden.set_questions(run.deployment, ["  Why is\n the sky blue? ", "", "Why is the sky blue?"], actor=None)
    golden.ask_run(str(run.pk))
    assert [each["question"] for each in answers(run)] == ["Why is the sky blue?"]
    Run.objects.update(golden={})
    golden.set_questions(run.deployment, [], actor=None)
    golden.ask_run(str(run.pk))
    assert answers(run) == []
    assert len(asked) == 1


def test_a_model_without_a_chat_template_is_asked_plainly(run: Run, asked: list[dict[str, Any]]) -> None:
    Run.objects.update(answer={"answer": "Paris", "path": "/v1/completions"})
    golden.ask_run(str(run.pk))
    assert asked[0]["path"] == "/v1/completions"
    assert asked[0]["prompt"] == golden.USUAL[0]


@pytest.mark.parametrize("task", ["embed", "score"])
def test_models_that_write_no_text_are_not_asked(run: Run, asked: list[dict[str, Any]], task: str) -> None:
    spec = DeploymentSpec(artifact_id=1, task=task)
    run.deployment.revision.spec = spec.model_dump(mode="json")
    run.deployment.revision.save()
    golden.ask_run(str(run.pk))
    assert asked == []
    assert golden.questions_of(run.deployment, spec) == []


@pytest.mark.parametrize(
    "change", [{"answer": None}, {"ended_at": "2026-01-01T00:00:00Z"}], ids=["unanswered", "ended"]
)
def test_only_a_start_that_answered_and_goes_on(run: Run, asked: list[dict[str, Any]], change: dict[str, Any]) -> None:
    Run.objects.update(**change)
    golden.ask_run(str(run.pk))
    assert asked == []
    assert answers(run) == []


def test_a_stop_ends_the_asking(run: Run, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = golden.ask

    def ask(*args: Any, **more: Any) -> Answer:
        Deployment.objects.update(desired="stopped")
        return plain(*args, **more)

    monkeypatch.setattr(golden, "ask", ask)
    golden.ask_run(str(run.pk))
    assert len(answers(run)) == len(asked) == 1


def test_what_does_not_answer_is_said_and_the_next_is_asked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    came = iter([Answer(500, "boom", 3.0, "engine"), Answer(0, "timeout", 9.0), Answer(200, "", 1.0, "engine", {})])
    monkeypatch.setattr(golden, "ask", lambda *args, **more: next(came))
    golden.ask_run(str(run.pk))
    assert [(each["answer"], each["error"]) for each in answers(run)] == [
        (None, "500"),
        (None, "timeout"),
        (None, "200"),
    ]


def test_the_deadline_holds_for_all_of_them(run: Run, asked: list[dict[str, Any]], monkeypatch) -> None:
    clock = iter([0.0, 1.0, golden.TOTAL_S + 1])
    monkeypatch.setattr(golden.time, "monotonic", lambda: next(clock))
    golden.ask_run(str(run.pk))
    assert len(answers(run)) == 1


@pytest.mark.parametrize("questions", [["a", "b", "c", "d"], ["x" * 501]], ids=["four", "long"])
def test_too_many_or_too_long(run: Run, questions: list[str]) -> None:
    with pytest.raises(Invalid):
        golden.set_questions(run.deployment, questions, actor=None)


def test_characters_that_cannot_be_kept(run: Run) -> None:
    row = golden.set_questions(run.deployment, ["a\0b \ud800?"], actor=None)
    row.refresh_from_db()
    assert row.questions == ["a b ??"]


def test_changes_are_recorded_and_equal_ones_are_none(run: Run) -> None:
    golden.set_questions(run.deployment, ["One?"], actor=None)
    golden.set_questions(run.deployment, ["One?"], actor=None)
    golden.set_questions(run.deployment, None, actor=None)
    events = Event.objects.filter(verb="deployment.questions_changed").order_by("pk")
    assert [event.after["questions"] for event in events] == [["One?"], None]
    Deployment.objects.update(deleted_at="2026-01-01T00:00:00Z")
    with pytest.raises(Conflict):
        golden.set_questions(run.deployment, ["Two?"], actor=None)
