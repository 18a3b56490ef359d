"""What an engine says of itself while it starts: versions, and the few warnings that matter, with their lines."""

from __future__ import annotations

import re

import pytest

from deployments.diagnosis import notices, phases
from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.reader import Reader

W = "WARNING 12-01 10:00:00 [x.py:1] "
I = "INFO 12-01 10:00:00 [x.py:1] "  # noqa: E741  # the other level
# (line, code, what it names)
LINES = (
    (f"{I}Enforce eager set, disabling torch.compile and CUDAGraphs. This is equivalent to setting -cc.mode=none",
     "eager", {}),
    (f"{W}awq quantization is not fully optimized yet. The speed can be slower than non-quantized models.", "quant_slow", {}),
    (f"{W}Your GPU does not have native support for FP8 computation but FP8 quantization is being used.", "fp8_weights", {}),
    (f"{W}Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.", "no_p2p", {}),
    (f"{W}Found ulimit of 4096 and failed to automatically increase with error current limit exceeds maximum limit.",
     "few_files", {"n": "4096"}),
    (f"{W}Using default MoE config. Performance might be sub-optimal! Config file not found at /x.json", "experts_plain", {}),
    (f"{W}Casting torch.bfloat16 to torch.float16.", "other_dtype", {"old": "bfloat16", "new": "float16"}),
    (f"{W}Your device 'Tesla T4' (with compute capability 7.5) doesn't support torch.bfloat16. Falling back to "
     "torch.float16 for compatibility.", "other_dtype", {"old": "bfloat16", "new": "float16"}),
    (f"{W}Add 3 padding layers, may waste at most 10.71% KV cache memory", "kv_rounding", {"share": "10.71"}),
    (f"{W}Environment variable VLLM_CPU_KVCACHE_SPACE (GiB) for CPU backend is not set, using 4 by default.", "kv_usual", {}),
    (f"{I}Auto-fit max_model_len: reduced from 40960 to 12288 to fit in available GPU memory", "shorter",
     {"old": "40960", "new": "12288"}),
    (f"{W}libtcmalloc is not found in LD_PRELOAD. For best performance, please follow the section", "cpu_slow", {}),
    (f"{W}Unknown vLLM environment variable detected: VLLM_ATTENTION_BACKEND", "unknown_variable",
     {"name": "VLLM_ATTENTION_BACKEND"}),
    (f"{W}Default vLLM sampling parameters have been overridden by the model's `generation_config.json`: `{{}}`.",
     "model_sampling", {}),
    (f"{W}The quantization method fp_quant is deprecated and will be removed in future versions of vLLM.", "deprecated",
     {"name": "fp_quant"}),
    (f"{W}The model's config.json does not contain any of the keys to determine the original maximum length of the "
     "model. Assuming the model's maximum length is 2048.", "assumed_length", {"n": "2048"}),
)  # fmt: skip
HARMLESS = (
    f"{W}Found ulimit of 65535 and failed to automatically increase with error x",
    f"{W}We must use the `spawn` multiprocessing start method.",
    f"{I}Automatically detected platform cuda.",
    f"{W}torch.compile cache is cold; the first start compiles",
)


@pytest.mark.parametrize(("line", "code", "values"), LINES, ids=[f"{i}-{one[1]}" for i, one in enumerate(LINES)])
def test_a_warning_that_matters_is_kept_with_its_line(line: str, code: str, values: dict[str, str]) -> None:
    log = f"{I}vLLM API server version 0.32.0\nLoading: 1\rLoading: 2\rLoading: 3\n\n(EngineCore pid=7) {line}\n"
    expected = [{"code": code, "line": 4, "values": values}]
    assert phases.feed(log.encode(), {}, 1.0)["facts"]["notices"] == expected
    reader = Reader("vllm")
    reader.feed(log.encode())
    assert diagnose(reader, exit_code=0).facts["notices"] == expected


def test_all_are_tried() -> None:
    assert {code for _line, code, _values in LINES} == set(notices.TEXTS)
    for _code, pattern, text in notices.NOTICES:
        assert set(re.findall(r"%\((\w+)\)s", text)) == set(pattern.groupindex)


@pytest.mark.parametrize("line", HARMLESS)
def test_others_are_not(line: str) -> None:
    assert "notices" not in phases.feed(f"{line}\n".encode(), {}, 1.0)["facts"]


def test_each_is_said_once_and_few_are_kept() -> None:
    log = "".join(f"(Worker_TP{n} pid={n}) {line}\n" for n in range(4) for line, _code, _values in LINES)
    kept = phases.feed(log.encode(), {}, 1.0)["facts"]["notices"]
    assert len(kept) == notices.MOST and len({each["code"] for each in kept}) == notices.MOST
    assert [each["line"] for each in kept] == [1, 2, 3, 4, 5]


def test_lines_are_numbered_alike_however_the_log_comes() -> None:
    log = f"one\r\ntwo\rtwo\n\r\nthree\n{W}Casting torch.bfloat16 to torch.float16.\nend".encode()
    for size in range(1, len(log) + 1):
        state: phases.State = {}
        for at in range(0, len(log), size):
            state = phases.feed(log[at : at + size], state, 1.0)
        assert state["facts"]["notices"][0]["line"] == 5, size


def test_a_state_of_an_older_version_goes_on_without_numbers() -> None:
    old = {key: value for key, value in phases.new_state(1.0).items() if key != "rows"}
    state = phases.feed(f"{W}Casting torch.bfloat16 to torch.float16.\n".encode(), old, 2.0)
    assert state["facts"]["notices"][0]["line"] == 0


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("INFO 12-01 10:00:00 [pynccl.py:1] vLLM is using nccl==2.27.3", "nccl", "2.27.3"),
        ("h:5:5 [0] NCCL INFO NCCL version 2.21.5+cuda12.4", "nccl", "2.21.5+cuda12.4"),
        ("PyTorch version                 : 2.7.0+cu126", "torch", "2.7.0+cu126"),
        ("[pip3] torch==2.6.0", "torch", "2.6.0"),
        ("CUDA used to build PyTorch      : 12.6", "cuda", "12.6"),
        ("[pip3] transformers==4.52.4", "transformers", "4.52.4"),
        ('  "transformers_version": "4.51.3"', "transformers", "4.51.3"),
    ],
)
def test_versions(line: str, name: str, value: str) -> None:
    assert phases.feed(f"{line}\n".encode(), {}, 1.0)["facts"][name] == value
    assert name not in phases.feed(b"torch and transformers and nccl\n", {}, 1.0)["facts"]


@pytest.mark.parametrize("name", ["²", "①", "٣", "7"])
def test_what_looks_like_a_number_and_is_none_breaks_no_page(name: str) -> None:
    line = f"{W}Unknown vLLM environment variable detected: {name}\n"
    (notice,) = phases.feed(line.encode(), {}, 1.0)["facts"]["notices"]
    assert "environment variable" in notices.sentence(notice)
