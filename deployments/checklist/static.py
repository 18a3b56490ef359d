"""What can be said before anything is asked: of the model's files, of the settings, of the plan, of the host. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from deployments.checklist.findings import Finding, Level
from deployments.diagnosis.result import Offer
from deployments.engines import arguments, parsers
from deployments.engines.base import Reason, RuntimeFacts
from deployments.engines.options import Schema
from deployments.mending import edits, planned
from deployments.mending import refusals as mending
from deployments.mending.around import Around
from deployments.mending.choosing import parser_fixes
from deployments.mending.classes import plain_template
from deployments.mending.fix import Fix
from deployments.mending.making import ranked
from deployments.mending.turn import left_out
from deployments.placement import Change, Placement
from deployments.planner import Estimator, length
from deployments.planner.asked import asked_of
from deployments.spec import DeploymentSpec

# Refusals of the adapter that are about the model's files or its permission, not about a setting.
OF_FILES = ("gguf.", "model.", "runtime.", "sidecar.")
MOST_FIXES = 3  # of one finding
NO_PARSERS = ("gguf", "vllm-gguf", "vllm_gguf", "lora_")  # plug-ins of vLLM itself, and that for GGUF files
SHM_MIB = 1024  # what the processes of several GPUs exchange by; a container has 64 MiB unless more is asked for
OPEN_FILES = 4096
LOG_MIB, CACHE_MIB = 512, 2048  # a whole log, and what an engine compiles for one model


# --- files ------------------------------------------------------------------------------------------------------------


def of_files(
    facts: Mapping[str, Any],
    problems: Iterable[Mapping[str, Any]],
    refusals: Iterable[Reason],
    spec: DeploymentSpec,
    around: Around,
) -> list[Finding]:
    """The model: are its files whole, can this engine read them, may its own code run, does it know how to chat?"""
    ways = _to_files(around)
    found = [Finding("warning", str(p["code"]), dict(p.get("params") or {}), "", ways) for p in problems]
    found += [_refused(reason, spec, around) for reason in refusals if reason.code.startswith(OF_FILES)]
    chats = spec.task == "generate" and facts.get("chat_template") is False
    if chats and edits.value_of(spec, "chat_template") is None:
        plain = plain_template(spec, around)
        other = Fix("model", "fix.other_form", link="models")
        found.append(Finding("warning", "check.no_chat_template", {}, "chat_template", (*plain, other)))
    return found


def _to_files(around: Around) -> tuple[Fix, ...]:
    """The page of the model, where its files are looked at and fetched again."""
    return (Fix("repair", "fix.at_model", link="model", target=around.model),) if around.model is not None else ()


# --- settings ---------------------------------------------------------------------------------------------------------


def of_settings(
    spec: DeploymentSpec, runtime: RuntimeFacts, refusals: Iterable[Reason], notes: Iterable[Reason], around: Around
) -> list[Finding]:
    """Every flag against this engine's own parser: what it does not know, does not take, or has under another name."""
    schema = runtime.schema
    found = [_refused(reason, spec, around) for reason in refusals if not reason.code.startswith(OF_FILES)]
    found += [_changed(note, spec, schema) for note in notes if note.code.startswith("flag.")]
    values = arguments.Values(schema, runtime.device, runtime.version, ("/",))  # paths were judged by the adapter
    arguments.from_spec(values, spec.options, spec.extra_args)
    return found + _together(spec, values.set, runtime, around)


def _refused(reason: Reason, spec: DeploymentSpec, around: Around) -> Finding:
    fixes = mending.fixes_of(reason.as_dict(), spec, around)
    ways = tuple(_at_model(fix, around) for fix in fixes[:MOST_FIXES])
    return Finding("error", reason.code, reason.params, reason.option, ways)


def _at_model(fix: Fix, around: Around) -> Fix:
    """Files are fetched again by a button of the model's page: a list within a form has none of its own."""
    return replace(fix, link="model", target=around.model) if fix.link == "repair" else fix


def _changed(note: Reason, spec: DeploymentSpec, schema: Schema) -> Finding:
    """A flag that the adapter translates or leaves out by itself: settings may say it as this engine does."""
    fixes: list[Fix] = []
    to = note.params.get("to") or []
    if note.code == "flag.removed_no_effect":
        fixes = [_fix("fix.drop", {"names": [note.option]}, edits.without_option(spec, note.option), note.option)]
    elif len(to) == 1 and (option := schema.find(to[0])) is not None and option.kind not in ("bool", "json"):
        params = {"name": note.option, "to": option.name}
        fixes = [_fix("fix.rename", params, edits.renamed(spec, note.option, option.name), note.option)]
    return Finding("note", note.code, note.params, note.option, tuple(fix for fix in fixes if fix.patch))


def _fix(code: str, params: Mapping[str, Any], patch: edits.Patch | None, option: str) -> Fix:
    return Fix("patch", code, params, patch=patch or {}, option=option)


