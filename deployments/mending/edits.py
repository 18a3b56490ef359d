"""One change of a spec, as the patch that makes it: the fields to set. Pure.

An option may have been typed among the further flags; there it is taken out, since twice is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from deployments.engines.base import EngineRefusal
from deployments.engines.options import normal_flag
from deployments.engines.tokens import expand
from deployments.planner.asked import SHORT, flags_of
from deployments.spec import DeploymentSpec

Patch = dict[str, Any]
SPLITS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")


def value_of(spec: DeploymentSpec, name: str) -> Any:
    """What the spec says of an option, typed as an option or among the further flags; None when nothing."""
    return next((value for key, value in flags_of(spec).items() if _plain(key) == name), None)


def with_option(spec: DeploymentSpec, name: str, value: Any) -> Patch:
    """The option gets this value."""
    patch: Patch = {"options": {**_options_without(spec, name), name: value}}
    args = _args_without(spec, name)
    return patch if args == spec.extra_args else {**patch, "extra_args": args}


def without_option(spec: DeploymentSpec, name: str) -> Patch | None:
    """The option is left out; None where the spec does not say it, so that leaving it out changes nothing."""
    options = _options_without(spec, name)
    args = _args_without(spec, name)
    patch: Patch = {}
    if len(options) != len(spec.options):
        patch["options"] = options
    if args != spec.extra_args:
        patch["extra_args"] = args
    return patch or None


def renamed(spec: DeploymentSpec, name: str, new: str) -> Patch | None:
    """The option's value under another name; None where the spec does not say it."""
    value = value_of(spec, name)
    gone = without_option(spec, name)
    if gone is None:
        return None
    options = gone.get("options", spec.options)
    return {**gone, "options": {**options, new: value}}


def with_gpus(spec: DeploymentSpec, count: int) -> Patch:
    """So many GPUs, one for each part: what splits the model otherwise is left out."""
    patch: Patch = {"gpu_count": count}
    current = spec
    for name in SPLITS:
        gone = without_option(current, name)
        if gone is not None:
            patch |= gone
            current = current.model_copy(update=gone)
    if spec.gpu_uuids:
        patch["gpu_uuids"] = spec.gpu_uuids[:count] if count <= len(spec.gpu_uuids) else []
    return patch


def with_env(spec: DeploymentSpec, name: str, value: str) -> Patch:
    return {"env": {**spec.env, name: value}}


def without_env(spec: DeploymentSpec, name: str) -> Patch | None:
    return {"env": {key: value for key, value in spec.env.items() if key != name}} if name in spec.env else None


def _options_without(spec: DeploymentSpec, name: str) -> dict[str, Any]:
    return {key: value for key, value in spec.options.items() if _plain(key) != name}


def _plain(name: str) -> str:
    return str(name).replace("-", "_")


def _args_without(spec: DeploymentSpec, name: str) -> list[str]:
    try:
        words = expand(spec.extra_args)
    except EngineRefusal:
        return spec.extra_args  # the adapter says what is wrong with them
    groups = list(_groups(words))
    kept = [group for group in groups if _name(group[0]) not in (name, f"no_{name}")]
    return spec.extra_args if len(kept) == len(groups) else [word for group in kept for word in group]


def _groups(words: list[str]) -> Iterator[list[str]]:
    """Each flag with the values that follow it."""
    group: list[str] = []
    for word in words:
        if re.match(r"-\D", word) and group:
            yield group
            group = []
        group.append(word)
    if group:
        yield group


def _name(word: str) -> str:
    head = word.partition("=")[0]
    return SHORT.get(head) or _plain(normal_flag(head).partition(".")[0].removeprefix("--"))
