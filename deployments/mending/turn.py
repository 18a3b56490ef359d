"""What the diagnosis offers, turned into typed fixes for this spec and this host. Pure.

An offer that the spec or the host cannot use (an option that nobody set is to be left out, a variable that may not be
set, a flag that this version lacks) gives no fix. Whether the planner accepts a patch is asked afterwards.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from deployments.diagnosis.offers import KV_SPACE, RENAMED
from deployments.diagnosis.result import Offer
from deployments.diagnosis.rules import BY_CODE
from deployments.engines import denied, parsers
from deployments.mending import edits
from deployments.mending.around import Around, Form, Holder
from deployments.mending.choosing import choose, parser_fixes
from deployments.mending.classes import AGAIN, again, of_class
from deployments.mending.fix import Effect, Fix
from deployments.mending.making import patch_fix, ranked
from deployments.mending.titles import effects_of, title_of
from deployments.spec import DeploymentSpec

# What a person gets where nobody said, as far as the number matters: a smaller one is then tried.
DEFAULTS: dict[str, Any] = {"max_num_batched_tokens": 2048, "max_num_seqs": 64}
PORTS = ("port", "master_port")  # the host picks them anew at each start
SPLIT = ("tensor_parallel_size", "tp_size")
# Left out together: what one of them says makes no sense without the other.
TOGETHER = {
    "enable_lora": ("lora_modules", "max_lora_rank", "max_loras"),
    "tool_call_parser": ("enable_auto_tool_choice",),
    "enable_auto_tool_choice": ("tool_call_parser",),
}
SAME_VALUE = ("max_model_len", "gpu_memory_utilization", "tensor_parallel_size", "kv_cache_memory_bytes")
PACKAGE = re.compile(r"(?:(?:--upgrade|--force-reinstall) )?[A-Za-z0-9][\w.<>=\[\], -]{0,100}")
MOST_HOLDERS = 2
SMALL_SHARE, SMALL_CHANCE = 0.2, 40


def fixes_of(code: str, offers: Iterable[Offer], spec: DeploymentSpec, around: Around) -> list[Fix]:
    """Every fix of a class for this spec and host, the most promising first; none twice."""
    found: list[Fix] = []
    for offer in offers:
        found += _TURN.get(offer.kind, _nothing)(offer, spec, around)
    found += of_class(code, spec, around)
    if code in BY_CODE and BY_CODE[code].curable and not any(fix.kind == "again" for fix in found):
        found.append(Fix("again", "fix.again", chance=AGAIN))
    return ranked(found)


# --- one function for each kind of offer ------------------------------------------------------------------------------


def _nothing(offer: Offer, spec: DeploymentSpec, around: Around) -> list[Fix]:
    return []


def _set(offer: Offer, spec: DeploymentSpec, around: Around) -> list[Fix]:
    name, to = offer.name, typed(offer.after)
    if name in PORTS:
        return [again(offer.chance, around.port_holder)]
    if name == "model":
        return _file(offer, around)
    if name == KV_SPACE:
        return _env(offer, spec, around)
    if name in RENAMED and isinstance(to, str) and offer.before is None and to == RENAMED[name]:
        return _rename(offer, spec, to)
    if name in denied.FLAGS or (around.flags and name not in around.flags and name not in SPLIT):
        return []
    if name == "gpu_memory_utilization" and not around.on_gpu:
        return []  # there is no such share on a CPU
    if name in SPLIT:
        return _split(offer, spec, around, to)
    if name in parsers.OPTIONS and offer.about != "back":
        return parser_fixes(spec, name, around, _choices(offer))
    back = to is not None and offer.about == "back"
    if to in (None, ""):
        to = DEFAULTS.get(name)
        now = edits.value_of(spec, name)
        if to is None or (isinstance(now, int) and now <= to):
            return _settings(offer, name)
    now = edits.value_of(spec, name)
    if (
        name == "max_model_len"
        and offer.about not in ("back", "longer")
        and isinstance(now, int)
        and isinstance(to, int)
        and to >= now
    ):
        return []  # the log is of a longer one: a longer conversation never helps
    chance = offer.chance
    if name == "gpu_memory_utilization" and not back and isinstance(to, float) and to < SMALL_SHARE:
        chance = SMALL_CHANCE  # few models fit into so little; what holds the rest is the better question
    return patch_fix(spec, name, edits.with_option(spec, name, to), to, chance=chance, cost=offer.cost,
                     before=offer.before, back=back)  # fmt: skip


def typed(value: Any) -> Any:
    """As JSON means it: rules write their fixed values as text."""
    if not isinstance(value, str):
        return value
    if value in ("true", "false"):
        return value == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _settings(offer: Offer, name: str) -> list[Fix]:
    """A value that only a person knows."""
    if choices := _choices(offer):
        return [choose(name, choices)]
    code, params = title_of(name, None, None)
    return [Fix("settings", code, params, text=offer.text, option=name, link="settings",
                chance=offer.chance, cost=offer.cost)]  # fmt: skip


def _choices(offer: Offer) -> list[str]:
    """The values that the engine named as allowed."""
    told = offer.params.get("choices")
    return [str(name) for name in told] if isinstance(told, list) else []


def _split(offer: Offer, spec: DeploymentSpec, around: Around, to: Any) -> list[Fix]:
    if not isinstance(to, int) or to < 1:
        return []
    was = offer.before or edits.value_of(spec, "tensor_parallel_size") or len(spec.gpu_uuids) or spec.gpu_count
    if str(to) == str(was):
        return []
    if not around.on_gpu:
        return _parts(offer, spec, to, was)
    patch = edits.with_gpus(spec, to)
    return patch_fix(spec, "gpu_count", patch, to, chance=offer.chance, cost=offer.cost, before=was)


def _parts(offer: Offer, spec: DeploymentSpec, to: int, was: Any) -> list[Fix]:
    """On a CPU no GPUs are counted: the model is split or not."""
    name = SPLIT[0]
    patch = edits.with_option(spec, name, to) if to > 1 else edits.without_option(spec, name)
    if patch is None:
        return []
    code = "fix.parts" if to > 1 else "fix.parts_one"
    fix = Fix("patch", code, {"from": was, "to": to}, patch=patch, option=name, chance=offer.chance, cost=offer.cost)
    return [fix.told(*effects_of(name, offer.cost, was, to))]


def _file(offer: Offer, around: Around) -> list[Fix]:
    """The model itself: a GGUF file of the folder, else whatever a new look at the folder finds."""
    found = [
        Fix("patch", "fix.gguf_file", {"name": form.name}, patch={"artifact_id": form.artifact}, option="artifact_id",
            chance=offer.chance)
        for form in around.ggufs[:2]
    ]  # fmt: skip
    look = Fix("repair", "fix.look", {"path": around.copy_path}, link="model", target=around.model,
               chance=offer.chance - 10)  # fmt: skip
    return found or [look]


def _rename(offer: Offer, spec: DeploymentSpec, to: str) -> list[Fix]:
    new, sign, value = to.partition("=")
    if sign:
        gone = edits.without_option(spec, offer.name)
        if gone is None:
            return []
        gone["options"] = {**gone.get("options", spec.options), new: value}
        if denied.check_content(new, f"--{new}", value, ()) is not None:
            return left_out(offer, spec, Around())
        patch: edits.Patch | None = gone
    elif new in SAME_VALUE:
        patch = edits.renamed(spec, offer.name, new)
    else:
        return left_out(offer, spec, Around())
    if patch is None:
        return []
    fix = Fix("patch", "fix.rename", {"name": offer.name, "to": new}, patch=patch, option=offer.name,
              chance=offer.chance, cost=offer.cost)  # fmt: skip
    return [fix]


def left_out(offer: Offer, spec: DeploymentSpec, around: Around) -> list[Fix]:
    """Left out, with what makes no sense without it."""
    names = [name.strip() for name in offer.name.split(",")]
    names += [other for name in names for other in TOGETHER.get(name, ())]
    patch: edits.Patch = {}
    current = spec
    dropped: list[str] = []
    for name in dict.fromkeys(names):
        gone = edits.without_option(current, name)
        if gone is not None:
            patch |= gone
            current, dropped = current.model_copy(update=gone), [*dropped, name]
    if not dropped or not set(offer.name.replace(" ", "").split(",")) & set(dropped):
        return []
    fix = Fix("patch", "fix.drop", {"names": dropped}, patch=patch, option=dropped[0], chance=offer.chance,
              cost=offer.cost)  # fmt: skip
    return [fix.told(*effects_of(dropped[0], offer.cost, None, None))]


def _env(offer: Offer, spec: DeploymentSpec, around: Around) -> list[Fix]:
    value = offer.after
    if value in (None, ""):
        return _env_open(offer)
    if offer.name == KV_SPACE:
        size = int(value)
        was = spec.kv_cache_gib or around.kv_cache_gib
        if around.on_gpu or size < 1 or size == was:
            return []
        return patch_fix(spec, "kv_cache_gib", {"kv_cache_gib": size}, size, chance=offer.chance, cost=offer.cost,
                         before=was)  # fmt: skip
    if denied.check_env({offer.name: str(value)}):
        return []
    patch = edits.with_env(spec, offer.name, str(value))
    if patch["env"] == spec.env:
        return []
    fix = Fix("patch", "fix.env", {"name": offer.name, "to": str(value)}, patch=patch, option=f"env.{offer.name}",
              chance=offer.chance, cost=offer.cost)  # fmt: skip
    return [fix.told(*effects_of(offer.name, offer.cost, None, None))]


def _env_open(offer: Offer) -> list[Fix]:
    """A variable whose value only a person knows, where settings may have it; a secret is named, not written."""
    plain = not denied.check_env({offer.name: "x"})
    if not plain and denied.check_env_secrets({offer.name: "x"}, {}):
        return []
    code = "fix.env_open" if plain else "fix.secret_open"
    return [Fix("settings", code, {"name": offer.name}, option=f"env.{offer.name}", link="settings",
                chance=offer.chance, cost=offer.cost)]  # fmt: skip


def _env_drop(offer: Offer, spec: DeploymentSpec, around: Around) -> list[Fix]:
    patch = edits.without_env(spec, offer.name)
    if patch is None:
        return []
    return [Fix("patch", "fix.env_drop", {"name": offer.name}, patch=patch, option=f"env.{offer.name}",
                chance=offer.chance, cost=offer.cost)]  # fmt: skip


def _runtime(offer: Offer, spec: DeploymentSpec, around: Around) -> list[Fix]:
    """An engine that lies on the host is one click; another one has to be installed first."""
    if offer.about == "other_engine":
        return []  # Berth starts one kind
    newer = offer.about == "newer"
    engine = around.newer() if newer else around.other()
    found = []
    if engine is not None:
        patch = {"host_id": around.host, "runtime_id": engine.id}
        told = Effect(True, "effect.worked" if engine.worked else "effect.here", {"host": around.host_name})
        fix = Fix("patch", "fix.runtime", {"version": engine.version}, patch=patch, option="runtime_id",
                  chance=offer.chance, cost="")  # fmt: skip
        found.append(fix.told(told))
    install = Fix("runtime", "fix.install_newer" if newer else "fix.install", {"host": around.host_name},
                  text="" if newer else offer.text, link="install", target=around.host, chance=offer.chance - 5,
                  cost=offer.cost)  # fmt: skip
    return [*found, install]


def _package(offer: Offer, spec: DeploymentSpec, around: Around) -> list[Fix]:
    name = offer.name
    if offer.about == "gguf_plugin" and around.plugin == "click" and around.runtime is not None:
        return [Fix("package", "fix.plugin", {"package": name}, link="plugin", target=around.runtime.id,
                    chance=offer.chance, cost=offer.cost)]  # fmt: skip
    if not PACKAGE.fullmatch(name):  # it may come out of a log, and somebody will paste it into a shell
        return []
    words = [around.python or "python", "-m", "pip", "install", *name.split()]
    code = "fix.package_anew" if name.startswith("--") else "fix.package"
    bare = " ".join(word for word in name.split() if not word.startswith("--"))
    return [Fix("package", code, {"package": bare}, command=shlex.join(words), chance=offer.chance,
                cost=offer.cost)]  # fmt: skip


def _repair(offer: Offer, spec: DeploymentSpec, around: Around) -> list[Fix]:
    if not around.repairable:
        return [Fix("repair", "", text=offer.text, link="model", target=around.model, chance=offer.chance - 10,
                    cost=offer.cost)]  # fmt: skip
    file = offer.after if isinstance(offer.after, str) else ""
    code, params = ("fix.repair_file", {"file": file}) if file else ("fix.repair", {"path": around.copy_path})
    fix = Fix("repair", code, params, link="repair", target=around.copy, chance=offer.chance, cost=offer.cost)
    return [fix.told(Effect(True, "effect.only_damaged"))]


def _permission(offer: Offer, spec: DeploymentSpec, around: Around) -> list[Fix]:
    return [Fix("permission", "fix.code", link="code", target=around.model, chance=offer.chance, cost=offer.cost)]


def _host(offer: Offer, spec: DeploymentSpec, around: Around) -> list[Fix]:
    """Something on the machine; where it is known who holds what, that is named instead."""
    plain = Fix("host", "", text=offer.text, command=offer.command, chance=offer.chance, cost=offer.cost)
    if offer.about == "gpu_memory" and not around.on_gpu:
        held = Fix("host", "fix.free_ram", command="free -g", chance=offer.chance, cost=offer.cost)
        return [*_held(around, offer.chance, on_gpu=False), held]
    if offer.about == "gpu_memory":
        return [*_held(around, offer.chance, on_gpu=True)] or [plain]
    if offer.about == "ram":
        return [*_held(around, offer.chance, on_gpu=False), plain]
    if offer.about == "port" and around.port_holder:
        return [Fix("host", "fix.end_port", {"holder": around.port_holder}, command=offer.command,
                    chance=offer.chance, cost=offer.cost)]  # fmt: skip
    return [plain]


def _held(around: Around, chance: int, *, on_gpu: bool) -> Iterator[Fix]:
    """What could stop or end so that memory is free: ours by a click on its page, others by a command."""
    holders = [holder for holder in around.holders if (holder.gpu is not None) == on_gpu]
    for holder in sorted(holders, key=lambda holder: -holder.mib)[:MOST_HOLDERS]:
        params: dict[str, Any] = {"name": holder.name, "mib": holder.mib, "gpu": holder.gpu}
        if not holder.name:
            code = "fix.stop_gpu_other" if on_gpu else "fix.stop_ram_other"
            yield Fix("stop", code, params, chance=chance - 5, cost="time")
        elif holder.deployment is not None:
            code = "fix.stop_gpu" if on_gpu else "fix.stop_ram"
            yield Fix("stop", code, params, link="deployment", target=holder.deployment, chance=chance, cost="time")
        elif holder.pid is not None:
            yield _end(holder, params, chance)


def _end(holder: Holder, params: dict[str, Any], chance: int) -> Fix:
    code = "fix.end_of" if holder.user else "fix.end"
    return Fix("host", code, {**params, "pid": holder.pid, "user": holder.user}, command=f"kill {holder.pid}",
               chance=chance - 5, cost="time")  # fmt: skip


def _model(offer: Offer, spec: DeploymentSpec, around: Around) -> list[Fix]:
    twin = _twin(offer, around)
    found = []
    if twin is not None:
        fix = Fix("patch", "fix.twin", {"name": twin.name}, patch={"artifact_id": twin.artifact},
                  option="artifact_id", chance=offer.chance, cost=offer.cost)  # fmt: skip
        found.append(fix.told(Effect(True, "effect.on_host"), *effects_of("artifact_id", offer.cost, None, None)))
    other = Fix("model", "", text=offer.text, link="models", chance=offer.chance - (20 if found else 0),
                cost=offer.cost)  # fmt: skip
    return [*found, other]


def _twin(offer: Offer, around: Around) -> Form | None:
    """A smaller form of the model that lies on the host; for another way to quantise, one that has another."""
    if offer.about == "smaller":
        return next(iter(around.twins), None)
    if offer.about == "other_form":
        return next((twin for twin in around.twins if twin.method != around.method), None)
    return None


_TURN: dict[str, Callable[[Offer, DeploymentSpec, Around], list[Fix]]] = {
    "set": _set,
    "drop": left_out,
    "env": _env,
    "env_drop": _env_drop,
    "runtime": _runtime,
    "package": _package,
    "repair": _repair,
    "permission": _permission,
    "host": _host,
    "model": _model,
}
