"""Reads the flags of an engine that Berth does not start, by a table of what means the same in vLLM. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from deployments.pasting.draft import Draft
from deployments.pasting.values import is_flag

Kind = Literal["same", "switch", "own", "lost", "secret", "model", "call"]


@dataclass(frozen=True)
class Rule:
    """`same` and `switch`: the option `to` of vLLM, with or without a value. `own`: Berth does it, or it needs none.

    `lost`: there is nothing like it. `call`: `act` puts it where it belongs. `values`: how many words it takes.
    """

    kind: Kind
    to: str = ""
    values: int = 1
    act: Callable[[Draft, str], None] | None = None


def same(to: str) -> Rule:
    return Rule("same", to)


def switch(to: str) -> Rule:
    return Rule("switch", to, 0)


def call(act: Callable[[Draft, str], None], values: int = 1) -> Rule:
    return Rule("call", act=act, values=values)


OWN, OWN_SWITCH = Rule("own"), Rule("own", values=0)
LOST, LOST_SWITCH = Rule("lost"), Rule("lost", values=0)
SECRET = Rule("secret")
MODEL = Rule("model")


def read(draft: Draft, words: list[str], table: Mapping[str, Rule], *, engine: str) -> list[str]:
    """Every flag into the draft; returns the words that belong to none."""
    rest: list[str] = []
    todo = list(reversed(words))
    while todo:
        word = todo.pop()
        if not is_flag(word):
            rest.append(word)
            continue
        head, sign, value = word.partition("=")
        flag = "--" + head[2:].replace("_", "-") if head.startswith("--") else head
        rule = table.get(flag)
        takes = rule.values if rule is not None else 1
        if not sign and takes and todo and (not is_flag(todo[-1]) or rule is SECRET):
            value = todo.pop()
        if rule is None:
            draft.tell("warning", "paste.no_counterpart", "left_out", flag=flag[:60], engine=engine)
        else:
            _apply(draft, flag, value, rule, engine)
    return rest


def _apply(draft: Draft, flag: str, value: str, rule: Rule, engine: str) -> None:
    if rule.kind == "own":
        draft.tell("note", "paste.own", "left_out", flag=flag)
    elif rule.kind == "lost":
        draft.tell("warning", "paste.no_counterpart", "left_out", flag=flag, engine=engine)
    elif rule.kind == "secret":
        draft.secret(flag, value)
    elif rule.kind == "model":
        draft.set_model(value)
    elif rule.act is not None:
        rule.act(draft, value)
    else:
        word = f"--{rule.to.replace('_', '-')}"
        off = rule.to.startswith("no_")
        elements = [word] if rule.kind == "switch" else [word, value]
        draft.flag(flag, rule.to[3:] if off else rule.to, elements[1:], elements)
