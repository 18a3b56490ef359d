"""What a class of failures proposes beyond its rule: with what is known of the model and of the place. Pure."""

from __future__ import annotations

from collections.abc import Callable

from deployments.mending import edits
from deployments.mending.around import Around
from deployments.mending.fix import Effect, Fix
from deployments.mending.making import patch_fix
from deployments.spec import DeploymentSpec

AGAIN = 45  # how often the same start goes well the next time, where it may
TASKS = ("generate", "embed", "score")
FLOATS = ("bfloat16", "float16", "float32")
# Said by role and word by word, which any model can go on from; of one that was not taught to chat no more can be had.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def again(chance: int = AGAIN, holder: str = "") -> Fix:
    """The same start once more, on a port that the host picks anew."""
    fix = Fix("again", "fix.again_port", chance=chance)
    return fix.told(Effect(True, "effect.port_of", {"holder": holder})) if holder else fix


def of_class(code: str, spec: DeploymentSpec, around: Around) -> list[Fix]:
    """The fixes that the class itself proposes here."""
    make = _OF_CLASS.get(code)
    return make(spec, around) if make is not None else []


def _cache_of(spec: DeploymentSpec, around: Around) -> int:
    """GiB for conversations on a CPU; 0 on a GPU, or where it is not known."""
    return 0 if around.on_gpu else int(spec.kv_cache_gib or around.kv_cache_gib or 0)


def _cache(spec: DeploymentSpec, around: Around, to: int, chance: int, cost: str) -> list[Fix]:
    was = _cache_of(spec, around)
    return patch_fix(spec, "kv_cache_gib", {"kv_cache_gib": to}, to, chance=chance, cost=cost, before=was)


def _killed(spec: DeploymentSpec, around: Around) -> list[Fix]:
    was = _cache_of(spec, around)
    if was >= 2:
        return _cache(spec, around, was // 2, 78, "context")
    return [] if around.on_gpu else [Fix("again", "fix.again", chance=AGAIN)]


def _no_cache(spec: DeploymentSpec, around: Around) -> list[Fix]:
    was = _cache_of(spec, around)
    return _cache(spec, around, was * 2, 90, "memory") if was else []


def _less_cache(spec: DeploymentSpec, around: Around) -> list[Fix]:
    was = _cache_of(spec, around)
    return _cache(spec, around, was // 2, 70, "context") if was >= 2 else []


def _task(spec: DeploymentSpec, around: Around) -> list[Fix]:
    task = next((task for task in TASKS if task in around.tasks and task != spec.task), "")
    return patch_fix(spec, "task", {"task": task}, task, chance=88) if task else []


def _own_code(spec: DeploymentSpec, around: Around) -> list[Fix]:
    if not around.own_code:
        return []
    return [Fix("permission", "fix.code", link="code", target=around.model, chance=60, cost="safety")]


def _unknown_kind(spec: DeploymentSpec, around: Around) -> list[Fix]:
    """After a newer engine (the rule's) and the model's own code: no engine knows it yet."""
    other = Fix("model", "fix.other_model", link="models", chance=35, cost="quality")
    return [*_own_code(spec, around), other]


def _fetch(spec: DeploymentSpec, around: Around) -> list[Fix]:
    """Engines start without network: whatever they look for has to lie on the host."""
    if around.repairable:
        return [Fix("repair", "fix.repair", {"path": around.copy_path}, link="repair", target=around.copy, chance=86,
                    cost="time").told(Effect(True, "effect.only_damaged"))]  # fmt: skip
    return [Fix("repair", "fix.fetch", link="model", target=around.model, chance=84, cost="time")]


def _own_format(spec: DeploymentSpec, around: Around) -> list[Fix]:
    """The number format in which the model was made: then all parts have the same. On a CPU the plain one, since some
    calculate wrongly in bfloat16 (docs/engines.md).
    """
    now, to = edits.value_of(spec, "dtype"), around.dtype if around.on_gpu else "float32"
    if to not in FLOATS or now == to:
        return []
    return patch_fix(spec, "dtype", edits.with_option(spec, "dtype", to), to, chance=72, before=now)


def plain_template(spec: DeploymentSpec, around: Around) -> list[Fix]:
    if edits.value_of(spec, "chat_template") is not None:
        return []
    patch = edits.with_option(spec, "chat_template", PLAIN_TEMPLATE)
    return [Fix("patch", "fix.plain_template", patch=patch, option="chat_template", chance=55, cost="quality")]


def _wait_longer(spec: DeploymentSpec, around: Around) -> list[Fix]:
    return [Fix("again", "fix.again", chance=60)]


_OF_CLASS: dict[str, Callable[[DeploymentSpec, Around], list[Fix]]] = {
    "mem.host_oom_killed": _killed,
    "mem.kv_none": _no_cache,
    "mem.gpu_busy": _less_cache,  # on a CPU the engine says it in the same words
    "mem.cpu_kv_space": _less_cache,
    "config.runner_mismatch": _task,
    "arch.unsupported": _unknown_kind,
    "arch.transformers_old": _own_code,
    "arch.none": _own_code,
    "hub.gated": _fetch,
    "hub.not_found": _fetch,
    "hub.tls": _fetch,
    "hub.no_config": _fetch,
    "hub.repo_id_invalid": _fetch,
    "dtype.mismatch": _own_format,
    "tok.chat_template_runtime": plain_template,
    "start.hung": _wait_longer,
    "serve.hung": _wait_longer,
    "run.engine_dead": _wait_longer,
    "run.worker_died": _wait_longer,
}
