"""The real vLLM (CPU) checks settings without starting: what it refuses is said in plain words, a good one passes.

By the very order that a host gets, under its rules and in the environment of a start; two at a time, since each imports
the engine. No GPU, no server and no weights are touched.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from deployments.checklist import engine
from deployments.diagnosis.rules import BY_CODE
from deployments.spec import DeploymentSpec
from panel.fleet import wire
from panel.fleet.agent import engine_cpu, tiny_model
from panel.fleet.agent.config import load
from panel.fleet.agent.files import Registry
from panel.fleet.agent.journal import Journal, Record
from panel.fleet.agent.spawn import Spawner

pytestmark = pytest.mark.engine
LIMIT_S = 240  # of one check; 9 s on an idle core
ENV = {
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1",
}  # fmt: skip


def changed(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        config = folder / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), **values}))

    return change


def without(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def large_adapter(folder: Path) -> None:
    """An adapter of rank 64 beside the model; the engine has room for 16 unless it is told."""
    adapter = folder.parent / "adapter"
    adapter.mkdir()
    words = {"peft_type": "LORA", "r": 64, "lora_alpha": 16, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(words))


# what is wrong: (done to the model, further flags, class of the diagnosis, whose sentence is shown)
REFUSED: dict[str, tuple[Callable[[Path], None], list[str], str]] = {
    "too-long": (lambda folder: None, ["--max-model-len", "999999"], "config.len_gt_derived"),
    "three-parts-of-four-heads": (lambda folder: None, ["--tensor-parallel-size", "3"], "tp.heads"),
    "unknown-architecture": (changed(architectures=["NopeForCausalLM"]), [], "arch.unsupported"),
    "no-config": (without("config.json"), [], "gguf.dir"),
    "no-tokenizer": (without("tokenizer.json", "tokenizer_config.json"), [], "tok.missing_files"),
    "large-adapter": (large_adapter, ["--enable-lora", "--lora-modules", "a={models}/adapter"], "lora.rank"),
    "wrong-tool-parser": (
        lambda folder: None,
        ["--enable-auto-tool-choice", "--tool-call-parser", "qwen99"],
        "args.tool_parser_unknown",
    ),
    "wrong-reasoning-parser": (lambda folder: None, ["--reasoning-parser", "qwen99"], "args.reasoning_parser_unknown"),
}


def check(cache: Path, folder: Path, damage: Callable[[Path], None], flags: list[str]) -> dict[str, Any]:
    """What a host's agent would answer to this order."""
    host, model = folder / "agent", folder / "models" / "tiny"
    (host / "jobs").mkdir(mode=0o700, parents=True)
    tiny_model.make(model)
    damage(model)
    executable = cache / engine_cpu.NAME / "bin" / "vllm"
    (host / "agent.json").write_text(json.dumps({"model_roots": [str(model.parent)], "runtimes": [str(executable)]}))
    (host / "agent.json").chmod(0o600)
    spawner = Spawner(Journal(host), Registry(load(host, {}, with_panel=False)))
    argv = [str(executable), "serve", str(model), "--host", "127.0.0.1", "--port", wire.PORT_PLACE,
            "--served-model-name", "tiny", "--enforce-eager",
            *(flag.replace("{models}", str(model.parent)) for flag in flags)]  # fmt: skip
    task = wire.CheckTask(argv=argv, env=ENV, model_path=str(model))
    spawner.check(task)
    record = Record(str(uuid.uuid4()), "check")
    command = spawner.prepare(record, task, [])
    done = subprocess.run(command.argv, env=command.env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads((host / "jobs" / record.id / "result.json").read_text())
    assert result["refusal"] is None, result
    (item,) = result["items"]
    return dict(item)


@pytest.fixture(scope="module")
def answers(engine_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All at once, two at a time: importing the engine is nearly all of the time."""
    cases = {"good": (lambda folder: None, []), **{name: case[:2] for name, case in REFUSED.items()}}
    root = tmp_path_factory.mktemp("checked")
    with ThreadPoolExecutor(2) as pool:
        waiting = {
            name: pool.submit(check, engine_cache, root / name, damage, flags)
            for name, (damage, flags) in cases.items()
        }
        return {name: future.result() for name, future in waiting.items()}


def test_a_good_one_passes_and_nothing_was_started(answers: dict[str, dict[str, Any]]) -> None:
    good = answers["good"]
    found = engine.outcome_of(good, DeploymentSpec(artifact_id=1))
    assert (found.state, found.finding) == ("passed", None), good["output"]
    assert "Resolved architecture: LlamaForCausalLM" in good["output"]
    assert "Loading safetensors" not in good["output"] and "Uvicorn" not in good["output"]
    assert found.host["open_files"] and found.seconds


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_refuses_is_said_before_anything_starts(name: str, answers: dict[str, dict[str, Any]]) -> None:
    _damage, _flags, cause = REFUSED[name]
    found = engine.outcome_of(answers[name], DeploymentSpec(artifact_id=1))
    assert found.state == "refused" and found.finding is not None, answers[name]
    assert found.finding.level == "error" and found.sure
    assert found.finding.params.get("cause") == cause, answers[name]
    assert found.finding.params["title"] == BY_CODE[cause].title
    assert found.finding.params["root"], "the engine's own line proves it"
