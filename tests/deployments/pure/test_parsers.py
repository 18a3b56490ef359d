"""Parsers of tool calls and thoughts: the one that fits a model, of those that the engine has; fixes and choices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments import expert
from deployments.checklist import static
from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.reader import Reader
from deployments.engines import parsers
from deployments.engines.base import RuntimeFacts
from deployments.fix_words import title
from deployments.mending import turn
from deployments.mending.around import Around
from deployments.mending.fix import Fix
from deployments.spec import DeploymentSpec

ROWS = tuple(json.loads(Path("tests/fakes/flags.json").read_text(encoding="utf-8")))
RUNTIME = RuntimeFacts("/opt/vllm", "0.32.0", "cuda", ("gguf", "lora_filesystem_resolver"), ROWS)
SCHEMA = RUNTIME.schema
TOOLS = SCHEMA.by_name["tool_call_parser"].known
THOUGHTS = SCHEMA.by_name["reasoning_parser"].known

# name of the model, model type → parser of tool calls, of thoughts ("" none that is known to fit)
MODELS: dict[str, tuple[str, str, str]] = {
    "Qwen/Qwen2.5-7B-Instruct": ("qwen2", "hermes", ""),
    "Qwen/QwQ-32B": ("qwen2", "hermes", "deepseek_r1"),
    "Qwen/Qwen3-8B": ("qwen3", "hermes", "qwen3"),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ("qwen3_moe", "hermes", ""),
    "Qwen/Qwen3-Coder-30B-A3B-Instruct": ("qwen3_moe", "qwen3_coder", ""),
    "my-finetune": ("qwen3", "hermes", "qwen3"),
    "meta-llama/Llama-3.1-8B-Instruct": ("llama", "llama3_json", ""),
    "meta-llama/Llama-3.2-3B-Instruct": ("llama", "llama3_json", ""),
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": ("llama4", "llama4_pythonic", ""),
    "meta-llama/Llama-2-7b-chat-hf": ("llama", "", ""),
    "NousResearch/Hermes-3-Llama-3.1-8B": ("llama", "hermes", ""),
    "mistralai/Mistral-7B-Instruct-v0.3": ("mistral", "mistral", ""),
    "mistralai/Magistral-Small-2506": ("mistral", "mistral", "mistral"),
    "deepseek-ai/DeepSeek-V3-0324": ("deepseek_v3", "deepseek_v3", ""),
    "deepseek-ai/DeepSeek-V3.1": ("deepseek_v3", "deepseek_v31", "deepseek_v3"),
    "deepseek-ai/DeepSeek-R1-0528": ("deepseek_v3", "deepseek_v3", "deepseek_r1"),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": ("qwen2", "", "deepseek_r1"),
    "openai/gpt-oss-20b": ("gpt_oss", "openai", "openai_gptoss"),
    "ibm-granite/granite-3.1-8b-instruct": ("granite", "granite", ""),
    "ibm-granite/granite-4.0-h-small": ("granitemoehybrid", "granite4", ""),
    "zai-org/GLM-4.5-Air": ("glm4_moe", "glm45", "glm45"),
    "moonshotai/Kimi-K2-Instruct": ("kimi_k2", "kimi_k2", "kimi_k2"),
    "microsoft/Phi-4-mini-instruct": ("phi3", "phi4_mini_json", ""),
    "google/gemma-2-9b-it": ("gemma2", "", ""),
    "HuggingFaceTB/SmolLM2-135M-Instruct": ("llama", "", ""),
}  # fmt: skip


def kinds(name: str, model_type: str) -> tuple[str, ...]:
    return parsers.kinds_of(name, {"model_type": model_type, "architectures": []})


@pytest.mark.parametrize("name", MODELS)
def test_the_parser_that_fits_a_model(name: str) -> None:
    model_type, tools, thoughts = MODELS[name]
    found = [parsers.fitting(option, kinds(name, model_type), there)
             for option, there in zip(parsers.OPTIONS, (TOOLS, THOUGHTS), strict=True)]  # fmt: skip
    assert found == [tools, thoughts]


def test_only_what_the_engine_has_is_proposed() -> None:
    coder = kinds("Qwen/Qwen3-Coder-30B", "qwen3_moe")
    assert parsers.fitting(parsers.TOOLS, coder, ("hermes", "qwen3_xml")) == "qwen3_xml"
    assert parsers.fitting(parsers.TOOLS, coder, ("hermes", "mistral")) == ""
    assert parsers.fitting("dtype", coder, ("auto",)) == ""


def test_every_name_is_one_that_some_release_has() -> None:
    """A slip in the table would propose nothing; names of earlier releases are listed by hand."""
    named = {name for _pattern, *both in parsers._FAMILIES for names in both for name in names}
    assert named <= {*TOOLS, *THOUGHTS, "GptOss", "minimax"}


# --- after a start that failed ----------------------------------------------------------------------------------------

HEAD = "INFO 01-01 10:00:00 [api_server.py:1] vLLM API server version 0.32.0\n"
QWEN = Around(host=4, kinds=kinds("Qwen/Qwen3-8B", "qwen3"), parsers={parsers.TOOLS: TOOLS, parsers.THOUGHTS: THOUGHTS})


def after(log: str, around: Around, **options: Any) -> list[Fix]:
    reader = Reader()
    reader.feed(f"{HEAD}{log}\n".encode())
    found = diagnose(reader, exit_code=1)
    return turn.fixes_of(found.code, found.fixes, DeploymentSpec(artifact_id=1, options=options), around)


def test_the_failed_page_offers_the_parser_of_this_model_and_the_rest_as_a_choice() -> None:
    log = "KeyError: 'invalid tool call parser: smolagent (chose from { hermes,mistral,pythonic })'"
    found = after(log, QWEN, enable_auto_tool_choice=True, tool_call_parser="smolagent")
    first, second, third = found
    assert dict(first.patch) == {"options": {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}}
    assert [effect.code for effect in first.effects] == ["effect.fits_model"]
    assert second.code == "fix.drop" and dict(second.patch) == {"options": {}}
    assert (third.kind, third.link) == ("settings", "settings")
    assert title(third)[1] == "This engine has hermes, mistral, pythonic."


def test_what_was_surely_meant_comes_before_what_fits() -> None:
    log = "KeyError: 'invalid tool call parser: mistrall (chose from { hermes,mistral })'"
    patches = [
        fix.patch["options"].get("tool_call_parser")
        for fix in after(log, QWEN, tool_call_parser="mistrall")
        if fix.patch
    ]
    assert patches == ["mistral", "hermes", None]


@pytest.mark.parametrize(
    "log",
    [
        "KeyError: \"Reasoning parser 'deep' not found. Available parsers: deepseek_r1, qwen3\"",
        "KeyError: 'invalid reasoning parser: deep (chose from { deepseek_r1,qwen3 })'",
        "KeyError: 'invalid reasoning parser: deep'",
    ],
    ids=["old", "new", "not named"],
)
def test_the_parser_of_thoughts_as_well(log: str) -> None:
    assert dict(after(log, QWEN, reasoning_parser="deep")[0].patch) == {"options": {"reasoning_parser": "qwen3"}}


def test_of_a_model_of_no_known_family_nothing_is_guessed() -> None:
    log = "KeyError: 'invalid tool call parser: smolagent (chose from { hermes,mistral })'"
    unknown = replace(QWEN, kinds=kinds("an/unknown-model", "llama"))
    found = after(log, unknown, tool_call_parser="smolagent")
    assert [fix.code for fix in found] == ["fix.drop", "fix.choose"]


def test_tool_calls_without_a_parser_get_the_one_of_the_model() -> None:
    log = "TypeError: Error: --enable-auto-tool-choice requires --tool-call-parser"
    first = after(log, QWEN, enable_auto_tool_choice=True)[0]
    assert first.patch["options"]["tool_call_parser"] == "hermes"


def test_other_values_name_their_choices_too() -> None:
    log = "vllm serve: error: argument --dtype: invalid choice: 'bf32' (choose from 'auto', 'bfloat16', 'half')"
    found = after(log, QWEN, dtype="bf32")
    assert title(next(fix for fix in found if fix.kind == "settings"))[1] == "This engine has auto, bfloat16, half."


# --- before a start ---------------------------------------------------------------------------------------------------

CHECKED: dict[str, tuple[dict[str, Any], RuntimeFacts, str, str, str]] = {
    "tools": ({"enable_auto_tool_choice": True, "tool_call_parser": "smolagent"}, RUNTIME, "error",
              "check.parser_unknown", "hermes"),
    "thoughts": ({"reasoning_parser": "deep"}, RUNTIME, "error", "check.parser_unknown", "qwen3"),
    "tools that are off": ({"tool_call_parser": "smolagent"}, RUNTIME, "warning", "check.parser_unknown", "hermes"),
    "a plug-in may bring it": ({"reasoning_parser": "deep"}, replace(RUNTIME, plugins=("own",)), "warning",
                               "check.parser_unknown", "qwen3"),
    "none chosen": ({"enable_auto_tool_choice": True}, RUNTIME, "error", "check.tools_without_parser", "hermes"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHECKED)
def test_the_check_says_it_before_anything_is_started(name: str) -> None:
    options, runtime, level, code, to = CHECKED[name]
    spec = DeploymentSpec(artifact_id=1, options=options)
    (found,) = [one for one in static.of_settings(spec, runtime, [], [], QWEN) if one.code == code]
    assert (found.level, list(found.fixes[0].patch["options"].values())[-1]) == (level, to)


def test_an_older_host_that_tells_no_names_is_left_in_peace() -> None:
    rows = tuple({key: value for key, value in row.items() if key != "known"} for row in ROWS)
    spec = DeploymentSpec(artifact_id=1, options={"reasoning_parser": "deep"})
    assert static.of_settings(spec, replace(RUNTIME, flags=rows), [], [], Around()) == []


# --- the settings' page -----------------------------------------------------------------------------------------------


def setting(name: str, values: dict[str, Any], of: tuple[str, ...] = ()) -> expert.Setting:
    groups = expert.page(SCHEMA, values, kinds=of).groups
    return next(row for group in groups for row in group.rows if row.name == name)


def test_the_page_lets_choose_and_shows_the_one_of_the_model_first() -> None:
    row = setting("tool_call_parser", {}, QWEN.kinds)
    assert row.kind == "choice" and not row.example and row.choices[0] == ("hermes", "hermes: made for this model")
    assert sorted(value for value, _label in row.choices) == sorted(TOOLS)
    plain = setting("tool_call_parser", {})
    assert [value for value, _label in plain.choices] == list(TOOLS)


def test_a_value_that_the_engine_does_not_know_stays_to_be_seen() -> None:
    row = setting("reasoning_parser", {"reasoning_parser": "deep"})
    assert row.value == "deep" and row.choices[0] == ("deep", "deep: this engine has none")
