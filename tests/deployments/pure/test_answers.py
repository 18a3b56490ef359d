"""What counts as an answer, and how pasted text becomes words."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.engines.base import EngineRefusal
from deployments.engines.registry import adapter_for
from deployments.engines.tokens import split_args
from deployments.engines.vllm import VLLM


def chat(**message: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", **message}}], "usage": {"completion_tokens": 3}}


@pytest.mark.parametrize(
    ("task", "body", "answer"),
    [
        ("generate", chat(content=" Paris. "), "Paris."),
        ("generate", chat(content=None, reasoning="Let me think"), "Let me think"),
        ("generate", chat(content=None, reasoning_content="Hm"), "Hm"),
        ("generate", {"choices": [{"text": "Paris"}]}, "Paris"),
        ("generate", chat(content=""), "␣"),
        ("generate", {"choices": [{"message": {"content": ""}}], "usage": {"completion_tokens": 0}}, None),
        ("generate", {"choices": []}, None),
        ("generate", {"error": {"message": "no"}}, None),
        ("generate", "<html>", None),
        ("generate", None, None),
        ("generate", {"choices": "x"}, None),
        ("embed", {"data": [{"embedding": [0.5, -1, 0]}]}, "[0.5000, -1.0000, 0.0000, …] × 3"),
        ("embed", {"data": [{"embedding": [0.0, 0.0]}]}, None),
        ("embed", {"data": [{"embedding": [float("nan")]}]}, None),
        ("embed", {"data": [{"embedding": []}]}, None),
        ("embed", {"data": []}, None),
        ("score", {"data": [{"score": 0.25}]}, "0.2500"),
        ("score", {"results": [{"relevance_score": 0.5}]}, "0.5000"),
        ("score", {"data": [{"score": None}]}, None),
        ("score", {"data": [{"score": float("inf")}]}, None),
    ],
)
def test_answers(task: Any, body: Any, answer: str | None) -> None:
    assert VLLM().read_answer(task, body) == answer


def test_an_answer_is_kept_short_and_shown_whole() -> None:
    long = chat(content="word " * 400)
    assert len(VLLM().read_answer("generate", long) or "") == 500
    assert VLLM().read_answer("generate", long, most=20_000) == ("word " * 400).strip()


@pytest.mark.parametrize(("reason", "cut"), [("length", True), ("stop", False), (None, False)])
def test_an_answer_that_reached_its_limit_says_so(reason: str | None, cut: bool) -> None:
    assert VLLM().was_cut({"choices": [{"message": {"content": "the use of li"}, "finish_reason": reason}]}) is cut
    assert not VLLM().was_cut({"choices": []}) and not VLLM().was_cut(None)


def test_a_refusal_for_want_of_a_template_asks_for_a_completion() -> None:
    adapter = VLLM()
    assert adapter.wants_completion(
        "generate", 400, {"error": {"message": "default chat template is no longer allowed"}}
    )
    assert not adapter.wants_completion("generate", 400, {"error": {"message": "max_tokens is too large"}})
    assert not adapter.wants_completion("embed", 400, "chat template")
    assert not adapter.wants_completion("generate", 200, chat(content="chat template"))


def test_an_engine_that_is_not_known() -> None:
    with pytest.raises(KeyError):
        adapter_for("other")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--a b --c=d", ["--a", "b", "--c=d"]),
        ("--a 'b c' --d \"e f\"", ["--a", "b c", "--d", "e f"]),
        ("--a \\\n  b", ["--a", "b"]),
        ('--a {"x": "y z"} --b', ["--a", '{"x": "y z"}', "--b"]),
        ("--a [1, 2]", ["--a", "[1, 2]"]),
        ("--a='{\"x\": 1}'", ['--a={"x": 1}']),
        ("--a {not json}", ["--a", "{not", "json}"]),
        ("$ CUDA_VISIBLE_DEVICES=0 vllm serve some/model --a b", ["--a", "b"]),
        ("/usr/bin/vllm serve --a", ["--a"]),
        ("--a $(reboot) `x` ; rm -rf / && y | z > w", ["--a", "$(reboot)", "`x`", ";", "rm", "-rf", "/", "&&", "y", "|", "z", ">", "w"]),
        ("--a é\\ü", ["--a", "éü"]),
        ("", []),
    ],
)  # fmt: skip
def test_pasted_text(text: str, words: list[str]) -> None:
    assert split_args(text) == words


def test_open_quotes_are_named() -> None:
    with pytest.raises(EngineRefusal):
        split_args("--a 'b")
    with pytest.raises(EngineRefusal):
        split_args('--a "b')
