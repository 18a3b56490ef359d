"""What an engine adapter takes and gives. Pure: no file is opened, nothing is started.

An adapter turns a spec and a placement into the exact command, or refuses with reasons: codes with parameters, which
wording.py translates.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from deployments.engines.options import Schema, parse_schema
from deployments.engines.reason import EngineRefusal as EngineRefusal
from deployments.engines.reason import Reason as Reason
from deployments.spec import DeploymentSpec
from panel.core.mask import mask

Task = Literal["generate", "embed", "score"]
SHORT = 500  # characters of an answer that is kept with a run


@dataclass(frozen=True)
class RuntimeFacts:
    """The installed engine: fleet.models.Runtime as plain data. `flags` is its own parser's schema."""

    executable: str
    version: str = ""
    device: str = ""  # cuda, cpu, rocm, …; "" unknown
    plugins: tuple[str, ...] = ()
    flags: tuple[Mapping[str, Any], ...] = ()

    @cached_property
    def schema(self) -> Schema:
        """The flags, read once: there are hundreds, and every start and every look at a form asks."""
        return parse_schema(self.flags)


@dataclass(frozen=True)
class LaunchContext:
    """All that decides one command line.

    `model_facts` is ModelFacts as a dict, `model_path` the folder or file on the host, `roots` the folders that paths
    in options may lie below. `utilisation` is the share of each GPU's memory that was reserved; `kv_cache_gib` and
    `cpu_threads` (VLLM_CPU_OMP_THREADS_BIND) are for the CPU.
    """

    spec: DeploymentSpec
    runtime: RuntimeFacts
    served_name: str
    api_key: str
    model_path: str
    model_facts: Mapping[str, Any] = field(default_factory=dict)
    roots: tuple[str, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    utilisation: float = 0.9
    kv_cache_gib: int = 4
    cpu_threads: str = "auto"
    machine: str = "x86_64"
    cpu_flags: frozenset[str] = frozenset()
    asked_paths: tuple[str, ...] = ()  # that the host asks every few seconds; the engine's log need not tell
    allow_remote_code: bool = False
    detail: bool = False  # the engine writes all it can into its log
    sidecar: str = ""  # the folder that describes a GGUF file, where the engine needs one
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)  # by variable; empty where it is only shown


@dataclass(frozen=True)
class Launch:
    """What to run. `argv` holds the literal element `{port}`; `notes` say what was translated, dropped or chosen."""

    argv: list[str]
    env: dict[str, str]
    secret_env: dict[str, str]
    model_path: str
    gpu_uuids: list[str] = field(default_factory=list)
    needs_avx2: bool = False
    allow_remote_code: bool = False
    notes: list[Reason] = field(default_factory=list)


class Adapter(Protocol):
    """One engine."""

    name: str

    def runtime_reasons(self, runtime: RuntimeFacts, model_facts: Mapping[str, Any], device: str) -> list[Reason]:
        """Why this runtime cannot serve this model on this device (gpu or cpu); empty when it can."""

    def needs_sidecar(self, runtime: RuntimeFacts, model_facts: Mapping[str, Any]) -> bool:
        """Whether a folder that describes the model's file has to be made before the start."""

    def launch(self, context: LaunchContext) -> Launch:
        """The command. Raises EngineRefusal."""

    def probe_request(self, task: Task, served_name: str, *, chat: bool = True) -> tuple[str, dict[str, Any]]:
        """Path and JSON body of the question that proves readiness."""

    def wants_completion(self, task: Task, status: int, body: Any) -> bool:
        """Whether a refused chat question should be asked again as a plain completion."""

    def read_answer(self, task: Task, body: Any, most: int = SHORT) -> str | None:
        """The answer in the response body, at most `most` characters; None when it holds no token, vector or score."""

    def was_cut(self, body: Any) -> bool:
        """Whether the text ended because it reached the number of tokens that was asked for."""


def command_preview(launch: Launch, *, port: int | None = None) -> str:
    """The command as a person could paste it into a shell; for show only. Secrets stand as $NAME; those
    that settings hold themselves are hidden.
    """
    argv = [str(port) if port is not None and arg == "{port}" else arg for arg in mask(launch.argv)]
    words = [f"{name}={shlex.quote(value)}" for name, value in sorted(mask(launch.env).items())]
    words += [f'{name}="${name}"' for name in sorted(launch.secret_env)]
    if launch.gpu_uuids:
        words.append(f"CUDA_VISIBLE_DEVICES={shlex.quote(','.join(launch.gpu_uuids))}")
    return " ".join([*words, *(shlex.quote(arg) for arg in argv)])


def masked_env(launch: Launch) -> dict[str, str]:
    """The environment to keep with the run: secrets are named, their values are not."""
    return {**launch.env, **dict.fromkeys(launch.secret_env, "••••••")}


def version_key(version: str) -> tuple[int, ...]:
    """Versions in order: "0.32.0+cpu" → (0, 32, 0). A release is later than its own rc; unknown text sorts first."""
    found = re.match(r"v?(\d+(?:\.\d+)*)(?:\.?(?:rc|a|b|dev)(\d+))?", version)
    if not found:
        return ()
    parts = [int(part) for part in found[1].split(".")][:4]
    parts += [0] * (4 - len(parts))
    return (*parts, -1, int(found[2])) if found[2] else (*parts, 0)
