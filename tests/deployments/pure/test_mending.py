"""The first fix of everyday failures: from the engine's own words, this spec and this host to kind, patch and sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.reader import Reader
from deployments.diagnosis.result import Evidence
from deployments.diagnosis.rules import BY_CODE
from deployments.engines import changes
from deployments.engines.options import parse_schema
from deployments.fix_words import title
from deployments.mending import edits, refusals, safe, turn
from deployments.mending.around import Around, Engine, Form, Holder
from deployments.mending.fix import Fix
from deployments.spec import DeploymentSpec
from deployments.wording import words
from tests.deployments.builders import FLAGS

OLD, NEW = Engine(1, "0.10.2", "cuda", True), Engine(2, "0.32.0", "cuda", True)
GPU = Around(
    host=4, host_name="quay", runtime=OLD, engines=(NEW,), python="/opt/a/bin/python", copy=7, copy_path="/models/it",
    repairable=True, model=3,
)  # fmt: skip
ALONE = replace(GPU, engines=(), repairable=False)
CPU = replace(GPU, on_gpu=False, runtime=NEW, engines=(), kv_cache_gib=8)


def spec(**values: Any) -> DeploymentSpec:
    return DeploymentSpec(artifact_id=1, **values)


def fixes(log: str, code: str, of: DeploymentSpec, around: Around, evidence: Evidence | None = None) -> list[Fix]:
    reader = Reader()
    reader.feed(f"INFO 01-01 10:00:00 [api_server.py:1] vLLM API server version 0.32.0\n{log}\n".encode())
    found = diagnose(reader, exit_code=1, evidence=evidence)
    assert found.code == code
    return turn.fixes_of(code, found.fixes, of, around)


SHORT = (
    "ValueError: To serve at least one request with the models's max seq len (32768), (18.35 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (10.1 GiB). Based on the available memory, the estimated "
    "maximum model length is 17984."
)
OLD_SHORT = (
    "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV "
    "cache (23968). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
BUSY = (
    "ValueError: Free memory on device cuda:0 (5.92/79.19 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 71.27 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes."
)
OURS = Holder("team-chat", 40_960, 0, 12)
THEIRS = Holder("python3", 9_735, 0, None, 4711, "ada")
# log, class, spec, host → kind, patch (None: whatever), link or command, words of the title
EVERYDAY: dict[str, tuple[str, str, DeploymentSpec, Around, str, dict[str, Any], str, str]] = {
    "one GGUF file in the folder": (
        "  Value error, Invalid repository ID or local directory specified: '/models/it'.", "gguf.dir", spec(),
        replace(GPU, ggufs=(Form(9, "it-Q4_K_M.gguf"),)), "patch", {"artifact_id": 9}, "",
        "Use the GGUF file it-Q4_K_M.gguf instead of its folder",
    ),
    "wrong folder": (
        "  Value error, Invalid repository ID or local directory specified: '/models/it'.", "gguf.dir", spec(), GPU,
        "repair", {}, "model", "Look at the model's files again",
    ),
    "config.json missing": (
        "OSError: /models/it does not appear to have a file named config.json.", "config.json_missing", spec(), GPU,
        "repair", {}, "repair", "Fetch what is missing or damaged of the model's files",
    ),
    "config.json missing, source unknown": (
        "OSError: /models/it does not appear to have a file named config.json.", "config.json_missing", spec(), ALONE,
        "repair", {}, "model", "Download the missing files",
    ),
    "a shard missing": (
        'FileNotFoundError: No such file or directory: "/models/it/model-00002-of-00002.safetensors"',
        "load.missing_shard", spec(), GPU, "repair", {}, "repair", "Fetch model-00002-of-00002.safetensors again",
    ),
    "tokenizer missing": (
        "OSError: Can't load tokenizer for '/models/it'. If you were trying to load it from the Hub", "tok.missing_files",
        spec(), GPU, "repair", {}, "repair", "Fetch what is missing or damaged of the model's files",
    ),
    "architecture, a newer engine is here": (
        "  Value error, Model architectures ['FooForCausalLM'] are not supported for now. Supported architectures: x",
        "arch.unsupported", spec(), GPU, "patch", {"host_id": 4, "runtime_id": 2}, "", "Start with vLLM 0.32.0",
    ),
    "architecture, no newer engine": (
        "  Value error, Model architectures ['FooForCausalLM'] are not supported for now. Supported architectures: x",
        "arch.unsupported", spec(), ALONE, "runtime", {}, "install", "Install a newer vLLM on quay",
    ),
    "architecture with code of its own": (
        "  Value error, Model architectures ['FooForCausalLM'] are not supported for now. Supported architectures: x",
        "arch.unsupported", spec(), replace(GPU, engines=(), own_code=True), "runtime", {}, "install",
        "Install a newer vLLM on quay",
    ),
    "custom code": (
        "  Value error, The repository /models/it contains custom code which must be executed to correctly load the model.",
        "arch.remote_code", spec(), ALONE, "permission", {}, "code", "Allow this model's own program code",
    ),
    "bfloat16 on an old GPU": (
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has 7.5.",
        "dtype.bf16_cc", spec(), GPU, "patch", {"options": {"dtype": "half"}}, "",
        "Calculate with numbers of the format half",
    ),
    "cache smaller than one request": (
        SHORT, "mem.kv_lt_len", spec(options={"max_model_len": 32768}), GPU, "patch",
        {"options": {"max_model_len": 17984}}, "", "Lower the longest conversation to 17,984 tokens",
    ),
    "cache smaller than one request, old words": (
        OLD_SHORT, "mem.kv_lt_len", spec(options={"max_model_len": 131072}), GPU, "patch",
        {"options": {"max_model_len": 23968}}, "", "Lower the longest conversation to 23,968 tokens",
    ),
    "the flag typed by hand": (
        SHORT, "mem.kv_lt_len", spec(extra_args=["--max-model-len", "32768", "--seed=1"]), GPU, "patch",
        {"options": {"max_model_len": 17984}, "extra_args": ["--seed=1"]}, "",
        "Lower the longest conversation to 17,984 tokens",
    ),
    "memory held by a stranger": (
        BUSY.replace("5.92", "59.0"), "mem.gpu_busy", spec(), replace(GPU, holders=(THEIRS,)), "patch",
        {"options": {"gpu_memory_utilization": 0.73}}, "", "Take 73\u00a0% of the GPU's memory",
    ),
    "memory held by a deployment, too little left": (
        BUSY.replace("5.92", "1.92"), "mem.gpu_busy", spec(), replace(GPU, holders=(OURS, THEIRS)), "stop", {}, "deployment",
        "Stop team-chat, which holds 40.0\u00a0GiB of GPU 0",
    ),
    "memory while measuring": (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 22.09 GiB\n",
        "mem.oom_load", spec(), replace(GPU, twins=(Form(8, "It-AWQ (awq)"),)), "patch", {"artifact_id": 8}, "",
        "Use It-AWQ (awq), a smaller form of this model",
    ),
    "memory while choosing words": (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. Please try lowering",
        "mem.oom_sampler", spec(), GPU, "patch", {"options": {"max_num_seqs": 256}}, "",
        "Answer at most 256 requests at the same time",
    ),
    "an embedding model as a chat model": (
        "  Value error, This model does not support `--runner generate`.", "config.runner_mismatch", spec(),
        replace(GPU, tasks=("embed",)), "patch", {"task": "embed"}, "", "Use it for embeddings (vectors)",
    ),
    "a package too old": (
        "  Value error, The checkpoint you are trying to load has model type `gemma4` but Transformers does not recognize",
        "arch.transformers_old", spec(), ALONE, "runtime", {}, "install", "Install a newer vLLM on quay",
    ),
    "heads": (
        "  Value error, Total number of attention heads (28) must be divisible by tensor parallel size (8).", "tp.heads",
        spec(gpu_count=8), GPU, "patch", {"gpu_count": 7}, "", "Use 7 GPUs instead of 8",
    ),
    "quantisation": (
        "ValueError: Quantization method specified in the model config (awq) does not match the quantization method "
        "specified in the `quantization` argument (gptq).", "quant.mismatch", spec(options={"quantization": "gptq"}), GPU,
        "patch", {"options": {}}, "", "Leave out “Quantisation”",
    ),
    "driver too old, another engine works": (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "env.driver_old", spec(), GPU,
        "patch", {"host_id": 4, "runtime_id": 2}, "", "Start with vLLM 0.32.0",
    ),
    "NumPy 2": (
        "AttributeError: `newbyteorder` was removed from the ndarray class in NumPy 2.0.", "env.numpy2", spec(), ALONE,
        "package", {}, "/opt/a/bin/python -m pip install 'numpy<2'", "Install numpy<2 in the engine's own environment",
    ),
    "port": (
        "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', 18100): address already in use",
        "http.port_in_use", spec(), replace(GPU, port_holder="nginx (process 812)"), "again", {}, "", "Start again",
    ),
    "adapter's rank": (
        "ValueError: LoRA rank 64 is greater than max_lora_rank 16.", "lora.rank", spec(options={"enable_lora": True}),
        GPU, "patch", {"options": {"enable_lora": True, "max_lora_rank": 64}}, "", "Allow adapters of rank 64",
    ),
    "tool parser": (
        "KeyError: 'invalid tool call parser: hermis (chose from { hermes,mistral })'", "args.tool_parser_unknown",
        spec(options={"tool_call_parser": "hermis"}), GPU, "patch", {"options": {"tool_call_parser": "hermes"}}, "",
        "Change “Reader of tool calls” from hermis to hermes",
    ),
    "removed flag": (
        "vllm: error: unrecognized arguments: --swap-space 8", "args.unrecognized", spec(extra_args=["--swap-space", "8"]),
        GPU, "patch", {"extra_args": []}, "", "Leave out “swap_space”",
    ),
    "context beyond the model's": (
        "  Value error, User-specified max_model_len (8192) is greater than the derived max_model_len "
        "(max_position_embeddings=2048.0 or model_max_length=None in model's config.json).", "config.len_gt_derived",
        spec(options={"max_model_len": 8192}), GPU, "patch", {"options": {"max_model_len": 2048}}, "",
        "Lower the longest conversation to 2048 tokens",
    ),
    "no room for conversations on a CPU": (
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
        "the engine.",
        "mem.kv_none", spec(), CPU, "patch", {"kv_cache_gib": 16}, "",
        "Set aside 16 GiB of memory for conversations",
    ),
    "the CPU's cache": (
        "ValueError: Available memory on node 0 (4.52/23.21 GiB) on kv cache allocation is less than expected 40 GiB.",
        "mem.cpu_kv_space", spec(kv_cache_gib=40), CPU, "patch", {"kv_cache_gib": 3}, "",
        "Set aside 3 GiB of memory for conversations",
    ),
    "disk": (
        "OSError: [Errno 28] No space left on device", "env.disk_full", spec(), GPU, "host", {}, "df -h",
        "Free space on this disk, or keep models on another one",
    ),
    "open files": (
        "OSError: [Errno 24] Too many open files", "env.ulimit", spec(), GPU, "host", {}, "ulimit -n 65536",
        "Allow more open files",
    ),
    "programs not built for this GPU": (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device", "gpu.no_kernel_image",
        spec(), ALONE, "runtime", {}, "install", "Install another vLLM on quay",
    ),
    "parts of different versions": (
        "ImportError: /opt/a/lib/python3.12/site-packages/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
        "env.abi_mismatch", spec(), GPU, "patch", {"host_id": 4, "runtime_id": 2}, "", "Start with vLLM 0.32.0",
    ),
    "adapters on a model that takes none": (
        "ValueError: FooForCausalLM does not support LoRA yet.", "lora.unsupported",
        spec(options={"enable_lora": True, "max_loras": 2}, extra_args=["--lora-modules", "a=/models/a"]), GPU, "patch",
        {"options": {}, "extra_args": []}, "", "Leave out “Use adapters (LoRA)”, “lora_modules”, “Adapters at once”",
    ),
    "recorded programs do not fit": (
        "INFO 01-01 10:00:00 [gpu_model_runner.py:1] Graph capturing started\n"
        "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  10%|█         | 5/51 [00:01<00:11,  4.1it/s]\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 22.09 GiB",
        "mem.oom_graph", spec(), GPU, "patch", {"options": {"gpu_memory_utilization": 0.85}}, "",
        "Take 85\u00a0% of the GPU's memory",
    ),
    "workers waited for each other": (
        "RuntimeError: [Rank 0] collective operation timeout: WorkNCCL ran for 600000 milliseconds before timing out.",
        "nccl.timeout", spec(), GPU, "again", {}, "", "Start again unchanged",
    ),
    "Ray": (
        "ValueError: Unable to load Ray which is required for multi-node inference, please install Ray with `pip install ray`.",
        "ray.missing", spec(options={"distributed_executor_backend": "ray"}), GPU, "patch",
        {"options": {"distributed_executor_backend": "mp"}}, "", "Change “distributed_executor_backend” from ray to mp",
    ),
    "shared memory": (
        "RuntimeError: DataLoader worker is killed by signal: Bus error. Possible insufficient shared memory (shm).",
        "env.shm", spec(), GPU, "host", {}, "docker run --shm-size 16g …", "Give the container more shared memory",
    ),
    "killed for memory on a CPU": (
        "WARNING 01-01 10:00:00 [core_client.py:1] [shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
        "mem.host_oom_killed", spec(), CPU, "patch", {"kv_cache_gib": 4}, "", "Set aside 4 GiB of memory for conversations",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EVERYDAY)
def test_the_first_fix_is_right(name: str) -> None:
    log, code, of, around, kind, patch, where, said = EVERYDAY[name]
    found = fixes(log, code, of, around)
    first = found[0]
    assert (first.kind, dict(first.patch), title(first)[0]) == (kind, patch, said), [title(fix)[0] for fix in found]
    assert where in (first.link, first.command, "")
    assert len({fix.key for fix in found}) == len(found)


def test_what_changed_since_it_worked_comes_first() -> None:
    now, then = {"gpu_memory_utilization": "0.98"}, {"gpu_memory_utilization": "0.90"}
    evidence = Evidence(options=now, last_good=then, gpu_total_gib=79.19)
    of = spec(options={"gpu_memory_utilization": 0.98})
    first = fixes(BUSY.replace("5.92", "75.0"), "mem.gpu_busy", of, GPU, evidence)[0]
    assert dict(first.patch) == {"options": {"gpu_memory_utilization": 0.9}}
    assert title(first)[0] == "Change “Share of GPU memory” back to 0.9"


def test_what_the_spec_cannot_use_is_not_offered() -> None:
    nobody_set_it = fixes(EVERYDAY["quantisation"][0], "quant.mismatch", spec(), GPU)
    assert all(fix.kind != "patch" or fix.code != "fix.drop" for fix in nobody_set_it)
    secret = "ValueError: No supported config format found in mistralai/Mistral-7B-v0.1."
    assert not [fix for fix in fixes(secret, "hub.no_config", spec(), GPU) if "HF_TOKEN" in str(fix.patch)]
    unknown = replace(GPU, flags=frozenset({"dtype"}))
    found = fixes(SHORT, "mem.kv_lt_len", spec(), unknown)
    assert not [fix for fix in found if fix.kind == "patch"], "this version has no such flags"


@pytest.mark.parametrize("name", ["evil; rm -rf /", "x\ny", "$(id)", "../x"])
def test_a_package_named_by_a_log_is_no_command(name: str) -> None:
    from deployments.diagnosis.result import Offer

    offer = Offer("package", name, chance=80)
    assert turn.fixes_of("env.missing_dep", [offer], spec(), GPU) == []


# --- what was refused before a start ----------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], DeploymentSpec, str, dict[str, Any], str]] = {
    "misspelt": (
        {"code": "flag.unknown", "params": {"flag": "--max-num-seq", "near": "--max-num-seqs"}},
        spec(options={"max_num_seq": 4}), "patch", {"options": {"max_num_seqs": 4}}, "Write max_num_seqs instead of max_num_seq",
    ),
    "unknown": (
        {"code": "flag.unknown", "params": {"flag": "--frobnicate", "near": ""}}, spec(extra_args=["--frobnicate", "3"]),
        "patch", {"extra_args": []}, "Leave out “frobnicate”",
    ),
    "denied": (
        {"code": "option.denied_house", "params": {"flag": "--port"}}, spec(options={"port": 8000}), "patch",
        {"options": {}}, "Leave out “port”",
    ),
    "another choice": (
        {"code": "option.not_a_choice", "params": {"flag": "--dtype", "value": "bfloat-16", "choices": ["bfloat16", "half"]}},
        spec(options={"dtype": "bfloat-16"}), "patch", {"options": {"dtype": "bfloat16"}},
        "Calculate with numbers of the format bfloat16",
    ),
    "a parser of another family": (
        {"code": "option.not_a_choice",
         "params": {"flag": "--tool-call-parser", "value": "smollm", "choices": ["hermes", "olmo3"]}},
        spec(options={"enable_auto_tool_choice": True, "tool_call_parser": "smollm"}), "patch", {"options": {}},
        "Leave out “Reader of tool calls”, “Let the model call tools”",
    ),
    "heads": (
        {"code": "place.none", "params": {"candidates": [
            {"name": "quay", "code": "parallel.heads", "params": {"heads": 4, "parts": 3}}]}},
        spec(options={"tensor_parallel_size": 3}), "patch", {"gpu_count": 2, "options": {}}, "Use 2 GPUs instead of 3",
    ),
    "own code": (
        {"code": "model.remote_code", "params": {"files": ["x.py"]}}, spec(), "permission", {},
        "Allow this model's own program code",
    ),
    "engine gone": (
        {"code": "place.none", "params": {"candidates": [{"name": "quay", "code": "runtime.gone", "params": {}}]}},
        spec(runtime_id=8), "patch", {"runtime_id": None}, "Let Berth choose the engine",
    ),
    "variable": (
        {"code": "env.denied", "params": {"name": "LD_PRELOAD"}}, spec(env={"LD_PRELOAD": "x"}), "patch", {"env": {}},
        "Leave out the variable LD_PRELOAD",
    ),
    "files gone": (
        {"code": "path_missing", "params": {"path": "/models/it"}}, spec(), "repair", {},
        "Fetch what is missing or damaged of the model's files",
    ),
    "slow": (
        {"code": "start.deadline", "params": {"phase": "load"}}, spec(start_deadline_s=600), "patch",
        {"start_deadline_s": 1200.0}, "Allow 20 minutes for a start instead of 10",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_was_refused_has_a_fix(name: str) -> None:
    reason, of, kind, patch, said = REFUSED[name]
    found = refusals.fixes_of(reason, of, GPU)
    assert (found[0].kind, dict(found[0].patch), title(found[0])[0]) == (kind, patch, said)


# typed → the flag that was surely meant, the one that is asked about
ALIKE = {
    "max_num_seq": ("--max-num-seqs", ""),
    "max_len": ("", "--max-log-len"),
    "tensor_paralel_size": ("--tensor-parallel-size", ""),
    "gpu_memory_utilisation_": ("--gpu-memory-utilization", ""),
    "min_model_len": ("", "--max-model-len"),  # the opposite is no slip
    "disable_prefix_caching": ("", "--enable-prefix-caching"),
    "reasoning": ("", "--reasoning-parser"),
    "frobnicate": ("", ""),
}  # fmt: skip


@pytest.mark.parametrize("typed", ALIKE)
def test_a_flag_is_renamed_only_where_it_is_surely_meant(typed: str) -> None:
    schema = parse_schema(FLAGS)
    found = changes.apply(typed.replace("-", "_"), "8", schema, device="cuda", version="0.32.0")
    assert found.refusal is not None and found.refusal.code == "flag.unknown"
    near, maybe = ALIKE[typed]
    assert (found.refusal.params["near"], found.refusal.params["maybe"]) == (near, maybe)
    of = spec(options={typed.replace("-", "_"): "8"})
    first, *rest = refusals.fixes_of(found.refusal.as_dict(), of, GPU)
    assert first.code == ("fix.rename" if near else "fix.drop")
    assert all(fix.code != "fix.rename" for fix in rest)
    said = words(found.refusal.as_dict())
    assert said is not None and (f"Was {maybe} meant?" in said.hint) == bool(maybe)


def test_a_guess_of_an_older_refusal_is_no_fix() -> None:
    old = {"code": "flag.unknown", "params": {"flag": "--min-model-len", "near": "--max-model-len"}}
    (only,) = refusals.fixes_of(old, spec(options={"min_model_len": 8}), GPU)
    assert only.code == "fix.drop"


# --- edits ------------------------------------------------------------------------------------------------------------


def test_flags_typed_by_hand_are_found_and_taken_out() -> None:
    of = spec(extra_args=["-tp", "4", "--enforce-eager", "--lora-modules", "a=/m/a", "b=/m/b", "--seed=1"])
    assert edits.value_of(of, "tensor_parallel_size") == "4"
    assert edits.with_gpus(of, 2) == {
        "gpu_count": 2,
        "extra_args": ["--enforce-eager", "--lora-modules", "a=/m/a", "b=/m/b", "--seed=1"],
    }
    assert edits.without_option(of, "lora_modules") == {"extra_args": ["-tp", "4", "--enforce-eager", "--seed=1"]}
    assert edits.without_option(of, "enforce_eager") is not None and edits.without_option(of, "dtype") is None
    picked = spec(gpu_uuids=["a", "b", "c"], options={"tensor_parallel_size": 3})
    assert edits.with_gpus(picked, 2) == {"gpu_count": 2, "options": {}, "gpu_uuids": ["a", "b"]}


# --- once by itself ---------------------------------------------------------------------------------------------------


def test_only_a_safe_first_fix_is_applied_without_a_person() -> None:
    context = Fix("patch", "fix.context_down", patch={"options": {"max_model_len": 2048}}, option="max_model_len")
    fp8 = Fix(
        "patch", "fix.kv_fp8", patch={"options": {"kv_cache_dtype": "fp8"}}, option="kv_cache_dtype", cost="quality"
    )
    stop = Fix("stop", "fix.stop_gpu", link="deployment", target=3)
    assert safe.first_of([context, fp8]) is context and safe.first_of([Fix("again", "fix.again_port")]) is not None
    assert (
        safe.first_of([fp8, context]) is None and safe.first_of([stop, context]) is None and safe.first_of([]) is None
    )


@pytest.mark.parametrize(
    ("code", "earlier", "on", "was_ready", "due"),
    [
        ("mem.kv_lt_len", [{}], True, False, True),
        ("mem.kv_lt_len", [{"by_itself": True}], True, False, False),
        ("mem.kv_lt_len", [], False, False, False),
        ("mem.kv_lt_len", [], True, True, False),
        ("arch.remote_code", [], True, False, False),
        ("", [], True, False, False),
    ],
)
def test_once_and_for_safe_classes_alone(code: str, earlier: list[Any], on: bool, was_ready: bool, due: bool) -> None:
    assert safe.is_due({"class": code}, earlier, switched_on=on, was_ready=was_ready) == due
    assert not safe.is_due({"class": code, "fix_tried": True}, earlier, switched_on=on, was_ready=was_ready)


def test_every_safe_class_is_one_of_the_rules() -> None:

    assert set(BY_CODE) >= safe.CLASSES
