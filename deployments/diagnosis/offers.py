"""The numbers of offers: from the log, from what the panel knows, and from this run's settings. Pure.

A calculation gives the new value of an option, or None when the numbers that it needs are not known. Then the offer is
made without one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from deployments.diagnosis.result import Evidence, Offer
from deployments.diagnosis.rule import COSTS, Remedy, Rule
from deployments.diagnosis.rule import gettext_noop as _
from deployments.diagnosis.rules import BY_CODE
from deployments.diagnosis.slips import meant

# What each kind of remedy says when its rule says nothing of its own.
WORDS = {
    "set": _("Set %(name)s to %(to)s."),
    "change": _("Change %(name)s from %(from)s to %(to)s."),
    "renamed": _("Write %(to)s instead of %(name)s."),
    "set_open": _("Choose another value for %(name)s."),
    "drop": _("Leave out %(name)s."),
    "package": _("Install %(name)s in the engine's environment."),
    "env": _("Set the environment variable %(name)s to %(to)s."),
    "env_open": _("Set the environment variable %(name)s."),
    "env_drop": _("Leave out the environment variable %(name)s."),
    "back": _("Change %(name)s back to %(to)s: it worked with that before."),
    "without": _("Leave out %(name)s: it worked without it before."),
    "busy": _("Port %(port)s is held by %(holder)s."),
}
MOST_CHOICES = 100
KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"  # GiB
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
# Options that were renamed or removed: what to write instead ("" nothing).
RENAMED = {
    "swap_space": "", "disable_log_requests": "", "enable_reasoning": "", "num_scheduler_steps": "",
    "preemption_mode": "", "use_v2_block_manager": "", "worker_use_ray": "distributed_executor_backend=ray",
    "max_seq_len_to_capture": "", "max_context_len_to_capture": "",
    "guided_decoding_backend": "structured_outputs_config",
    "max_model_length": "max_model_len", "max_length": "max_model_len", "speculative_model": "speculative_config",
    "device": "", "task": "runner", "kv_cache_memory": "kv_cache_memory_bytes", "rope_scaling": "hf_overrides",
    "gpu_memory_utilisation": "gpu_memory_utilization", "tp": "tensor_parallel_size",
}  # fmt: skip
# Packages that only an option asks for: a part of the package's name, without signs, and the option.
NEEDED_BY = {
    "tensorizer": "load_format", "runai": "load_format", "fastsafetensors": "load_format",
    "instanttensor": "load_format", "lmcache": "kv_transfer_config", "nixl": "kv_transfer_config",
    "mooncake": "kv_transfer_config", "arcticinference": "speculative_config", "opentelemetry": "otlp_traces_endpoint",
    "deepep": "all2all_backend", "pplx": "all2all_backend",
}  # fmt: skip


@dataclass(frozen=True)
class Known:
    """All that a calculation may use. `log` are the named parts of the root line, `facts` those of the whole log."""

    log: Mapping[str, str]
    facts: Mapping[str, Any]
    evidence: Evidence

    def number(self, name: str) -> float | None:
        """A number of the root line."""
        try:
            return float(self.log[name].replace(",", "").rstrip("."))
        except (KeyError, ValueError):
            return None

    def said(self, name: str) -> Any:
        """An option as this run has it: as the panel knows it, else as the log shows it. None where neither says it."""
        shown = self.facts.get("options")
        return self.evidence.options.get(name, shown.get(name) if isinstance(shown, Mapping) else None)

    def option(self, name: str, default: float | None = None) -> float | None:
        """A number among this run's settings: those that the panel knows, else those that the log shows."""
        value = self.said(name)
        try:
            return float(value) if value is not None and not isinstance(value, bool) else default
        except (TypeError, ValueError):
            return default


def _whole(name: str) -> Callable[[Known], Any]:
    def value(known: Known) -> int | None:
        number = known.number(name)
        return None if number is None else int(number)

    return value