def _together(spec: DeploymentSpec, said: Mapping[str, Any], runtime: RuntimeFacts, around: Around) -> list[Finding]:
    """Settings that make sense only together, and names that the engine has to have."""
    schema, found = runtime.schema, _parsers(spec, said, runtime, around)
    auto, parser = bool(said.get("enable_auto_tool_choice")), said.get("tool_call_parser")
    if auto and not parser:
        patch = edits.without_option(spec, "enable_auto_tool_choice")
        without = _fix("fix.drop", {"names": ["enable_auto_tool_choice"]}, patch, "enable_auto_tool_choice")
        fitting = [fix for fix in parser_fixes(spec, parsers.TOOLS, around, _known(schema, parsers.TOOLS)) if fix.patch]
        found.append(Finding("error", "check.tools_without_parser", {}, parsers.TOOLS, (*fitting, without)))
    if parser and not auto and schema.get("enable_auto_tool_choice"):
        on = _switched_on(spec, schema, "enable_auto_tool_choice")
        params = {"parser": parser}
        found.append(Finding("warning", "check.parser_without_tools", params, "enable_auto_tool_choice", on))
    return found + _adapters(spec, said, schema)


def _known(schema: Schema, name: str) -> tuple[str, ...]:
    option = schema.get(name)
    return option.known if option is not None else ()


def _parsers(spec: DeploymentSpec, said: Mapping[str, Any], runtime: RuntimeFacts, around: Around) -> list[Finding]:
    """Parsers of tool calls and thoughts that this engine does not have: it says so only after it has been loaded.

    Without tool calls it never looks for theirs, and a plug-in may bring others: then that is no error.
    """
    found = []
    others = [name for name in runtime.plugins if not name.startswith(NO_PARSERS)]
    for name in parsers.OPTIONS:
        known, value = _known(runtime.schema, name), said.get(name)
        if not value or not known or value in known:
            continue
        asked = name != parsers.TOOLS or bool(said.get("enable_auto_tool_choice"))
        level: Level = "error" if asked and not others else "warning"
        fixes = ranked([*parser_fixes(spec, name, around, known), *_without(spec, name)])
        params = {"value": str(value)[:100], "name": name}
        found.append(Finding(level, "check.parser_unknown", params, name, tuple(fixes[: MOST_FIXES + 1])))
    return found


def _without(spec: DeploymentSpec, name: str) -> list[Fix]:
    return left_out(Offer("drop", name, chance=60), spec, Around())


def _switched_on(spec: DeploymentSpec, schema: Schema, name: str) -> tuple[Fix, ...]:
    if schema.get(name) is None:
        return ()
    return (_fix("fix.set", {"name": name, "from": None, "to": True}, edits.with_option(spec, name, True), name),)


def _adapters(spec: DeploymentSpec, said: Mapping[str, Any], schema: Schema) -> list[Finding]:
    """Adapters (LoRA): are they switched on, and is there room for all at once?"""
    modules = said.get("lora_modules")
    count = len(modules) if isinstance(modules, list) else int(bool(modules))
    if not count:
        return []
    if not said.get("enable_lora"):
        on = _switched_on(spec, schema, "enable_lora")
        return [Finding("warning", "check.lora_off", {"count": count}, "enable_lora", on)]
    room = said.get("max_loras", 1)
    if isinstance(room, int) and count > room:
        return [Finding("note", "check.lora_in_turns", {"count": count, "room": room}, "max_loras")]
    return []


def of_length(spec: DeploymentSpec, facts: Mapping[str, Any], version: str, changes: Iterable[Change]) -> list[Finding]:
    """A conversation longer than the model was made for. `version` is the engine's, "" while there is no place."""
    found = length.too_long(asked_of(spec), Estimator.of(facts, spec.task).facts, version)
    if found is None:
        return []
    reason = found.reason
    if not found.sure:
        return [Finding("note", reason.code, reason.params, reason.option)]
    fixes = tuple(planned.fixes_of(changes))
    params = {"name": length.OPTION, "from": found.context, "to": found.longest}
    own = _fix("fix.set", params, edits.with_option(spec, length.OPTION, found.longest), length.OPTION)
    return [Finding("error", reason.code, reason.params, reason.option, fixes or (own,))]


# --- the plan ---------------------------------------------------------------------------------------------------------

_HOW_SURE = {"tight": ("warning", "check.tight"), "unlikely": ("warning", "check.unlikely"),
             "unknown": ("note", "check.no_estimate")}  # fmt: skip


def of_plan(
    placed: Placement | None,
    reason: Mapping[str, Any],
    changes: Iterable[Change],
    surer: tuple[Fix, ...] = (),
    may_name: Callable[[str], bool] = bool,
) -> list[Finding]:
    """Where it would run, how surely, and what to know of the place; an error where no place takes it, with what would
    make it fit. `surer`: what surely fits. `may_name`: which deployments may be named.
    """
    if placed is None and reason.get("code") == length.CODE:
        return []  # said of the settings, and there is nothing to look for a place for
    if placed is None:
        fixes = tuple(planned.fixes_of(changes, may_name))
        return [Finding("error", str(reason.get("code") or "place.none"), dict(reason.get("params") or {}), "", fixes)]
    level, code = _HOW_SURE.get(placed.level, ("", ""))
    why = next((note.params["because"] for note in placed.notes if "because" in note.params), None)
    params = {"because": why} if why is not None else {}
    sure = [Finding(level, code, params, length.OPTION if surer else "", surer)] if code else []  # type: ignore[arg-type]  # of the table above
    return sure + [Finding("note", note.code, note.params) for note in placed.notes if not _is_doubt(note)]


def _is_doubt(note: Reason) -> bool:
    """How surely it fits is said above."""
    return note.code.startswith("estimate.")


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
