"""What can be said before anything is asked: of the model's files, of the settings, of the plan, of the host. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deployments.checklist import patches
from deployments.checklist.findings import Finding, Fix
from deployments.engines import arguments
from deployments.engines.base import Reason, RuntimeFacts
from deployments.engines.options import Schema
from deployments.placement import Change, Placement
from deployments.spec import DeploymentSpec

# Refusals of the adapter that are about the model's files or its permission, not about a setting.
OF_FILES = ("gguf.", "model.", "runtime.", "sidecar.")
SHM_MIB = 1024  # what the processes of several GPUs exchange by; a container has 64 MiB unless more is asked for
OPEN_FILES = 4096
LOG_MIB, CACHE_MIB = 512, 2048  # a whole log, and what an engine compiles for one model


# --- files ------------------------------------------------------------------------------------------------------------


def of_files(
    facts: Mapping[str, Any], problems: Iterable[Mapping[str, Any]], refusals: Iterable[Reason], spec: DeploymentSpec
) -> list[Finding]:
    """The model: are its files whole, can this engine read them, may its own code run, does it know how to chat?"""
    found = [Finding("warning", str(p["code"]), dict(p.get("params") or {})) for p in problems]
    found += [Finding("error", r.code, r.params, r.option) for r in refusals if r.code.startswith(OF_FILES)]
    chats = spec.task == "generate" and facts.get("chat_template") is False
    if chats and patches.value_of(spec, "chat_template") is None:
        found.append(Finding("warning", "check.no_chat_template"))
    return found


# --- settings ---------------------------------------------------------------------------------------------------------


def of_settings(
    spec: DeploymentSpec, runtime: RuntimeFacts, refusals: Iterable[Reason], notes: Iterable[Reason]
) -> list[Finding]:
    """Every flag against this engine's own parser: what it does not know, does not take, or has under another name."""
    schema = runtime.schema
    found = [_refused(spec, schema, r) for r in refusals if not r.code.startswith(OF_FILES)]
    found += [_changed(spec, schema, note) for note in notes if note.code.startswith("flag.")]
    values = arguments.Values(schema, runtime.device, runtime.version, ("/",))  # paths were judged by the adapter
    arguments.from_spec(values, spec.options, spec.extra_args)
    return found + _together(spec, values.set, schema)


def _refused(spec: DeploymentSpec, schema: Schema, reason: Reason) -> Finding:
    return Finding("error", reason.code, reason.params, reason.option, tuple(_ways_out(spec, schema, reason)))


def _ways_out(spec: DeploymentSpec, schema: Schema, reason: Reason) -> list[Fix]:
    """The likeliest first: the name or value that was probably meant, then without it."""
    name, params, fixes = reason.option, reason.params, []
    if near := str(params.get("near") or ""):
        fixes.append(
            Fix("fix.rename", {"flag": params.get("flag"), "to": near}, patches.renamed(spec, name, near, schema))
        )
    if meant := patches.nearest(params.get("value"), params.get("choices") or ()):
        fixes.append(Fix("fix.set", {"flag": params.get("flag"), "to": meant}, patches.put(spec, name, meant)))
    if params.get("flag"):
        fixes.append(Fix("fix.drop", {"flag": params["flag"]}, patches.drop(spec, name)))
    return [fix for fix in fixes if fix.patch]


def _changed(spec: DeploymentSpec, schema: Schema, note: Reason) -> Finding:
    """A flag that the adapter translates or leaves out by itself: settings may say it as this engine does."""
    fixes, to = [], note.params.get("to") or []
    if note.code == "flag.removed_no_effect":
        fixes = [Fix("fix.drop", {"flag": note.params.get("flag")}, patches.drop(spec, note.option))]
    elif len(to) == 1 and (option := schema.find(to[0])) is not None and option.kind not in ("bool", "json"):
        params = {"flag": note.params.get("flag"), "to": to[0]}
        fixes = [Fix("fix.rename", params, patches.renamed(spec, note.option, to[0], schema))]
    return Finding("note", note.code, note.params, note.option, tuple(fix for fix in fixes if fix.patch))


def _together(spec: DeploymentSpec, said: Mapping[str, Any], schema: Schema) -> list[Finding]:
    """Settings that make sense only together."""
    found = []

    def switch_on(name: str) -> tuple[Fix, ...]:
        option = schema.get(name)
        return (Fix("fix.add", {"flag": option.flag}, patches.put(spec, name, True)),) if option else ()

    auto, parser = bool(said.get("enable_auto_tool_choice")), said.get("tool_call_parser")
    if auto and not parser:
        without = Fix("fix.drop", {"flag": "--enable-auto-tool-choice"}, patches.drop(spec, "enable_auto_tool_choice"))
        found.append(Finding("error", "check.tools_without_parser", {}, "tool_call_parser", (without,)))
    if parser and not auto and schema.get("enable_auto_tool_choice"):
        found.append(
            Finding("warning", "check.parser_without_tools", {"parser": parser}, "enable_auto_tool_choice",
                    switch_on("enable_auto_tool_choice"))
        )  # fmt: skip
    return found + _adapters(said, switch_on("enable_lora"))


def _adapters(said: Mapping[str, Any], switch_on: tuple[Fix, ...]) -> list[Finding]:
    """Adapters (LoRA): are they switched on, and is there room for all at once?"""
    modules = said.get("lora_modules")
    count = len(modules) if isinstance(modules, list) else int(bool(modules))
    if not count:
        return []
    if not said.get("enable_lora"):
        return [Finding("warning", "check.lora_off", {"count": count}, "enable_lora", switch_on)]
    room = said.get("max_loras", 1)
    if isinstance(room, int) and count > room:
        return [Finding("note", "check.lora_in_turns", {"count": count, "room": room}, "max_loras")]
    return []


# --- the plan ---------------------------------------------------------------------------------------------------------

_HOW_SURE = {"tight": ("warning", "check.tight"), "unlikely": ("warning", "check.unlikely"),
             "unknown": ("note", "check.no_estimate")}  # fmt: skip


def of_plan(placed: Placement | None, reason: Mapping[str, Any], changes: Iterable[Change]) -> list[Finding]:
    """Where it would run and how surely; an error where no place takes it, with what would make it fit."""
    if placed is None:
        fixes = tuple(Fix(c.reason.code, c.reason.params, dict(c.patch)) for c in changes if c.patch)
        return [Finding("error", str(reason.get("code") or "place.none"), dict(reason.get("params") or {}), "", fixes)]
    level, code = _HOW_SURE.get(placed.level, ("", ""))
    return [Finding(level, code)] if code else []  # type: ignore[arg-type]  # of the table above


# --- the host ---------------------------------------------------------------------------------------------------------


def of_host(told: Mapping[str, Any], gpus: int) -> list[Finding]:
    """What the host told beside the engine's verdict: shared memory, open files, room on its disks."""
    found = []
    shm, files, disks = told.get("shm_mib"), told.get("open_files"), told.get("disks")
    if gpus > 1 and isinstance(shm, int) and shm < SHM_MIB:
        found.append(Finding("warning", "check.small_shm", {"free_mib": shm, "need_mib": SHM_MIB}))
    if isinstance(files, int) and 0 <= files < OPEN_FILES:  # -1: no limit
        found.append(Finding("warning", "check.few_files", {"files": files, "need": OPEN_FILES}))
    for name, need in (("log", LOG_MIB), ("cache", CACHE_MIB)):
        free = disks.get(name) if isinstance(disks, Mapping) else None
        if isinstance(free, int) and free < need:
            found.append(Finding("warning", f"check.disk_{name}", {"free_mib": free, "need_mib": need}))
    return found