def _estimate(known: Known) -> int | None:
    """The longest context that fits, rounded down to a block of 16 tokens."""
    tokens = known.number("estimate")
    if tokens is None:
        need, have, length = known.number("need"), known.number("have"), known.number("length")
        if not need or have is None or length is None:
            return None
        tokens = length * have / need * 0.98
    return int(tokens) // 16 * 16 or None


def _free_util(known: Known) -> float | None:
    """The share of memory that is free, with one per cent to spare."""
    free, total = known.number("free"), known.number("total")
    free = known.evidence.gpu_free_gib if free is None else free
    total = known.evidence.gpu_total_gib if total is None else total
    if free is None or not total:
        return None
    share = math.floor(100 * free / total - 1) / 100
    weights = known.evidence.weights_gib
    enough = share >= 0.05 and (weights is None or share * total > weights + 1)
    return share if enough else None


def _shift(
    step: float, low: float, high: float, name: str = "gpu_memory_utilization", default: float | None = 0.9
) -> Any:
    def value(known: Known) -> float | None:
        now = known.option(name, default)
        new = None if now is None else round(min(high, max(low, now + step)), 2)
        return None if new == now else new

    return value


def _scaled(name: str, factor: float, default: float | None, of: str = "") -> Callable[[Known], Any]:
    """An option times a factor, as a power of two where it was one."""

    def value(known: Known) -> int | None:
        now = known.number(of) if of else None
        now = known.option(name, default) if now is None else now
        return None if now is None or now * factor < 1 else int(now * factor)

    return value


def _divisor(size: float | None, below: float | None) -> int | None:
    """The largest divisor of `size` that is not above `below`."""
    if not size or not below or below < 1 or size > 1e7:
        return None
    return next((n for n in range(int(below), 0, -1) if size % n == 0), 1)


def _tp_heads(known: Known) -> int | None:
    heads, tp = (
        known.number("heads") or known.evidence.heads,
        known.number("tp") or known.option("tensor_parallel_size"),
    )
    # Without a GPU each part takes a memory node of the processor.
    most = known.evidence.gpus or (known.evidence.numa_nodes if known.evidence.gpus == 0 else None)
    return _divisor(heads, min(tp, most or tp) if tp else None)


def _tp_divides(known: Known) -> int | None:
    size, tp = known.number("size"), known.number("tp")
    if not size or not tp:
        return None
    best = _divisor(size, tp - 1)
    while best and best > 1 and known.evidence.heads and known.evidence.heads % best:
        best = _divisor(size, best - 1)
    return best


def _half_tp(known: Known) -> int | None:
    tp = known.option("tensor_parallel_size") or known.option("tp_size")
    return int(tp) // 2 if tp and tp >= 2 else None


def _double_tp(known: Known) -> int | None:
    tp = int(known.option("tensor_parallel_size") or known.option("tp_size") or 1) * 2
    fits = known.evidence.gpus is not None and tp <= known.evidence.gpus
    heads = known.evidence.heads
    return tp if fits and (heads is None or heads % tp == 0) else None


def _gpus(known: Known) -> int | None:
    number = known.number("gpus")
    return known.evidence.gpus if number is None else int(number)


def _numa(known: Known) -> int | None:
    nodes = [node for node in known.log.get("nodes", "").split(",") if node.strip()]
    return len(nodes) or known.evidence.numa_nodes


def _rank(known: Known) -> int | None:
    rank = known.number("rank")
    return next((allowed for allowed in RANKS if rank is not None and allowed >= rank), None)


def _longer(known: Known) -> int | None:
    """What was asked for, rounded up to 1,024 tokens."""
    asked, length = known.number("asked"), known.number("length")
    return None if not asked or (length and asked <= length) else math.ceil(asked / 1024) * 1024


def _block(known: Known) -> int | None:
    block, multiple = known.number("block"), known.number("multiple")
    return int(max(1, math.ceil((block or 1) / multiple)) * multiple) if multiple else None


def _choice(known: Known) -> str | None:
    """The allowed value that was surely meant by the one that was refused."""
    return meant(known.log.get("value", ""), _choices(known))


def _choices(known: Known) -> list[str]:
    """The values that the engine names as allowed."""
    return re.findall(r"[\w.-]+", known.log.get("choices", "")[:2000])


