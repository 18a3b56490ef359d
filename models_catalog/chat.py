"""What a model receives: its chat template with example conversations, rendered in a process that can harm nobody."""

import functools
import json
import logging
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.utils.translation import gettext_lazy as _

from panel.core.wording import Pair, Words, said

log = logging.getLogger(__name__)

CHILD = Path(__file__).with_name("chat_child.py")
LONGEST_S = 8.0
AT_ONCE = threading.BoundedSemaphore(2)  # in one process of the panel
WAIT_S = 10.0
MOST_ANSWER = 2 << 20  # bytes

SYSTEM = "You are helpful."
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_USER = {"role": "user", "content": "What is the capital of France?"}
_ANSWER = {"role": "assistant", "content": "Paris."}
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "id": "call00001", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    ],
}
_RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "18 °C"}
CASES: dict[str, dict[str, Any]] = {
    "system": {"messages": [{"role": "system", "content": SYSTEM}, _USER]},
    "turns": {"messages": [_USER, _ANSWER, {"role": "user", "content": "And of Italy?"}]},
    "tools": {"messages": [_USER, _CALL, _RESULT], "tools": [TOOL]},
    "chinese": {"messages": [{"role": "user", "content": "法国的首都是哪里？"}]},
    "plain": {"messages": [_USER]},
}
NAMES = {
    "system": _("With a system text"),
    "turns": _("Several turns"),
    "tools": _("A tool is called"),
    "chinese": _("In Chinese"),
    "plain": _("One question"),
}
# What templates may expect to be there; the true ones stand in the tokenizer.
_AROUND = {
    "add_generation_prompt": True,
    "bos_token": "<bos>",
    "eos_token": "<eos>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
}

ERRORS: dict[str, Pair] = {
    "chat.raised": (_("The template refuses this conversation: “%(message)s”"), ""),
    "chat.syntax": (
        _("The template cannot be read, line %(message)s"),
        _("Chats will fail. Give the deployment a template of your own with the option --chat-template."),
    ),
    "chat.failed": (_("The template fails with this conversation: %(message)s"), ""),
    "chat.too_long": (_("The template makes a text without end of a short conversation."), ""),
    "chat.too_much": (
        _("The template needs more memory or time than any real one."),
        _("Do not serve this model before someone has looked at its template."),
    ),
    "chat.not_now": (_("The template could not be tried out here."), _("The panel's log says why.")),
    "chat.busy": (_("Other templates are being tried out now."), _("Open this again in a few seconds.")),
    "chat.foreign": (
        _("This template is in the language of Ollama, which only Ollama renders."),
        "",
    ),
}


@dataclass(frozen=True)
class Try:
    """One conversation: what the model receives, or why it receives nothing."""

    code: str
    text: str = ""
    error: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        return str(NAMES[self.code])

    @property
    def words(self) -> Words | None:
        return said(ERRORS, self.error) if self.error else None


@dataclass(frozen=True)
class Tried:
    tries: tuple[Try, ...]

    def of(self, code: str) -> Try:
        return next(one for one in self.tries if one.code == code)

    @property
    def works(self) -> bool:
        """A question reaches the model."""
        return any(_USER["content"] in self.of(code).text for code in ("plain", "system"))

    @property
    def system(self) -> bool:
        return SYSTEM in self.of("system").text

    @property
    def tools(self) -> bool:
        return "get_weather" in self.of("tools").text and "18 °C" in self.of("tools").text

    @property
    def error(self) -> Words | None:
        """Of a template that renders nothing at all."""
        return None if self.works else self.of("plain").words


def thinks(template: str) -> bool:
    """Whether the template knows of thinking."""
    return "enable_thinking" in template or "<think>" in template or "reasoning_content" in template


class _NotKept(Exception):
    """A code that another try may not give."""


def render(template: str, source: str = "") -> Tried:
    """All example conversations. Never raises for what the template does; kept for the newest templates."""
    if source == "ollama":
        return _all("chat.foreign")
    if not AT_ONCE.acquire(timeout=WAIT_S):
        return _all("chat.busy")
    try:
        return _rendered(template)
    except _NotKept as exc:
        return _all(str(exc))
    finally:
        AT_ONCE.release()


def _all(code: str, message: str = "") -> Tried:
    error = {"code": code, "params": {"message": message}}
    return Tried(tuple(Try(name, error=error) for name in CASES))


@functools.lru_cache(maxsize=64)
def _rendered(template: str) -> Tried:
    asked = {
        "template": template,
        "cases": [{**_AROUND, "tools": None, "documents": None, **case} for case in CASES.values()],
    }
    env = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "PYTHONHASHSEED": "0", "LANG": "C.UTF-8"}
    try:
        done = subprocess.run(
            [sys.executable, "-s", "-B", "-P", str(CHILD)],  # -P: beside it lies a folder "inspect"
            input=json.dumps(asked).encode(),
            capture_output=True,
            env=env,
            cwd="/",
            timeout=LONGEST_S,
            check=False,
        )
        answers = json.loads(done.stdout[:MOST_ANSWER])
    except subprocess.TimeoutExpired as exc:
        raise _NotKept("chat.too_much") from exc
    except ValueError as exc:
        if done.returncode != 1:  # ended by its bounds, without a word
            return _all("chat.too_much")
        log.warning("a template could not be tried out: %s", done.stderr[-500:].decode(errors="replace"))
        raise _NotKept("chat.not_now") from exc
    return Tried(tuple(_try(code, answer) for code, answer in zip(CASES, answers, strict=True)))


def _try(code: str, answer: dict[str, Any]) -> Try:
    if "text" in answer:
        return Try(code, text=answer["text"])
    return Try(code, error={"code": answer["error"], "params": {"message": answer["message"]}})
