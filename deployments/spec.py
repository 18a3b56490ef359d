"""What a revision of a deployment says, typed; and the difference between two of them. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

NAME = re.compile(r"^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$")
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,100}$")]
SecretName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]{0,62}[a-z0-9])?$")]  # as panel.accounts.secret_store


MOST = 100_000  # characters of everything a person chose; a revision is kept for ever, and copied into each order


class Restart(BaseModel):
    """What happens after a run ended by itself: never, or again with a growing pause (10 s … 5 min, at most 5)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: Literal["never", "on_failure"] = "on_failure"
    max_attempts: int = Field(default=5, ge=1, le=5)


class DeploymentSpec(BaseModel):
    """All that decides how a deployment runs. A revision keeps it unchanged for ever.

    `options` are the engine's own options by name with underscores (`max_model_len`), values typed as JSON;
    `extra_args` are further flags as argv elements. `gpu_uuids` empty lets the planner choose.
    `host_id`, `runtime_id` None let the planner choose among the hosts that hold the copy.
    `people` are conversations that must fit at the same time, each as long as `max_model_len` says; `priority` is what
    the planner looks at first: room for others (fit), the model unchanged (quality), the fastest place (speed).
    `env_secrets` are variables whose values are stored secrets, each by its name; the secrets themselves stand nowhere.
    `kv_cache_gib` is for the CPU (VLLM_CPU_KVCACHE_SPACE); on a GPU the engine derives it.
    `fix_once`: after a failure of a safe class Berth applies the first fix itself, once until it is ready again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: Literal["vllm"] = "vllm"
    artifact_id: int
    host_id: int | None = None
    runtime_id: int | None = None
    device: Literal["auto", "gpu", "cpu"] = "auto"
    gpu_uuids: list[str] = Field(default=[], max_length=64)
    gpu_count: int = Field(default=1, ge=1, le=64)
    task: Literal["generate", "embed", "score"] = "generate"
    people: int | None = Field(default=None, ge=1, le=100_000)
    priority: Literal["fit", "quality", "speed"] = "quality"
    options: dict[str, Any] = Field(default={}, max_length=200)
    extra_args: list[str] = Field(default=[], max_length=100)
    env: dict[str, str] = Field(default={}, max_length=50)
    env_secrets: dict[Variable, SecretName] = Field(default={}, max_length=20)
    kv_cache_gib: int | None = Field(default=None, ge=1, le=4096)
    grace_s: float = Field(default=30.0, ge=0, le=600)
    start_deadline_s: float = Field(default=3600.0, ge=5, le=86400)
    restart: Restart = Restart()
    fix_once: bool = False

    @field_validator("extra_args", "gpu_uuids")
    @classmethod
    def _sane(cls, value: list[str]) -> list[str]:
        if any(len(item) > 4000 or "\x00" in item for item in value):
            raise ValueError("too_long_or_nul")
        return value

    @model_validator(mode="after")
    def _not_a_book(self) -> DeploymentSpec:
        if len(repr((self.options, self.extra_args, self.env, self.env_secrets, self.gpu_uuids))) > MOST:
            raise PydanticCustomError("spec_too_large", "too long together", {"most": MOST})
        return self


def diff(old: DeploymentSpec, new: DeploymentSpec) -> dict[str, tuple[Any, Any]]:
    """{dotted name: (before, after)} of every value that differs; options and env are compared key by key."""
    before, after = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    return {
        key: (before.get(key), after.get(key)) for key in sorted({*before, *after}) if before.get(key) != after.get(key)
    }


def _flat(value: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, dict):
            flat.update(_flat(item, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = item
    return flat