def _asker(known: Known) -> str | None:
    """The option of this run that alone needs the package that is missing."""
    package = re.sub(r"[^a-z0-9]", "", (known.log.get("package") or known.log.get("name") or "").lower())
    for word, option in NEEDED_BY.items():
        value = known.said(option)
        loader = option == "load_format" and word not in str(value).lower().replace("_", "")
        if package and word in package and value not in (None, "", False) and not loader:
            return option
    return None


def _flag(known: Known) -> str | None:
    said = (known.log.get("flags") or known.log.get("flag") or "")[:2000]
    flags = re.findall(r"--?[A-Za-z][\w-]*", said) or [said]
    names = [flag.lstrip("-").replace("-", "_").partition("=")[0] for flag in flags]
    return ", ".join(name for name in dict.fromkeys(names) if name) or None


def _cpu_kv(known: Known) -> int | None:
    free = known.number("free") or known.evidence.host_free_gib
    room = None if free is None else int(free - (known.evidence.weights_gib or 0) - 1)
    return room if room and room > 0 else None


def _offload(known: Known) -> int | None:
    weights = known.evidence.weights_gib or known.facts.get("checkpoint_gib")
    total = known.evidence.gpu_total_gib
    need = None if weights is None or total is None else math.ceil(float(weights) - 0.85 * total)
    return need if need and need > 0 else None


def _shard(known: Known) -> str | None:
    found = re.search(r"[\w.-]+\.(?:safetensors|bin|pt|pth|gguf)", known.log.get("file", ""))
    return found[0] if found else None


def _gguf(known: Known) -> str | None:
    return known.evidence.gguf_files[0] if len(known.evidence.gguf_files) == 1 else None


CALCULATIONS: dict[str, Callable[[Known], Any]] = {
    "estimate": _estimate,
    "derived": _whole("derived"),
    "length": _whole("length"),
    "batched": _whole("batched"),
    "seqs": _whole("seqs"),
    "blocks": _whole("blocks"),
    "need": _whole("need"),
    "free_util": _free_util,
    "util_up": _shift(0.05, 0.1, 0.95),
    "util_down": _shift(-0.05, 0.1, 0.95),
    "fraction_up": _shift(0.05, 0.1, 0.95, "mem_fraction_static", None),
    "fraction_down": _shift(-0.05, 0.1, 0.95, "mem_fraction_static", None),
    "quarter_seqs": _scaled("max_num_seqs", 0.25, None, "seqs"),
    "half_batched": _scaled("max_num_batched_tokens", 0.5, None),
    "half_len": _scaled("max_model_len", 0.5, None),
    "half_ctx": _scaled("ctx_size", 0.5, None),
    "half_ubatch": _scaled("ubatch_size", 0.5, 512),
    "half_batch": _scaled("batch_size", 0.5, 2048),
    "half_layers": _scaled("n_gpu_layers", 0.5, None),
    "tp_heads": _tp_heads,
    "tp_divides": _tp_divides,
    "half_tp": _half_tp,
    "double_tp": _double_tp,
    "gpus": _gpus,
    "numa": _numa,
    "rank": _rank,
    "longer": _longer,
    "block": _block,
    "choice": _choice,
    "asker": _asker,
    "have": lambda known: known.log.get("have"),
    "want": lambda known: known.log.get("want"),
    "package": lambda known: known.log.get("package") or known.log.get("name"),
    "flag": _flag,
    "cpu_kv": _cpu_kv,
    "offload": _offload,
    "shard": _shard,
    "gguf_file": _gguf,
    "clip": lambda known: "the file given as the model" if known.log.get("arch") == "clip" else None,
}


def offers(rule: Rule, log: Mapping[str, str], facts: Mapping[str, Any], evidence: Evidence) -> tuple[Offer, ...]:
    """The remedies of a class with their numbers: what is ready and likely first; of two alike the cheaper first."""
    known = Known(log, facts, evidence)
    made = [offer for remedy in rule.remedies if (offer := _offer(remedy, known)) is not None]
    made += _back(rule, evidence) + _more_on_cpu(rule, known)
    return tuple(sorted(made, key=lambda offer: (-_worth(offer), offer.name)))


