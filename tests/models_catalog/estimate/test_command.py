"""`manage.py estimate`: the keys it prints, batches, refusals; and that it needs no server at all."""

import json
import os
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.models_catalog.builders import LLAMA, gguf_bytes, safetensors_bytes
from tests.models_catalog.estimate.builders import SMOL, config
from tests.models_catalog.estimate.reports import DATA

ROOT = Path(__file__).resolve().parents[3]
QWEN = str(DATA / "configs/Qwen--Qwen3-8B.json")
KEYS = {
    "weights_gib", "activation_gib", "overhead_gib", "graphs_gib", "kv_gib", "kv_tokens", "concurrency", "max_len",
    "verdict", "reasons",
}  # fmt: skip
FLAGS = ["--engine-version", "0.19.0", "--gpu", "H100-80GB", "--gpu-total-gib", "79.19", "--util", "0.95"]


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("estimate", *arguments, stdout=out)
    return out.getvalue()


def batch(tmp_path: Path, *lines: Any) -> list[dict[str, Any]]:
    file = tmp_path / "specs.jsonl"
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return [json.loads(line) for line in run("--batch", str(file)).splitlines()]


def test_one_configuration_as_json() -> None:
    answer = json.loads(run("--config", QWEN, *FLAGS, "--max-model-len", "8192", "--json"))
    assert answer.keys() >= KEYS
    assert answer["kv_gib"] == pytest.approx(57.5, abs=0.01)  # as a real launch logged it
    assert answer["kv_tokens"] == 418_688
    assert answer["concurrency"] == pytest.approx(51.11, abs=0.01)
    assert answer["verdict"] == "fits"
    assert answer["reasons"][0]["text"] == "51.11 requests of 8,192 tokens fit at the same time."
    assert answer["ranges"]["kv_gib"][0] < answer["kv_gib"] < answer["ranges"]["kv_gib"][1]


def test_stages_that_differ_are_all_shown() -> None:
    answer = json.loads(run("--config", QWEN, *FLAGS, "--pp", "2", "--json"))
    assert [rank["layers"] for rank in answer["ranks"]] == [18, 18]
    assert answer["ranks"][1]["kv_gib"] < answer["ranks"][0]["kv_gib"] == answer["kv_gib"]


def test_for_people_each_number_has_its_range_and_source() -> None:
    text = run("--config", QWEN, *FLAGS)
    assert "What is left of 75.23 GiB, the GPU's total × 0.95." in text
    assert "…" in text


def test_a_folder_with_weights_and_a_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | {"intermediate_size": 32}))
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes())
    folder = json.loads(run(str(tmp_path), *FLAGS, "--json"))
    assert folder["weights_gib"] < 0.01
    other = tmp_path / "gguf"
    other.mkdir()
    (other / "tiny.gguf").write_bytes(gguf_bytes())
    file = json.loads(run(str(other / "tiny.gguf"), "--engine", "llama.cpp", "--gpu", "RTX 3090", "--json"))
    assert file["engine"] == "llama.cpp"
    assert file["verdict"] == "fits"


def test_a_batch_answers_each_line_in_order_also_bad_ones(tmp_path: Path) -> None:
    spec = {"engine": "vllm", "engine_version": "0.19.0", "gpu": "H100-80GB", "gpu_total_gib": 79.19, "util": 0.95}
    smol = {"config": SMOL, "gpu": "cpu", "engine_version": "0.32.0", "kv_gib": 1, "max_model_len": 1024}
    answers = batch(
        tmp_path,
        {"id": "a", "config": config("Qwen--Qwen3-8B"), **spec, "max_model_len": 8192},
        {"id": "b", "config": QWEN, **spec, "max_num_seqs": "", "kv_gib": 10.0},
        "not json",
        {"id": "c", "config": config("Qwen--Qwen3-8B"), **spec, "tp": "many"},
        {"id": "d", **spec},
        {"id": "e", "config": {}, **spec},
        {"id": "f", **smol},
        {"id": "g", "config": config("Qwen--Qwen3-8B"), **spec, "tp": 0},
        {"id": "h", "config": "/nowhere/config.json", **spec},
    )
    assert [answer["id"] for answer in answers] == ["a", "b", None, "c", "d", "e", "f", "g", "h"]
    assert answers[0]["kv_tokens"] == 418_688
    assert answers[1]["kv_gib"] == 10.0
    assert [answers[n]["error"]["code"] for n in (2, 3, 4, 7, 8)] == [
        "unreadable", "bad_value", "bad_value", "bad_value", "unreadable",
    ]  # fmt: skip
    assert answers[5]["verdict"] == "unknown"
    assert (answers[6]["kv_tokens"], answers[6]["concurrency"]) == (46_592, 45.5)


@pytest.mark.parametrize(
    "arguments",
    [[], ["/nowhere"], ["--config", QWEN, "--util", "2"], ["--config", QWEN, "--tp", "0"], ["--batch", "/nowhere"]],
)
def test_misuse_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(CommandError) as caught:
        run(*arguments)
    assert caught.value.returncode == 2


def test_no_server_is_needed_and_nothing_is_written(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "REDIS_URL")}
    env |= {"BERTH_DATA": str(tmp_path / "data"), "DJANGO_SETTINGS_MODULE": "panel.settings"}
    command = [sys.executable, "manage.py", "estimate", "--config", QWEN, *FLAGS, "--json"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "fits"
    assert not list(tmp_path.rglob("postgres*"))
