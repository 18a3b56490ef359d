"""What helps where nothing was started: fixes for what the planner or the engine's adapter refused, and for a start
that took too long. Pure. Reasons are {code, params} as rows keep them; what would make it fit is the planner's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from deployments.diagnosis.result import Offer
from deployments.diagnosis.slips import meant
from deployments.engines import parsers
from deployments.mending import edits
from deployments.mending.around import Around
from deployments.mending.choosing import parser_fixes
from deployments.mending.classes import of_class
from deployments.mending.fix import Fix
from deployments.mending.making import patch_fix, ranked
from deployments.mending.turn import left_out
from deployments.spec import DeploymentSpec

LONGEST_START_S = 86_400.0
Reason = Mapping[str, Any]


def fixes_of(reason: Reason, spec: DeploymentSpec, around: Around) -> list[Fix]:
    """For a reason and the reasons that it lists, the most promising first."""
    found: list[Fix] = []
    for code, params in _reasons(reason):
        make = _MADE.get(code)
        if make is None and code.startswith("option."):
            make = _drop_flag
        found += make(params, spec, around) if make is not None else []
    return ranked(found)


def _reasons(reason: Reason) -> Iterator[tuple[str, Mapping[str, Any]]]:
    params = reason.get("params") or {}
    yield str(reason.get("code") or ""), params
    for item in params.get("candidates") or []:
        yield str(item.get("code") or ""), item.get("params") or {}


def _name(params: Mapping[str, Any]) -> str:
    return str(params.get("flag") or "").lstrip("-").replace("-", "_")


def _drop_flag(params: Mapping[str, Any], spec: DeploymentSpec, around: Around) -> list[Fix]:
    name = _name(params)
    return left_out(Offer("drop", name, chance=80), spec, around) if name else []


def _unknown(params: Mapping[str, Any], spec: DeploymentSpec, around: Around) -> list[Fix]:
    """Misspelt: the flag that was surely meant, with the same value; else left out. One that only looks alike is asked
    about in the words of the refusal, and is no fix.
    """
    name, near = _name(params), str(params.get("near") or "").lstrip("-").replace("-", "_")
    patch = edits.renamed(spec, name, near) if meant(name, [near]) else None  # an old refusal may hold a guess
    found = _drop_flag(params, spec, around)
    if patch is not None:
        found.append(Fix("patch", "fix.rename", {"name": name, "to": near}, patch=patch, option=name, chance=85))
    return found


def _choice(params: Mapping[str, Any], spec: DeploymentSpec, around: Around) -> list[Fix]:
    """A slip is corrected; what is no slip is left out, since a guess would set what nobody asked for."""
    name, choices = _name(params), [str(choice) for choice in params.get("choices") or []]
    to = meant(str(params.get("value")), choices)
    found = _drop_flag(params, spec, around)
    if name in parsers.OPTIONS:
        return found + parser_fixes(spec, name, around, choices)
    if to is not None and found:
        found += patch_fix(spec, name, edits.with_option(spec, name, to), to, chance=85)
    return found


def _range(params: Mapping[str, Any], spec: DeploymentSpec, around: Around) -> list[Fix]:
    name, value = _name(params), params.get("value")
    low, high = params.get("low"), params.get("high")
    found = _drop_flag(params, spec, around)
    numbers = [number for number in (value, low, high) if isinstance(number, int | float)]
    if found and len(numbers) == 3 and name != "gpu_memory_utilization":
        to = min(max(numbers[0], numbers[1]), numbers[2])
        to = int(to) if float(to).is_integer() else to
        found += patch_fix(spec, name, edits.with_option(spec, name, to), to, chance=70)
    return found


def _drop_env(params: Mapping[str, Any], spec: DeploymentSpec, around: Around) -> list[Fix]:
    name = str(params.get("name") or "")
    patch = edits.without_env(spec, name)
    if patch is None:
        return []
    return [Fix("patch", "fix.env_drop", {"name": name}, patch=patch, option=f"env.{name}", chance=80)]


def _divisible(size: str) -> Callable[[Mapping[str, Any], DeploymentSpec, Around], list[Fix]]:
    """The largest number of GPUs below the wanted one that divides this size."""

    def made(params: Mapping[str, Any], spec: DeploymentSpec, around: Around) -> list[Fix]:
        whole, parts = params.get(size), params.get("parts")
        if not isinstance(whole, int) or not isinstance(parts, int) or parts < 2:
            return []
        to = next((n for n in range(parts - 1, 0, -1) if whole % n == 0), 1)
        return patch_fix(spec, "gpu_count", edits.with_gpus(spec, to), to, chance=90, cost="speed", before=parts)

    return made


def _to_the_gpus(params: Mapping[str, Any], spec: DeploymentSpec, around: Around) -> list[Fix]:
    gpus, parts = params.get("gpus"), params.get("parts")
    if not isinstance(gpus, int):
        return []
    return patch_fix(spec, "gpu_count", edits.with_gpus(spec, gpus), gpus, chance=85, before=parts)


def _code(params: Mapping[str, Any], spec: DeploymentSpec, around: Around) -> list[Fix]:
    return [Fix("permission", "fix.code", link="code", target=around.model, chance=85, cost="safety")]


def _plugin(params: Mapping[str, Any], spec: DeploymentSpec, around: Around) -> list[Fix]:
    if around.plugin != "click" or around.runtime is None:
        return []
    return [Fix("package", "fix.plugin", link="plugin", target=around.runtime.id, chance=80, cost="time")]


def _install(params: Mapping[str, Any], spec: DeploymentSpec, around: Around) -> list[Fix]:
    return [Fix("runtime", "fix.install", {"host": around.host_name}, link="install", target=around.host, chance=75,
                cost="time")]  # fmt: skip


def _free(field: str, empty: Any) -> Callable[[Mapping[str, Any], DeploymentSpec, Around], list[Fix]]:
    """Let the planner choose again."""

    def made(params: Mapping[str, Any], spec: DeploymentSpec, around: Around) -> list[Fix]:
        if getattr(spec, field) == empty:
            return []
        return [Fix("patch", f"fix.free_{field}", patch={field: empty}, option=field, chance=85)]

    return made


def _look(params: Mapping[str, Any], spec: DeploymentSpec, around: Around) -> list[Fix]:
    if around.repairable:
        return [Fix("repair", "fix.repair", {"path": around.copy_path}, link="repair", target=around.copy, chance=85,
                    cost="time")]  # fmt: skip
    return [Fix("repair", "fix.look", {"path": params.get("path") or around.copy_path}, link="model",
                target=around.model, chance=70, cost="time")]  # fmt: skip


def _more_time(params: Mapping[str, Any], spec: DeploymentSpec, around: Around) -> list[Fix]:
    to = min(LONGEST_START_S, spec.start_deadline_s * 2)
    if to <= spec.start_deadline_s:
        return []
    minutes = {"minutes": round(to / 60), "before": round(spec.start_deadline_s / 60)}
    return [Fix("patch", "fix.more_time", minutes, patch={"start_deadline_s": to}, option="start_deadline_s",
                chance=65, cost="time")]  # fmt: skip


_MADE: dict[str, Callable[[Mapping[str, Any], DeploymentSpec, Around], list[Fix]]] = {
    "flag.unknown": _unknown,
    "flag.removed": _drop_flag,
    "flag.device_other": _drop_flag,
    "flag_not_allowed": _drop_flag,
    "flag_value_not_allowed": _drop_flag,
    "option.not_a_choice": _choice,
    "option.out_of_range": _range,
    "task.other_runner": lambda params, spec, around: _drop_flag({"flag": "--runner"}, spec, around),
    "env.denied": _drop_env,
    "env.denied_house": _drop_env,
    "env.bad_value": _drop_env,
    "environment_not_allowed": _drop_env,
    "parallel.heads": _divisible("heads"),
    "parallel.kv_heads": _divisible("kv_heads"),
    "parallel.vocabulary": _divisible("vocab"),
    "parallel.not_the_gpus": _to_the_gpus,
    "model.remote_code": _code,
    "code_changed": _code,
    "gguf.plugin_missing": _plugin,
    "runtime.none": _install,
    "runtime.not_for_cpu": _install,
    "runtime.not_for_gpu": _install,
    "runtime.gone": _free("runtime_id", None),
    "runtime.elsewhere": _free("runtime_id", None),
    "host.gone": _free("host_id", None),
    "gpu.gone": _free("gpu_uuids", []),
    "gpu_uuid": _free("gpu_uuids", []),
    "copy.broken": _look,
    "copy.vanished": _look,
    "path_missing": _look,
    "start.deadline": _more_time,
    "start.hung": lambda params, spec, around: [
        *of_class("start.hung", spec, around),
        *_more_time(params, spec, around),
    ],
    "serve.hung": lambda params, spec, around: of_class("serve.hung", spec, around),
}
