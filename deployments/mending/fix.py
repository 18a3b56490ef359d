"""What a fix is, wherever it is offered: on a failed start, in the check before one, of what serves. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from deployments.diagnosis.rule import COSTS

# patch: a change of the spec. again: the same once more. runtime: an engine to install. package: into the engine's
# environment. repair: the model's files. permission: the model's own code. stop: something of ours that holds memory.
# host: done on the machine. model: another model. settings: a value that only a person knows.
Kind = Literal["patch", "again", "runtime", "package", "repair", "permission", "stop", "host", "model", "settings"]
BY_CLICK = 8  # what one click can do comes before what takes a walk to the machine
KEPT = ("text", "option", "command", "link", "target")  # kept with a fix where it has them
OPEN = 25  # a fix whose number only a person knows


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

    def kept(self) -> dict[str, Any]:
        """As a row keeps a change that is offered for as long as the row says so."""
        effects = [{"good": each.good, "code": each.code, "params": dict(each.params)} for each in self.effects]
        said = {name: getattr(self, name) for name in KEPT if getattr(self, name)}
        kept = {"code": self.code, "params": dict(self.params), "patch": dict(self.patch), "effects": effects}
        return {"kind": self.kind, **kept, **said}

    @classmethod
    def of_kept(cls, kept: Mapping[str, Any]) -> Fix:
        """What `kept` made; rows from before effects were kept have none, and are all of changes."""
        effects = tuple(Effect(each["good"], each["code"], each["params"]) for each in kept.get("effects") or ())
        said = {name: kept[name] for name in KEPT if name in kept}
        return cls(
            kept.get("kind", "patch"), kept["code"], kept["params"], patch=kept["patch"], effects=effects, **said
        )

    def told(self, *effects: Effect) -> Fix:
        return replace(self, effects=(*self.effects, *effects))
