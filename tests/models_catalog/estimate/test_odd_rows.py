"""Rows as other programs write them: each gets one line, a number or an error of its own, and no other row suffers."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.models_catalog.estimate.builders import config
from tests.models_catalog.estimate.test_command import batch, run

LLAMA = config("meta-llama--Llama-3.1-8B-Instruct")
HYBRID = config("Qwen--Qwen3.6-27B")
PLAIN: dict[str, Any] = {"config": LLAMA, "engine": "vllm", "engine_version": "0.19.0", "gpu": "H100", "util": 0.9}
ODD = object()  # leave the key out
VALUES: dict[str, list[Any]] = {
    "config": [ODD, None, [], {}, 3, "nowhere.json", {"model_type": []}, {**LLAMA, "num_hidden_layers": "32"},
               {**LLAMA, "num_hidden_layers": 10**12}, {**LLAMA, "hidden_size": -1}, {**LLAMA, "rope_scaling": [1]},
               {**LLAMA, "quantization_config": "fp8"}, {**LLAMA, "layer_types": {"a": 1}}, {"text_config": LLAMA},
               {**LLAMA, "vocab_size": None}, {**HYBRID, "architectures": None}],
    "engine": [ODD, None, "vLLM", "VLLM ", "ktransformers", 5, []],
    "engine_version": [ODD, None, "", "v0.19.0", "0.19.1rc1", "0.33.0", "0.6.3.post1", "1.2", "nightly", "latest", 0.19,
                       "0.11.1+cu128", {}],
    "gpu": [ODD, None, "", "NVIDIA H100 80GB HBM3", "h100-sxm", "A100-SXM4-40GB", "RTX 4090", "rtx4090", "GH200", "GB10",
            "Quadro Z9", "cpu", 7, []],
    "gpu_total_gib": [None, "79.19", 79, 0, -3, "lots", float("nan"), 1e300, True],
    "gpu_free_gib": [None, 40, "70.5", -1],
    "tp": [None, "2", 2, 0, -1, 3, 1.0, 2.5, "two", 10**9, True],
    "pp": [None, "2", 64, 0],
    "dp": [None, 2, "4", 0],
    "util": [ODD, None, "0.9", "90%", 90, 0, 1.0, 1.7, "auto", -0.5],
    "max_model_len": [ODD, None, "8192", "8k", "32K", "1,024", 8192.0, -1, "auto", 0, 10**15, "long"],
    "max_num_seqs": [None, "256", 0, -4, 1],
    "max_num_batched_tokens": [None, "8192", 1, 10**12],
    "kv_dtype": [None, "auto", "fp8", "fp8_e4m3", "FP8_E5M2", "bf16", "bfloat16", "float16", "int8", "turboquant_4bit", 8],
    "quant": [None, "none", "", "AWQ", "awq_marlin", "gptq", "fp8", "compressed-tensors", "nvfp4", "modelopt_fp4", "bnb",
              "q4_k_m", "w4a16", "int9", 4],
    "enforce_eager": [None, "true", "False", 0, "maybe"],
    "block_size": [None, 16, "32", 0, 7],
    "kv_gib": [None, 10, "10", 0, -2],
    "mamba_align": [None, True, "yes"],
    "num_speculative_tokens": [None, 3, "5", -1],
}  # fmt: skip


def rows() -> list[dict[str, Any]]:
    found = []
    for key, values in VALUES.items():
        for value in values:
            row = {k: v for k, v in PLAIN.items() if k != key}
            found.append(row if value is ODD else {**row, key: value})
    return found


def answers_all(answers: list[dict[str, Any]], count: int) -> None:
    assert len(answers) == count
    for answer in answers:
        assert ("error" in answer) != ("weights_gib" in answer)
        assert "Traceback" not in json.dumps(answer)


def test_every_odd_value_of_every_key(tmp_path: Path) -> None:
    asked = rows()
    begun = time.process_time()
    answers = batch(tmp_path, *asked)
    assert (time.process_time() - begun) / len(asked) < 0.05  # 3 ms in quiet
    answers_all(answers, len(asked))


def test_errors_name_the_key(tmp_path: Path) -> None:
    wrong = {"tp": "two", "util": "lots", "max_model_len": "long", "gpu_total_gib": "much", "enforce_eager": "maybe"}
    for (key, _), answer in zip(
        wrong.items(), batch(tmp_path, *({**PLAIN, k: v} for k, v in wrong.items())), strict=True
    ):
        assert key in json.dumps(answer["error"])


@pytest.mark.parametrize(
    ("key", "value", "same_as"),
    [
        ("max_model_len", "8K", 8192), ("max_model_len", "8k", 8000), ("max_model_len", "1,024", 1024), ("util", "90%", 0.9), ("tp", "2", 2),
        ("gpu", "NVIDIA H100 80GB HBM3", "H100"), ("gpu", "h100", "H100"), ("engine_version", "v0.19.0", "0.19.0"),
        ("engine", "vLLM", "vllm"), ("kv_dtype", "FP8_E4M3", "fp8"), ("kv_dtype", "bf16", None), ("quant", "AWQ", "awq"),
        ("engine_version", "0.19.0rc2", "0.19.0"), ("max_num_seqs", "256", 256), ("enforce_eager", "true", True),
    ],
)  # fmt: skip
def test_two_spellings_of_one_thing(tmp_path: Path, key: str, value: object, same_as: object) -> None:
    said, meant = batch(tmp_path, {**PLAIN, key: value}, {**PLAIN, key: same_as})
    for name in ("weights_gib", "activation_gib", "kv_gib", "kv_tokens", "concurrency", "verdict"):
        assert said[name] == meant[name], name


def test_lines_that_are_no_objects(tmp_path: Path) -> None:
    lines = ["", "nonsense", "[]", "3", '"x"', "null", "{", json.dumps(PLAIN), '{"config": {"a": NaN}}', '{"gpu": "\\ud800"}',
             "[" * 5000, '{"tp": ' + "9" * 5000 + "}"]  # fmt: skip
    answers = batch(tmp_path, *lines)
    answers_all(answers, len([line for line in lines if line]))
    assert sum(bool(answer.get("weights_gib")) for answer in answers) == 1


def test_bytes_that_are_no_text_cost_their_own_line_alone(tmp_path: Path) -> None:
    file = tmp_path / "specs.jsonl"
    good = json.dumps(PLAIN).encode()
    file.write_bytes(b"\xef\xbb\xbf" + good + b"\r\n" + b'{"gpu": "\xff\xfe"}\n' + good + b"\n")
    first, middle, last = (json.loads(line) for line in run("--batch", str(file)).splitlines())
    assert first == last
    assert "error" in middle
