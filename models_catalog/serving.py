"""Whether a model can be deployed now, and if not, why. Reads rows that its caller loaded; asks nothing itself."""

from collections.abc import Iterable
from typing import Any

from models_catalog.facts import Problem
from models_catalog.models import Artifact, Copy
from panel.fleet.models import Runtime


def obstacles(artifact: Artifact, copies: Iterable[Copy], runtimes: Iterable[Runtime]) -> list[dict[str, Any]]:
    """Reasons as {code, params}; an empty list means that it can be deployed.

    `copies` are the artifact's copies, `runtimes` the engines of all hosts that are present and work.
    """
    there = [copy for copy in copies if copy.present]
    if not there:
        return [{"code": "no_copy", "params": {}}]
    whole = [copy for copy in there if copy.usable]
    if not whole:
        best = min(there, key=lambda copy: len(copy.problems))
        known = [problem for problem in best.problems if Problem.model_validate(problem).blocking]
        return known or best.problems or [{"code": "not_usable", "params": {}}]
    reasons = []
    if not artifact.facts.get("tasks"):
        params = {"architecture": ", ".join(artifact.facts.get("architectures", [])[:1])}
        reasons.append({"code": "unknown_task", "params": params})
    if artifact.facts.get("needs_remote_code") and not artifact.model.allow_remote_code:
        reasons.append({"code": "code_not_allowed", "params": {}})
    return reasons or _engine_reasons(artifact, whole, list(runtimes))


def _engine_reasons(artifact: Artifact, copies: list[Copy], runtimes: list[Runtime]) -> list[dict[str, Any]]:
    hosts = {copy.host_id: copy.host.name for copy in copies}
    here = [runtime for runtime in runtimes if runtime.host_id in hosts and runtime.engine == "vllm"]
    params = {"hosts": sorted(hosts.values())}
    if not here:
        return [{"code": "no_engine", "params": params}]
    if artifact.format == "gguf" and not any(reads_gguf(runtime) for runtime in here):
        return [{"code": "gguf_needs_plugin", "params": params}]
    return []


def reads_gguf(runtime: Runtime) -> bool:
    """vLLM serves GGUF files through a plugin whose kernels need a GPU; what else it needs is made at the start."""
    return runtime.device != "cpu" and any("gguf" in str(plugin).lower() for plugin in runtime.plugins)


def verdicts(
    artifact: Artifact, copies: Iterable[Copy], runtimes: Iterable[Runtime]
) -> list[tuple[Runtime, list[dict[str, Any]]]]:
    """Each engine of the hosts that have a copy, with the reasons why it cannot serve this form; none: it can.

    What stands in the way of every engine (a damaged copy, code that is not allowed) is told by `obstacles`.
    """
    there: dict[int, list[Copy]] = {}
    for copy in copies:
        if copy.present:
            there.setdefault(copy.host_id, []).append(copy)
    here = [runtime for runtime in runtimes if runtime.host_id in there]
    return [(runtime, _engine_verdict(artifact, there[runtime.host_id], runtime)) for runtime in here]


def _engine_verdict(artifact: Artifact, copies: list[Copy], runtime: Runtime) -> list[dict[str, Any]]:
    if runtime.engine != "vllm":
        return [{"code": "engine_not_run", "params": {}}]
    if not any(copy.usable for copy in copies):
        return [{"code": "not_whole_there", "params": {}}]
    if artifact.format != "gguf":
        return []
    if runtime.device == "cpu":
        return [{"code": "gguf_needs_gpu", "params": {}}]
    return [] if reads_gguf(runtime) else [{"code": "gguf_no_plugin", "params": {}}]
