"""What is known of the place where a start failed, as plain values; and what a fix is. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from deployments.engines.base import version_key

# patch: a change of the spec. again: the same once more. runtime: an engine to install. package: into the engine's
# environment. repair: the model's files. permission: the model's own code. stop: something of ours that holds memory.
# host: done on the machine. model: another model. settings: a value that only a person knows.
Kind = Literal["patch", "again", "runtime", "package", "repair", "permission", "stop", "host", "model", "settings"]
# What it costs, as `diagnosis.rule.Fix.cost` has it; subtracted from the chance when fixes are ranked.
COSTS: dict[str, int] = {"": 0, "time": 4, "context": 6, "speed": 6, "memory": 5, "quality": 10, "safety": 12}
BY_CLICK = 8  # what one click can do comes before what takes a walk to the machine
OPEN = 25  # a fix whose number only a person knows


@dataclass(frozen=True)
class Engine:
    """An engine on the host. `worked`: something was ready with it there."""

    id: int
    version: str
    device: str = ""
    worked: bool = False


@dataclass(frozen=True)
class Holder:
    """What holds memory: a deployment of ours (`deployment`), or a process that is not (`pid`). GPU None: the RAM."""

    name: str
    mib: int
    gpu: int | None = None
    deployment: int | None = None
    pid: int | None = None
    user: str = ""


@dataclass(frozen=True)
class Form:
    """Another form of the model that lies on the host."""

    artifact: int
    name: str


@dataclass(frozen=True)
class Around:
    """The place of the failed start, as it is now. Addresses of pages are made where this is shown."""

    host: int | None = None
    host_name: str = ""
    on_gpu: bool = True
    kv_cache_gib: int | None = None  # of the failed start, on a CPU
    runtime: Engine | None = None
    engines: tuple[Engine, ...] = ()  # the others on that host that could serve
    python: str = ""  # of the engine's environment
    plugin: Literal["", "click", "command"] = ""  # whether Berth can add the GGUF plug-in
    copy: int | None = None
    copy_path: str = ""
    repairable: bool = False
    model: int | None = None
    tasks: tuple[str, ...] = ()  # what the model is made for, as its files say
    own_code: bool = False  # the model brings code of its own that nobody allowed
    ggufs: tuple[Form, ...] = ()  # files that lie in the model's folder
    twins: tuple[Form, ...] = ()  # smaller forms of the model on that host
    holders: tuple[Holder, ...] = ()
    port_holder: str = ""
    flags: frozenset[str] = frozenset()  # what the engine's parser knows; empty: not known

    def newer(self) -> Engine | None:
        """The newest of the other engines that is newer than the one that failed."""
        now = version_key(self.runtime.version) if self.runtime is not None else ()
        found = [engine for engine in self.engines if version_key(engine.version) > now]
        return max(found, key=lambda engine: version_key(engine.version), default=None)

    def other(self) -> Engine | None:
        """One that is known to work there, else the newest."""
        return max(self.engines, key=lambda engine: (engine.worked, version_key(engine.version)), default=None)


@dataclass(frozen=True)
class Effect:
    """What a fix brings (`good`) or costs, as a code with parameters."""

    good: bool
    code: str
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fix:
    """One thing that may help, ready to be shown. `code` and `params` are its title; `text` the rule's own.

    `option` is the option that a patch changes. `link` names the page where it is done (install, model, models, code,
    plugin, repair, deployment, settings), `target` what of it.
    """

    kind: Kind
    code: str
    params: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    patch: Mapping[str, Any] = field(default_factory=dict)
    option: str = ""
    command: str = ""
    link: str = ""
    target: int | None = None
    effects: tuple[Effect, ...] = ()
    chance: int = 50
    cost: str = ""

    @property
    def key(self) -> str:
        """Names it for as long as it is the same: what it does, without how it is told."""
        done = [self.kind, self.code, dict(self.patch), self.link, self.target, self.command, self.text]
        return hashlib.sha256(json.dumps(done, sort_keys=True, default=str).encode()).hexdigest()[:12]

    @property
    def by_click(self) -> bool:
        """Whether the panel itself can do it and start again."""
        return self.kind in ("patch", "again")

    @property
    def worth(self) -> float:
        """More is better: how likely it helps, less what it costs and who must do it."""
        open_ = OPEN if self.kind == "settings" else 0
        return self.chance - COSTS.get(self.cost, 0) - open_ + (BY_CLICK if self.by_click else 0)

    def told(self, *effects: Effect) -> Fix:
        return replace(self, effects=(*self.effects, *effects))
