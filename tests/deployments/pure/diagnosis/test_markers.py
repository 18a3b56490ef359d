"""Marks of who speaks in answers: the template does not fit. An answer that merely shows its own end has none."""

import time

import pytest

from deployments.diagnosis.markers import first_slip, found_in

SHOWN = {
    "chatml": ("4<|im_end|>\n<|im_start|>user\nAnd 3 + 3?", "<|im_end|>"),
    "llama 3": ("Paris.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nThanks", "<|eot_id|>"),
    "gemma": ("Mercury<end_of_turn>\n<start_of_turn>user\nAnd then?", "<end_of_turn>"),
    "mistral": ("42 [INST] What is 6 times 7? [/INST] 42", "[INST]"),
    "llama 2": ("<<SYS>> You are helpful. <</SYS>>\n\n42", "<<SYS>>"),
    "phi": ("42<|end|>\n<|user|>\nWhat now?", "<|end|>"),
    "zephyr": ("Hello\n<|assistant|>\nHello again", "<|assistant|>"),
    "vicuna": ("It is 42.\n### Human: And 2 + 2?\n### Assistant: 4", "### Human"),
    "markdown": ("### Assistant: It is 42.", "### Assistant"),
    "alpaca": ("It is 42.\n\n### Instruction:\nName a planet.", "### Instruction:"),
    "plain": ("It is 42.\nUser: and 2 + 2?\nAssistant: 4", "User:"),
    "small letters": ("Mercury.\nuser: why?", "user:"),
    "both ends": ("<|im_start|>assistant\n4<|im_end|>\n<|im_start|>user\n5?<|im_end|>", "<|im_end|>"),
}  # fmt: skip
CLEAN = {
    "plain": "42",
    "empty": "",
    "special tokens shown, chatml": "42<|im_end|>",
    "special tokens shown, whole": "<|start_header_id|>assistant<|end_header_id|>\n\nParis.<|eot_id|>",
    "special tokens shown, gemma": "<start_of_turn>model\nMercury<end_of_turn>\n<eos>",
    "special tokens shown, two": "42<|im_end|>\n<|endoftext|>",
    "a heading": "### User guide\nOpen the lid.\n### Responses\nNone.",
    "in code": "Write it so:\n```yaml\nservice:\nuser: root\n```\nThen start it.",
    "within a line": "Ask the user: is it on? The human: yes.",
    "at the start": "User: ada, role: admin",
    "another language": "人类：你好。用户：很好。",
}


@pytest.mark.parametrize("name", list(SHOWN))
def test_a_mark_within_an_answer_is_found(name: str) -> None:
    answer, marker = SHOWN[name]
    found = found_in("What is 6 times 7?", answer)
    assert found is not None and found[0] == marker
    assert answer[found[1] :].startswith(marker)


@pytest.mark.parametrize("name", list(CLEAN))
def test_an_answer_that_is_well_has_none(name: str) -> None:
    assert found_in("What is 6 times 7?", CLEAN[name]) is None


def test_what_the_question_has_proves_nothing() -> None:
    assert found_in("What does [INST] mean?", "The mark [INST] begins an instruction.") is None
    assert found_in("What does it mean?", "The mark [INST] begins an instruction.") is not None


def test_the_first_of_several_answers_is_shown_with_what_is_around_it() -> None:
    long = f"{'a' * 300}<|im_end|>\n<|im_start|>user {'b' * 300}"
    answers = [{"question": "1", "answer": "4"}, {"question": "2", "answer": None}, {"question": "3", "answer": long}]
    found = first_slip(answers)
    assert found is not None and found["marker"] == "<|im_end|>"
    assert found["answer"].startswith("aaa") and len(found["answer"]) < 200
    assert first_slip(answers[:2]) is None


@pytest.mark.parametrize("text", ["\n", " ", "<|im_end|> ", "### ", "```", "<|"], ids=repr)
def test_any_answer_takes_little_time(text: str) -> None:
    began = time.process_time()
    found_in("What is 6 times 7?", text * 100_000)
    assert time.process_time() - began < 0.5
