"""What a model will need on a GPU, before it is started. Pure: facts, options, a GPU and a version in, a plan out.

    plan = estimate(facts, Options(context=8192, tp=2), Gpu("H100-80GB", total_gib=79.19), "0.19.0")

Read `vllm.py` first: it is the sum; each part of it is a module of its own (weights, activation, overhead, graphs,
kv_cache), and `versions.py` holds everything that changed from one vLLM to the next.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from models_catalog.estimate import cpu, files, offload, sglang, unknown, versions, vllm
from models_catalog.estimate.case import Case, case_of
from models_catalog.estimate.gpus import Gpu
from models_catalog.estimate.learned import Lesson
from models_catalog.estimate.options import Options
from models_catalog.estimate.plan import Amount, Plan, Rank, Reason
from models_catalog.estimate.schemes import UNPACKED, Scheme, scheme_of
from models_catalog.estimate.versions import Version
from models_catalog.facts import Geometry, ModelFacts

__all__ = ["ENGINES", "Amount", "Gpu", "Lesson", "Options", "Plan", "Rank", "Reason", "estimate", "try_estimate"]

log = logging.getLogger(__name__)

ENGINES = ("vllm", "sglang", "llama.cpp", "ollama")


def estimate(
    facts: ModelFacts, options: Options, gpu: Gpu, engine_version: str = "", lesson: Lesson | None = None
) -> Plan:
    """The plan of one engine on GPUs of one kind; of unlike GPUs, name the smallest. `lesson` corrects the cache of
    vLLM on GPUs. Raises ValueError for an engine that is not in ENGINES."""
    if options.engine not in ENGINES:
        raise ValueError(f"unknown engine {options.engine!r}; known are {', '.join(ENGINES)}")
    if options.engine == "llama.cpp":
        return offload.llamacpp(facts, options, gpu, engine_version)
    if options.engine == "ollama":
        return offload.ollama(facts, options, gpu, engine_version)
    if facts.geometry is None:
        return unknown.nothing_known(facts, options, gpu, engine_version, Reason("model.unknown"))
    options = replace(options, kv_default=facts.kv_scheme)
    scheme = _scheme(facts, options)
    plan = _by_version(facts, facts.geometry, scheme or UNPACKED, options, gpu, engine_version, lesson)
    if scheme is None:
        told = options.scheme or (facts.quantisation.label if facts.quantisation else "")
        plan = unknown.unpacked(plan, options, Reason("scheme.unknown", {"scheme": told}))
    elif not options.scheme and files.far_from_files(facts, facts.geometry, scheme):
        plan = unknown.doubted(plan, Reason("weights.differ", files.difference(facts, facts.geometry, scheme)))
    if not facts.geometry.known:
        reason = Reason("model.unchecked", {"architecture": facts.architecture or facts.model_type})
        plan = unknown.widened(plan, facts, reason)
    return plan


def try_estimate(
    facts: ModelFacts, options: Options, gpu: Gpu, engine_version: str = "", lesson: Lesson | None = None
) -> Plan | None:
    """The same. None for facts that no model has, as a damaged file, a hub or an agent may tell them: one such model
    must not keep the others from theirs."""
    try:
        return estimate(facts, options, gpu, engine_version, lesson)
    except (ArithmeticError, ValueError, LookupError, TypeError) as exc:
        log.warning("no estimate for %s (%.80r): %.200r", facts.fingerprint[:12], facts.architecture, str(exc))
        return None


def _scheme(facts: ModelFacts, options: Options) -> Scheme | None:
    """By formula where the packing has one, else by the files' size. None: neither tells."""
    return scheme_of(facts, options.scheme) or files.scheme_of_files(facts)


def _by_version(
    facts: ModelFacts,
    geometry: Geometry,
    scheme: Scheme,
    options: Options,
    gpu: Gpu,
    engine_version: str,
    lesson: Lesson | None,
) -> Plan:
    """With the rules of the version; of an unknown one, with those of every era."""

    def case(version: Version) -> Case:
        longest = facts.context_length
        family = facts.model_type
        return case_of(geometry, scheme, options, gpu, version, longest=longest, family=family, lesson=lesson)

    newest = Version(versions.NEWEST)
    if options.engine == "sglang":
        return sglang.plan(case(newest), engine_version, frozenset(facts.plain_parts), longest=facts.context_length)
    version = versions.parse(engine_version)
    if version is None:
        plans = [_vllm(facts, case(Version(minor)), engine_version, certain=geometry.known) for minor in versions.ERAS]
        return unknown.hull(plans, Reason("version.unknown", {"version": engine_version}))
    if version.minor > versions.NEWEST:
        plan = _vllm(facts, case(newest), engine_version, certain=geometry.known)
        params = {"version": engine_version, "rules": f"0.{versions.NEWEST}"}
        return unknown.hull([plan], Reason("version.newer", params))
    if not versions.known(version):
        plan = _vllm(facts, case(Version(versions.OLDEST, engine_v0=True)), engine_version, certain=False)
        params = {"version": engine_version, "rules": f"0.{versions.OLDEST}"}
        return unknown.hull([plan], Reason("version.unchecked", params))
    return _vllm(facts, case(version), engine_version, certain=geometry.known)


def _vllm(facts: ModelFacts, case: Case, engine_version: str, *, certain: bool) -> Plan:
    make = cpu.plan if case.gpu.cpu else vllm.plan
    return make(case, engine_version, frozenset(facts.plain_parts), certain=certain, longest=facts.context_length)
