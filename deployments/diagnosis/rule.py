"""What a rule of the diagnosis is: the class of a failure, how it is known, what it means, and what helps. Pure.

Rules are data: one file per engine and family under `rules/`. Texts are marked for translation here and translated
where they are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from re import _constants as _codes  # type: ignore[attr-defined]  # the parser of `re`: it has no public name
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Literal, get_args

# What a remedy costs people, and by how much that makes it the worse choice.
COSTS: dict[str, int] = {"": 0, "time": 4, "context": 6, "speed": 6, "memory": 5, "quality": 10, "safety": 12}
VLLM_DOC = "https://docs.vllm.ai/en/stable/usage/troubleshooting/"
SGLANG_DOC = "https://docs.sglang.io/"
LLAMACPP_DOC = "https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md"
OLLAMA_DOC = "https://docs.ollama.com/troubleshooting"


def gettext_noop(text: str) -> str:
    """Marks a text for translation and leaves it as it is."""
    return text


# What a remedy is about, where its kind and name leave that open. Decisions look at this and never at a sentence.
# newer: a release that may know more. other_engine: not one that Berth starts. smaller, other_form: a form of the model
# that takes less memory, or that is quantised in another way. gpu_memory, ram, port: what somebody holds. longer:
# a longer conversation is what was asked for. back: the value with which it worked.
About = Literal[
    "", "newer", "other_engine", "smaller", "other_form", "gpu_memory", "ram", "port", "gguf_plugin", "longer", "back"
]
ABOUTS: tuple[str, ...] = get_args(About)


@dataclass(frozen=True)
class Remedy:
    """One thing that helps against a class, as its rule has it: the diagnosis makes offers of them, with numbers.

    `kind`: set, drop (an option), env, env_drop (a variable), runtime, package, repair, permission, host, model. `name`
    is the option, package or thing; `to` its new value, or "=name" of the calculation in `offers.CALCULATIONS` that
    finds it. `say` is the sentence where the one of the kind does not do; `chance` (0 to 100) is how often it helps;
    `cost` is what it costs, one of COSTS.
    """

    kind: str
    name: str
    to: str = ""
    say: str = ""
    command: str = ""
    chance: int = 60
    cost: str = ""
    about: About = ""


@dataclass(frozen=True)
class Rule:
    """One class of failures.

    `phase` "" means that the log tells it. `role`: cause; weak (only where no better cause is found); quiet (an engine
    prints it as a warning, and it explains a failure that follows); request (one request failed, the engine lives);
    peer (a process lost its connection to another: whatever is known of that one's end says more); end (how a run was
    ended, not why it failed). `curable`: the same start may go well next time.
    """

    code: str
    phase: str
    title: str
    why: str
    patterns: tuple[str, ...]
    examples: tuple[str, ...]
    near: tuple[str, ...]
    remedies: tuple[Remedy, ...] = ()
    versions: str = ""
    doc: str = VLLM_DOC
    role: str = "cause"
    curable: bool = False

    @property
    def engine(self) -> str:
        """The engine that it is of; what names none is vLLM's, and holds for SGLang where that has no own."""
        head = self.code.partition(".")[0]
        return head if head in ("sglang", "llamacpp", "ollama") else "vllm"

    @cached_property
    def tests(self) -> tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]:
        """Each pattern with texts of which every match of it holds at least one."""
        return tuple((literals_of(pattern), re.compile(pattern)) for pattern in self.patterns)

    def match(self, text: str) -> re.Match[str] | None:
        """The first match of any pattern."""
        for literals, pattern in self.tests:
            for literal in literals:
                if literal in text:
                    if found := pattern.search(text):
                        return found
                    break
        return None


def literals_of(pattern: str) -> tuple[str, ...]:
    """Texts of which every match holds at least one; the empty text where nothing can be told."""
    return max(_choices(_parser.parse(pattern)), key=lambda texts: min(map(len, texts)), default=("",))


def _choices(items: Any) -> Iterator[tuple[str, ...]]:
    """Every set of texts of which a match of these parts must hold one."""
    run = ""
    for code, value in items:
        if code is _codes.LITERAL:
            run += chr(value)
            continue
        if code is _codes.AT:
            continue
        if run:
            yield (run,)
        run = ""
        if code is _codes.SUBPATTERN:
            yield from _choices(value[3])
        elif code is _codes.BRANCH:
            # A common beginning was taken out by the parser; it stands in the run before.
            each = [max(_choices(part), key=lambda texts: min(map(len, texts)), default=("",)) for part in value[1]]
            yield tuple(dict.fromkeys(text for texts in each for text in texts))
    if run:
        yield (run,)


def put(name: str, to: str, chance: int = 70, cost: str = "", say: str = "", about: About = "") -> Remedy:
    """An option gets a value."""
    return Remedy("set", name, to, say, chance=chance, cost=cost, about=about)


def drop(name: str, chance: int = 80, cost: str = "") -> Remedy:
    """An option is left out."""
    return Remedy("drop", name, chance=chance, cost=cost)


def runtime(say: str, chance: int = 50, to: str = "", about: About = "") -> Remedy:
    """Another version of the engine, or the same once more."""
    return Remedy("runtime", "engine", to, say, chance=chance, cost="time", about=about)


def newer(say: str, chance: int = 50) -> Remedy:
    """A newer version of the engine."""
    return runtime(say, chance, about="newer")


def package(name: str, chance: int = 60, say: str = "", about: About = "") -> Remedy:
    """A package in the engine's own environment."""
    return Remedy(
        "package", name, say=say, command=f"python -m pip install {name!r}", chance=chance, cost="time", about=about
    )


def host(say: str, command: str = "", chance: int = 50, name: str = "host", about: About = "") -> Remedy:
    """Something that a person does on the machine."""
    return Remedy("host", name, say=say, command=command, chance=chance, cost="time", about=about)


def repair(say: str, chance: int = 80, to: str = "") -> Remedy:
    """The files of the model are made whole."""
    return Remedy("repair", "files", to, say, chance=chance, cost="time")


def env(name: str, value: str, chance: int = 50, cost: str = "") -> Remedy:
    """An environment variable of the engine."""
    return Remedy("env", name, value, chance=chance, cost=cost)


def model(say: str, chance: int = 40, about: About = "") -> Remedy:
    """Another model, or another file of it."""
    return Remedy("model", "model", say=say, chance=chance, cost="quality", about=about)
