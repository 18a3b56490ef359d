"""What beside the log decides: exit codes, signals, memory, the last run that worked; and the numbers of fixes."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.diagnosis import slips
from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.reader import Reader
from deployments.diagnosis.result import Diagnosis, Evidence
from deployments.diagnosis.rules import ALL
from deployments.mending import turn
from deployments.mending.around import Around
from deployments.spec import DeploymentSpec
from tests.deployments.pure.diagnosis.collected import SAMPLES

LOADING = b"INFO 01-01 10:00:00 [x.py:1] Starting to load model /m...\n"
SERVING = LOADING + b"INFO:     Application startup complete.\n"
CORE_GONE = b"RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"


def read(log: bytes, evidence: Evidence | None = None, engine: str = "vllm", **ended: Any) -> Diagnosis:
    reader = Reader(engine)
    reader.feed(log)
    return diagnose(reader, evidence=evidence, **ended)


@pytest.mark.parametrize(
    ("log", "ended", "code", "phase"),
    [
        (b"", {"signal": 4}, "env.sigill", "import"),
        (b"", {"exit_code": 132}, "env.sigill", "import"),
        (LOADING, {"signal": 9}, "mem.host_oom_killed", "load"),
        (LOADING, {"exit_code": 137}, "mem.host_oom_killed", "load"),
        (LOADING, {"exit_code": 139}, "run.segfault", "load"),
        (LOADING, {"signal": 15}, "", "load"),
        (SERVING, {"exit_code": 143}, "", "serving"),
        (LOADING, {"signal": 2}, "user.interrupted", "load"),
        (LOADING + CORE_GONE, {"exit_code": 1}, "mem.host_oom_killed", "load"),
        (
            b"usage: vllm serve\nvllm: error: unrecognized arguments: --x 8\n",
            {"exit_code": 2},
            "args.unrecognized",
            "args",
        ),
        (b"", {"exit_code": 1}, "", "start"),
    ],
)
def test_the_way_it_ended(log: bytes, ended: dict[str, int], code: str, phase: str) -> None:
    found = read(log, **ended)
    assert (found.code, found.phase) == (code, phase)


# What the kernel counted, in the whole cgroup → how sure a KILL and a core that vanished are its doing.
COUNTED: dict[str, tuple[dict[str, Any], float, float]] = {
    "not known": ({}, 0.65, 0.62),
    "nothing": ({"oom_kills": 0}, 0.3, 0.0),
    "one, right before the end": ({"oom_kills": 1, "oom_ago_s": 2.0}, 0.95, 0.95),
    "one, some time while it lived": ({"oom_kills": 1}, 0.85, 0.75),
    "one, long before the end": ({"oom_kills": 1, "oom_ago_s": 900.0}, 0.65, 0.62),
    "one, which was another engine": ({"oom_kills": 1, "oom_ago_s": 2.0, "oom_others": 1}, 0.3, 0.0),
    "two, one of them another engine": ({"oom_kills": 2, "oom_ago_s": 2.0, "oom_others": 1}, 0.95, 0.95),
}


@pytest.mark.parametrize("name", COUNTED)
def test_a_kill_is_believed_to_be_the_kernels_only_as_far_as_the_kernel_says(name: str) -> None:
    known, killed, vanished = COUNTED[name]
    assert read(LOADING, Evidence(**known), signal=9).confidence == killed
    gone = read(LOADING + CORE_GONE, Evidence(**known), exit_code=1)
    if vanished:
        assert (gone.code, gone.confidence) == ("mem.host_oom_killed", vanished)
    else:
        assert gone.code == "run.worker_died", "the kernel says that it ended nothing"
    without = (
        LOADING + b"WARNING 01-01 10:00:00 [core_client.py:1] [shutdown] MPClient: engine core exited unexpectedly\n"
    )
    assert (read(without, Evidence(**known), exit_code=0).code == "run.worker_died") == (not vanished)


def test_the_death_of_one_engine_is_no_reason_of_anothers() -> None:
    """The count rises for all who share the memory; an end of another kind is not explained by it."""
    known = Evidence(oom_kills=1, oom_ago_s=1.0)
    assert read(LOADING, known, signal=11).code == "run.segfault"
    assert read(LOADING + b"ZeroDivisionError: division by zero\n", known, exit_code=1).code != "mem.host_oom_killed"
    assert read(LOADING, known, exit_code=1).code == "" and read(LOADING, known, signal=15).code == ""


def test_a_folder_without_its_configuration_is_told_from_a_folder_of_gguf_files() -> None:
    """vLLM 0.32 says the same of both; Berth knows what the folder held."""
    log = b"  Value error, Invalid repository ID or local directory specified: '/models/x'.\n"
    assert (read(log).code, read(log, Evidence(format="hf")).code) == ("gguf.dir", "config.json_missing")
    fix = read(log, Evidence(format="hf")).fixes[0]
    assert (fix.kind, fix.ready) == ("repair", True)


def test_exit_code_zero_is_no_success_when_the_core_is_gone() -> None:
    sample = next(sample for sample in SAMPLES if sample.name == "090")
    found = read(sample.log, exit_code=0)
    assert (found.code, found.failed, found.recognised) == ("mem.host_oom_killed", True, True)


def test_a_failed_exit_without_a_word_is_a_failure_that_is_not_recognised() -> None:
    found = read(LOADING, exit_code=1)
    assert (found.code, found.failed, found.recognised) == ("", True, False)


def test_an_error_that_no_rule_knows_is_shown_and_not_named() -> None:
    found = read(LOADING + b"Traceback (most recent call last):\nZeroDivisionError: division by zero\n", exit_code=1)
    assert (found.root_line, found.root, found.recognised) == (3, "ZeroDivisionError: division by zero", False)


def test_requests_that_fail_while_it_serves_are_no_failure() -> None:
    errors = (
        b"(APIServer pid=1) ERROR 01-01 10:00:00 [serving.py:1] Error in preprocessing prompt inputs\n"
        b"(APIServer pid=1) ERROR 01-01 10:00:00 [serving.py:1] Traceback (most recent call last):\n"
        b"(APIServer pid=1) ERROR 01-01 10:00:00 [serving.py:1] ValueError: This model's maximum context length is 8192 tokens.\n"
        b"ERROR:    Exception in ASGI application\nTraceback (most recent call last):\n"
        b'  File "/venv/x.py", line 1, in y\nRuntimeError: No response returned.\n'
    )
    assert read(SERVING + errors * 500, exit_code=0).code == ""
    fatal = b"(EngineCore pid=9) ERROR 01-01 10:00:00 [core.py:1] RuntimeError: CUDA error: an illegal memory access was encountered\n"
    found = read(SERVING + errors * 500 + fatal, exit_code=1)
    assert (found.code, found.root_line, found.phase) == ("gpu.illegal_memory", 2 + 7 * 500 + 1, "serving")


def test_a_broken_file_is_told_by_who_read_it() -> None:
    """JSON that ends early: the exception names no file, its frames do."""
    log = (
        b'Traceback (most recent call last):\n%s  File "/usr/lib/python3.11/json/decoder.py", line 353, in raw_decode\n'
    )
    log += b"json.decoder.JSONDecodeError: Unterminated string starting at: line 1 column 9 (char 8)\n"
    config = b'  File "/venv/transformers/configuration_utils.py", line 740, in _get_config_dict\n'
    words = b'  File "/venv/transformers/tokenization_utils_base.py", line 1650, in from_pretrained\n'
    assert [read(log % frame, exit_code=1).code for frame in (config, words)] == ["config.json_invalid", "tok.invalid"]


def test_the_same_words_mean_another_thing_in_another_phase() -> None:
    oom = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    loaded = LOADING + b"INFO 01-01 10:00:00 [x.py:1] Model loading took 14.99 GiB memory and 12.8 seconds\n"
    graph = (
        loaded
        + b"INFO 01-01 10:00:00 [x.py:1] Available KV cache memory: 3.2 GiB\nCapturing CUDA graphs (decode, FULL):   0%|  | 0/67 [00:00<?, ?it/s]\n"
    )
    codes = [read(log + oom).code for log in (LOADING, loaded, graph, SERVING)]
    assert codes == ["mem.oom_load", "mem.oom_profile", "mem.oom_graph", "mem.oom_runtime"]


def first(log: bytes, evidence: Evidence | None = None) -> tuple[str, Any, Any]:
    fix = read(log, evidence).fixes[0]
    assert fix.ready
    return fix.name, fix.before, fix.after


KV_NEW = (
    b"ValueError: To serve at least one request with the models's max seq len (32768), (18.35 GiB KV cache is needed, which is "
    b"larger than the available KV cache memory (10.1 GiB). Based on the available memory, the estimated maximum model length is 17985.\n"
)
BUSY = b"ValueError: Free memory on device cuda:0 (20.00/24.00 GiB) on startup is less than desired GPU memory utilization (0.9, 21.6 GiB).\n"


@pytest.mark.parametrize(
    ("log", "known", "expected"),
    [
        (KV_NEW, {"options": {"max_model_len": 32768}}, ("max_model_len", 32768, 17984)),
        (BUSY, {"options": {"gpu_memory_utilization": 0.9}}, ("gpu_memory_utilization", 0.9, 0.82)),
        (b"  Value error, Total number of attention heads (28) must be divisible by tensor parallel size (8).\n",
         {"options": {"tensor_parallel_size": 8}, "gpus": 8}, ("tensor_parallel_size", 8, 7)),
        (b"  Value error, Total number of attention heads (28) must be divisible by tensor parallel size (8).\n",
         {"options": {"tensor_parallel_size": 8}, "gpus": 4}, ("tensor_parallel_size", 8, 4)),
        (b"  Value error, Total number of attention heads (4) must be divisible by tensor parallel size (3).\n",
         {"options": {"tensor_parallel_size": 3}, "gpus": 0, "numa_nodes": 1}, ("tensor_parallel_size", 3, 1)),
        (b"AssertionError: 151936 is not divisible by 5\n", {"heads": 64}, ("tensor_parallel_size", None, 4)),
        (b"ValueError: LoRA rank 64 is greater than max_lora_rank 16.\n", {}, ("max_lora_rank", None, 64)),
        (b"ValueError: User-specified max_model_len (8192) is greater than the derived max_model_len (max_position_embeddings=2048.0 or\n",
         {}, ("max_model_len", None, 2048)),
        (b"ValueError: World size (4) is larger than the number of available GPUs (2) in this node.\n", {}, ("tensor_parallel_size", None, 2)),
        (b"ValueError: No common block size for 7 (CPU_ATTN: [MultipleOf(32)]).\n", {"options": {}}, ("block_size", None, None)),
    ],
)  # fmt: skip
def test_fixes_carry_their_number(log: bytes, known: dict[str, Any], expected: tuple[str, Any, Any]) -> None:
    assert first(log, Evidence(**known)) == expected


def test_a_free_share_below_the_weights_is_not_offered_as_ready() -> None:
    fixes = {fix.name: fix for fix in read(BUSY, Evidence(weights_gib=19.5)).fixes}
    assert not fixes["gpu_memory_utilization"].ready
    assert fixes["gpu_memory_utilization"].after is None


def test_what_changed_since_it_worked_leads() -> None:
    known = Evidence(
        options={"gpu_memory_utilization": 0.98, "seed": 1}, last_good={"gpu_memory_utilization": 0.9, "seed": 2}
    )
    found = read(BUSY, known)
    assert found.facts["changed"] == {"gpu_memory_utilization": [0.9, 0.98], "seed": [2, 1]}
    assert (found.fixes[0].name, found.fixes[0].after) == ("gpu_memory_utilization", 0.9)
    assert "seed" not in {fix.name for fix in found.fixes}


def test_a_value_that_failed_is_not_offered_again() -> None:
    log = b"ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your GPU has 7.5.\n"
    assert all(fix.before is None or str(fix.before) != str(fix.after) for fix in read(log).fixes)
    names = [
        fix.name
        for fix in read(
            b"AssertionError: 14 is not divisible by 4\n", Evidence(options={"tensor_parallel_size": 2})
        ).fixes
    ]
    assert names == []


def test_flags_that_are_unknown_are_left_out_or_renamed() -> None:
    dropped = read(b"vllm: error: unrecognized arguments: --swap-space 8 --disable-log-requests\n").fixes[0]
    assert (dropped.kind, dropped.name) == ("drop", "swap_space, disable_log_requests")
    renamed = read(b"vllm: error: unrecognized arguments: --max-model-length 512\n").fixes[0]
    assert (renamed.kind, renamed.after) == ("set", "max_model_len")


def test_a_misspelt_choice_is_corrected() -> None:
    log = b"KeyError: \"Reasoning parser 'qwenn3' not found. Available parsers: deepseek_r1, qwen3, granite\"\n"
    assert first(log) == ("reasoning_parser", None, "qwen3")


TOOLS = "hermes,llama3_json,mistral,olmo3,qwen3_coder,deepseek_v3,deepseek_v31,granite"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("hermess", "hermes"), ("qwen3-coder", "qwen3_coder"), ("Mistral", "mistral"), ("llama3json", "llama3_json"),
        ("mistrall", "mistral"),
        # Names of something else: another family, or another version of the same.
        ("smollm", None), ("olmo", None), ("qwen", None), ("deepseek_v32", None), ("llama4_json", None), ("", None),
    ],
)  # fmt: skip
def test_only_a_slip_of_the_pen_is_corrected(said: str, meant: str | None) -> None:
    assert slips.meant(said, TOOLS.split(",")) == meant
    if not said:
        return
    log = f"KeyError: 'invalid tool call parser: {said} (chose from {{ {TOOLS} }})'\n".encode()
    expected = ("tool_call_parser", None, meant)
    found = read(log).fixes[0]
    assert (found.name, found.before, found.after) == expected
    assert found.kind == ("set" if meant else "drop")


@pytest.mark.parametrize(
    ("message", "options", "expected"),
    [
        ("No module named 'tensorizer'", {"load_format": "tensorizer"}, ("drop", "load_format")),
        ("No module named 'runai_model_streamer'", {"load_format": "runai_streamer"}, ("drop", "load_format")),
        ("No module named 'lmcache'", {"kv_transfer_config": "{}"}, ("drop", "kv_transfer_config")),
        # The model needs it, whatever the person set.
        ("No module named 'einops'", {"load_format": "tensorizer"}, ("package", "einops")),
        ("No module named 'tensorizer'", {"load_format": "auto"}, ("package", "tensorizer")),
        ("No module named 'tensorizer'", {}, ("package", "tensorizer")),
    ],
)
def test_an_option_that_needs_a_missing_package_is_left_out_first(
    message: str, options: dict[str, str], expected: tuple[str, str]
) -> None:
    found = read(f"ModuleNotFoundError: {message}\n".encode(), Evidence(options=options))
    assert found.code == "env.missing_dep"
    assert (found.fixes[0].kind, found.fixes[0].name) == expected
    assert "package" in [fix.kind for fix in found.fixes]


def test_an_option_whose_package_is_missing_is_left_out_before_the_package_is_added() -> None:
    log = b"ImportError: Please install vllm[tensorizer] for tensorizer support.\n"
    offers = read(log, Evidence(options={"load_format": "tensorizer"})).fixes
    of = DeploymentSpec(artifact_id=1, options={"load_format": "tensorizer"})
    first, *rest = turn.fixes_of("env.missing_dep", offers, of, Around(host=4, python="/opt/a/bin/python"))
    assert (first.kind, first.patch, first.option) == ("patch", {"options": {}}, "load_format")
    assert "vllm[tensorizer]" in rest[0].command


def test_all_fixes_of_all_classes_can_be_said() -> None:
    for rule in ALL:
        for example in rule.examples:
            for fix in read(example.encode() + b"\n", engine=rule.engine).fixes:
                said = fix.as_dict()
                assert said["text"] and "%(" not in said["text"] and "None" not in said["text"], (rule.code, said)
