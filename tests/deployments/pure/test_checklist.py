"""The check before a start, as far as nothing has to be asked: findings, their levels, and fixes that one click makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deployments.checklist import static
from deployments.checklist.findings import Finding, Part, verdict, warnings
from deployments.engines.base import EngineRefusal, LaunchContext, RuntimeFacts
from deployments.engines.registry import adapter_for
from deployments.mending.around import Around
from deployments.spec import DeploymentSpec

ROWS = tuple(json.loads(Path("tests/fakes/flags.json").read_text(encoding="utf-8")))
RUNTIME = RuntimeFacts("/opt/vllm", "0.32.0", "cuda", (), ROWS)
HERE = Around(flags=frozenset(RUNTIME.schema.by_name))
FACTS = {"format": "hf", "heads": 8, "chat_template": True}


def spec(**values: Any) -> DeploymentSpec:
    return DeploymentSpec(artifact_id=1, **values)


def settings(**values: Any) -> list[Finding]:
    """What is said of these settings, by the adapter's own words."""
    asked = spec(**values)
    context = LaunchContext(asked, RUNTIME, "m", "k", "/models/m", FACTS, ("/models",), ("GPU-a",))
    try:
        launch = adapter_for("vllm").launch(context)
    except EngineRefusal as refused:
        return static.of_settings(asked, RUNTIME, refused.reasons, [], HERE)
    return static.of_settings(asked, RUNTIME, [], launch.notes, HERE)


def after(asked: DeploymentSpec, found: Finding) -> DeploymentSpec:
    """The settings with the first fix done."""
    return DeploymentSpec.model_validate({**asked.model_dump(mode="json"), **found.fixes[0].patch})


# settings → (level, code, what the first fix leaves)
WRONG: dict[str, tuple[dict[str, Any], str, str, dict[str, Any]]] = {
    "misspelt": (
        {"options": {"max_modl_len": 4096}}, "error", "flag.unknown", {"options": {"max_model_len": 4096}},
    ),
    "misspelt-flag": (
        {"extra_args": ["--max-modl-len", "4096", "--seed", "1"]}, "error", "flag.unknown",
        {"options": {"max_model_len": "4096"}, "extra_args": ["--seed", "1"]},
    ),
    "unknown": ({"extra_args": ["--no-such-thing-here", "x"]}, "error", "flag.unknown", {"extra_args": []}),
    "removed": ({"options": {"calculate_kv_scales": True}}, "error", "flag.removed", {"options": {}}),
    "gone": ({"extra_args": ["--swap-space 8"]}, "note", "flag.removed_no_effect", {"extra_args": []}),
    "renamed": (
        {"options": {"max_model_length": 2048}}, "note", "flag.translated", {"options": {"max_model_len": 2048}},
    ),
    "type": ({"options": {"max_num_seqs": "many"}}, "error", "option.not_an_int", {"options": {}}),
    "choice": (
        {"options": {"kv_cache_dtype": "fp8_e4n3"}}, "error", "option.not_a_choice",
        {"options": {"kv_cache_dtype": "fp8_e4m3"}},
    ),
    "house": ({"extra_args": ["--port", "80"]}, "error", "option.denied_house", {"extra_args": []}),
    "parser": (
        {"options": {"enable_auto_tool_choice": True}}, "error", "check.tools_without_parser", {"options": {}},
    ),
    "tools-off": (
        {"options": {"tool_call_parser": "hermes"}}, "warning", "check.parser_without_tools",
        {"options": {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}},
    ),
    "lora-off": (
        {"extra_args": ["--lora-modules", "a=/models/a"]}, "warning", "check.lora_off",
        {"options": {"enable_lora": True}, "extra_args": ["--lora-modules", "a=/models/a"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_setting_that_is_wrong_and_its_fix(name: str) -> None:
    values, level, code, wanted = WRONG[name]
    (found,) = [one for one in settings(**values) if one.code == code]
    assert found.level == level and found.fixes
    mended = after(spec(**values), found)
    assert {key: getattr(mended, key) for key in wanted} == wanted
    assert code not in [one.code for one in settings(**mended.model_dump(include={"options", "extra_args"}))]


def test_good_settings_say_nothing() -> None:
    good = {
        "max_model_len": 4096,
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "kv_cache_dtype": "fp8",
    }
    assert settings(options=good) == []


def test_more_adapters_than_room_take_turns() -> None:
    words = ["--enable-lora", "--lora-modules", "a=/models/a", "b=/models/b"]
    (found,) = settings(extra_args=words)
    assert (found.level, found.code, found.params) == ("note", "check.lora_in_turns", {"count": 2, "room": 1})
    assert settings(extra_args=[*words, "--max-loras", "2"]) == []


def test_the_files_and_how_it_chats() -> None:
    problem = {"code": "no_tokenizer", "params": {}}
    found = static.of_files({**FACTS, "chat_template": False}, [problem], [], spec(), HERE)
    assert [(one.level, one.code) for one in found] == [
        ("warning", "no_tokenizer"), ("warning", "check.no_chat_template"),
    ]  # fmt: skip
    for other in (spec(task="embed"), spec(options={"chat_template": "/models/x.jinja"})):
        assert static.of_files({"chat_template": False}, [], [], other, HERE) == []


@pytest.mark.parametrize(
    ("told", "gpus", "codes"),
    [
        ({"shm_mib": 64, "open_files": 1024, "disks": {"log": 10, "cache": 10}}, 2,
         ["check.small_shm", "check.few_files", "check.disk_log", "check.disk_cache"]),
        ({"shm_mib": 64, "open_files": 1_048_576, "disks": {"log": 5_000, "cache": 50_000}}, 1, []),
        ({"shm_mib": 64_000, "open_files": -1, "disks": {}}, 8, []),
        ({"shm_mib": None, "open_files": "x", "disks": [1]}, 8, []),
        ({}, 8, []),
    ],
    ids=["all-wrong", "one-gpu", "no-limit", "nonsense", "silent"],
)  # fmt: skip
def test_the_host(told: dict[str, Any], gpus: int, codes: list[str]) -> None:
    assert [found.code for found in static.of_host(told, gpus)] == codes


def test_the_verdict_of_the_list() -> None:
    error, warning, note = (Finding(level, f"x.{level}") for level in ("error", "warning", "note"))  # type: ignore[arg-type]
    assert verdict((Part("files"), Part("engine", (note,), skipped=True))) == "passed"
    assert verdict((Part("files", (warning,)), Part("engine", waits=True))) == "running"
    assert verdict((Part("files", (warning,)), Part("engine"))) == "warnings"
    assert verdict((Part("files", (error,)), Part("engine", waits=True))) == "refused", "an error is final"
    assert warnings((Part("a", (warning, note)), Part("b", (error,)))) == ["x.warning"]
    assert Part("engine", (note,), skipped=True).state == "skipped" and Part("x", (note,)).state == "passed"
