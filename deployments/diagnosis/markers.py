"""Signs in an answer that the chat template does not fit the model: who speaks is written out in the text. Pure.

A template marks where each speaker begins and ends. With the wrong one the model does not know its own end: it writes
the mark itself and goes on, often for both sides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# Marks that tokenizers have as special tokens. One around the whole answer is how it began and stopped: an engine that
# was asked to show special tokens shows them there, and nothing is wrong.
_ENDS = r"<\|(?:im_end|eot_id|eom_id|end|end_of_turn|end_of_text|endoftext)\|>|<end_of_turn>"
_BEGINS = r"<\|(?:im_start|start_header_id|end_header_id|user|assistant|system)\|>|<start_of_turn>|\[/?INST\]|<</?SYS>>"
# The same in plain words, as some templates write them; each begins a line.
_WORDS = r"(?m:^### ?(?:(?:Assistant|Human|User)(?=:|$)|(?:Instruction|Response):))|(?<=\n)(?i:user|human):"
_FIRST = re.compile(
    r"\s*(?:<\|im_start\|>assistant\n|<\|start_header_id\|>assistant<\|end_header_id\|>|<start_of_turn>model\n"
    r"|<\|assistant\|>)"
)
_LAST = re.compile(rf"(?:{_ENDS}|</s>|<eos>)\Z")
_MARK = re.compile(f"{_ENDS}|{_BEGINS}|{_WORDS}")
AROUND = 80  # characters of the answer before and after the mark, as they are shown
MOST = 2000  # characters looked at
LONGEST_MARK = 24  # characters


def found_in(question: str, answer: str) -> tuple[str, int] | None:
    """(mark, where) of the first one in an answer. What the question has itself, and what stands in code, is none."""
    text = answer[:MOST].rstrip()
    while last := _LAST.search(text, max(0, len(text) - LONGEST_MARK)):
        text = text[: last.start()].rstrip()
    first = _FIRST.match(text)
    for mark in _MARK.finditer(text, first.end() if first else 0):
        in_code = text.count("```", 0, mark.start()) % 2 == 1
        if mark[0] not in question and not in_code:
            return mark[0], mark.start()
    return None


def first_slip(answers: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """{marker, answer: the text around it} of the first answer with a mark. Each has its `question` and `answer`."""
    for each in answers:
        text = str(each.get("answer") or "")
        if found := found_in(str(each.get("question") or ""), text):
            marker, at = found
            return {"marker": marker, "answer": text[max(0, at - AROUND) : at + len(marker) + AROUND].strip()}
    return None