def _more_on_cpu(rule: Rule, known: Known) -> list[Offer]:
    """One request needs more than what is set aside: on a CPU that is a number of its own."""
    if rule.code != "mem.kv_lt_len" or known.evidence.numa_nodes is None:
        return []
    need, length, have = known.number("need"), known.number("length"), known.number("estimate")
    now = known.option(KV_SPACE)
    if need is None and length and have and now:
        need = now * length / have
    if need is None:
        return []
    params = {"name": KV_SPACE, "to": math.ceil(need)}
    return [Offer("env", KV_SPACE, now, params["to"], WORDS["env"], params, chance=82, cost="memory")]


def _worth(offer: Offer) -> float:
    return offer.chance - COSTS.get(offer.cost, 0) - (0 if offer.ready else 25)


def _back(rule: Rule, evidence: Evidence) -> list[Offer]:
    """Back to the value with which it worked, where the class has to do with that option."""
    named = {remedy.name for remedy in rule.remedies}
    return [
        Offer("set", name, now, then, WORDS["back"], {"name": name, "to": then}, chance=92, about="back")
        if then is not None
        else Offer("drop", name, now, None, WORDS["without"], {"name": name}, chance=92, about="back")
        for name, (then, now) in evidence.changed.items()
        if name in named
    ]


def _offer(remedy: Remedy, known: Known) -> Offer | None:
    name, to = _value(remedy.name, known), _value(remedy.to, known)
    if remedy.name.startswith("=") and name is None:
        return None
    name = str(name)
    if remedy.kind in ("set", "env") and remedy.to.startswith("=") and remedy.to[1:] in CALCULATIONS and to is None:
        to, ready = None, False
    else:
        ready = not remedy.to.startswith("=") or to is not None
    if remedy.kind == "drop" and RENAMED.get(name):
        new = RENAMED[name]
        return Offer(
            "set", name, None, new, WORDS["renamed"], {"name": name, "to": new}, chance=remedy.chance, cost=remedy.cost
        )
    before = known.option(name) if remedy.kind == "set" else None
    before = int(before) if isinstance(before, float) and before.is_integer() else before
    if remedy.kind == "set" and before is not None and to is not None and str(before) == str(to):
        return None  # it is so already, and it failed
    text = remedy.say or _words(remedy.kind, before, to)
    command = f"python -m pip install {name}" if remedy.kind == "package" else remedy.command
    params: dict[str, Any] = {"name": name, "from": before, "to": to}
    if remedy.to == "=choice" and (names := _choices(known)):
        params["choices"] = names[:MOST_CHOICES]
    return Offer(remedy.kind, name, before, to, text, params, command, remedy.chance, remedy.cost, ready, remedy.about)


def _words(kind: str, before: Any, to: Any) -> str:
    if kind == "set":
        return WORDS["set_open"] if to in (None, "") else WORDS["set"] if before is None else WORDS["change"]
    if kind == "env":
        return WORDS["env_open"] if to in (None, "") else WORDS["env"]
    return WORDS.get(kind, "")


def _value(text: str, known: Known) -> Any:
    if not text.startswith("="):
        return text or None
    calculation = CALCULATIONS.get(text[1:])
    return calculation(known) if calculation else None


def about_of(code: str, kept: Mapping[str, Any]) -> str:
    """What an offer is about that was kept without it: as the remedy of its class says that it was made of."""
    if kept.get("text") in (WORDS["back"], WORDS["without"]):
        return "back"
    rule = BY_CODE.get(code)
    remedies = rule.remedies if rule is not None else ()
    said = {(remedy.kind, remedy.say): remedy.about for remedy in remedies if remedy.say}
    plain = {(remedy.kind, remedy.name): remedy.about for remedy in remedies if not remedy.say}
    kind, text, name = (str(kept.get(key) or "") for key in ("kind", "text", "name"))
    return said.get((kind, text), plain.get((kind, name), ""))
