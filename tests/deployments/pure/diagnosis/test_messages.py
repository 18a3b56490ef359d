"""Single lines as engines print them, other than the rules' own examples; and chains of errors that lead astray."""

from __future__ import annotations

import pytest

from tests.deployments.pure.diagnosis.collected import DATA, read

ROWS = [line.split("\t", 2) for line in (DATA / "messages.tsv").read_text(encoding="utf-8").splitlines()[1:]]


@pytest.mark.parametrize(("engine", "code", "line"), ROWS, ids=[f"{index} {row[1]}" for index, row in enumerate(ROWS)])
def test_a_line_alone_tells_its_class(engine: str, code: str, line: str) -> None:
    found = read(line.encode() + b"\n", engine)
    assert (found.code, found.root_line, found.recognised) == (code, 1, True)


CHAINS = {
    "a repository that does not exist": (
        "hub.not_found", 1,
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/a/b/resolve/main/config.json\n"
        "\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
        "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1)\n\nRepository Not Found for url: https://x.\n"
        "OSError: a/b is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'\n",
    ),
    "no name resolution": (
        "hub.unreachable", 1,
        "socket.gaierror: [Errno -3] Temporary failure in name resolution\nDuring handling of the above exception, another:\n"
        "urllib3.exceptions.NameResolutionError: <urllib3.connection.HTTPSConnection object>: Failed to resolve 'huggingface.co'\n"
        "urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /x\n",
    ),
    "a model whose code cannot be imported": (
        "env.dep_mismatch", 4,
        "ERROR 03-27 10:00:00 [registry.py:347] Error in inspecting model architecture 'Qwen2_5_VLForConditionalGeneration'\n"
        "ERROR 03-27 10:00:00 [registry.py:347] subprocess.CalledProcessError: Command '['python', '-m', 'x']' returned non-zero exit status 1.\n"
        "ERROR 03-27 10:00:00 [registry.py:347] RuntimeError: Error raised in subprocess:\n"
        "ERROR 03-27 10:00:00 [registry.py:347] ImportError: cannot import name 'VideoInput' from 'transformers.image_utils' (/venv/x.py)\n"
        "ValueError: Model architectures ['Qwen2_5_VLForConditionalGeneration'] failed to be inspected. Please check the logs for more details.\n",
    ),
    "an extension that failed to load": (
        "env.abi_mismatch", 1,
        "WARNING 03-27 10:00:00 [_custom_ops.py:20] Failed to import from vllm._C with ImportError('/v/_C.abi3.so: undefined symbol: _ZN3c10')\n"
        "INFO 03-27 10:00:01 [api_server.py:1] vLLM API server version 0.10.0\n"
        "(EngineCore_0 pid=7) ERROR 03-27 10:00:09 [core.py:1] AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'\n"
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n",
    ),
    "shared memory under NCCL": (
        "env.shm", 1,
        "node:57:57 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-v2jS20 to 9637892 bytes\n"
        "(VllmWorkerProcess pid=8) ERROR 01-01 10:00:00 multiproc_worker_utils.py:1] RuntimeError: NCCL error: unhandled system error\n",
    ),
    "the engine's own words after a bare out of memory": (
        "mem.oom_sampler", 2,
        "(EngineCore pid=2) ERROR 01-01 10:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB.\n"
        "(EngineCore pid=2) ERROR 01-01 10:00:00 [core.py:1] RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests.\n",
    ),
    "a worker that died makes the others complain": (
        "gpu.illegal_memory", 1,
        "(Worker_TP1 pid=3) ERROR 01-01 10:00:00 [x.py:1] torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
        "(Worker_TP0 pid=2) ERROR 01-01 10:00:01 [x.py:1] torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited\n"
        "(EngineCore pid=1) ERROR 01-01 10:00:02 [x.py:1] Worker proc VllmWorker-1 died unexpectedly, shutting down executor.\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_of_a_chain_the_right_link_is_named(name: str) -> None:
    code, line, log = CHAINS[name]
    found = read(log.encode(), "vllm")
    assert (found.code, found.root_line) == (code, line)


def test_what_another_program_passes_on_as_a_notice_is_still_an_error() -> None:
    said = b"2026-01-02 03:04:05,678 - __main__ - INFO - "
    error = b"ValueError: No available memory for the cache blocks.\n"
    assert read(said + b"all is well\n" + said + error).code == "mem.kv_none"
    assert read(said + b"WARNING 01-02 03:04:05 [x.py:1] " + error).code == ""
    assert read(said.replace(b"INFO", b"WARNING") + error).code == ""


def test_a_thread_that_fails_beside_the_start_is_not_its_end() -> None:
    beside = (
        b"(EngineCore pid=8) Exception in thread Thread-1 (_report_usage_worker):\n(EngineCore pid=8) Traceback (most recent call last):\n"
        b"(EngineCore pid=8) PermissionError: [Errno 13] Permission denied: '/.config'\n"
    )
    fatal = (
        b"(EngineCore pid=8) ERROR 01-01 10:00:00 [core.py:1] ValueError: No available memory for the cache blocks.\n"
    )
    assert read(beside + fatal, "vllm").code == "mem.kv_none"
    assert read(beside, "vllm").code == "env.permission"  # nothing else tells


def test_an_error_after_which_the_weights_were_loaded_was_not_fatal() -> None:
    log = (
        b"INFO 01-01 10:00:00 [__init__.py:216] Automatically detected platform cuda.\n"
        b"ImportError: libcudart.so.12: cannot open shared object file: No such file or directory\n"
        b"INFO 01-01 10:00:09 [gpu_model_runner.py:1] Starting to load model /models/x...\n"
        b"ERROR 01-01 10:00:19 [core.py:1] KeyError: 'layers.0.mlp.weight'\n"
    )
    assert (read(log, "vllm").code, read(log, "vllm").root_line) == ("load.unexpected_key", 4)
    without = b"\n".join(log.split(b"\n")[:2])
    assert read(without, "vllm").code == "env.cuda_lib_missing"


def test_a_crash_is_where_python_says_it() -> None:
    signal = b"(RayWorkerWrapper pid=7) *** SIGSEGV received at time=1746566409 on cpu 131 ***\n"
    where = b"(RayWorkerWrapper pid=7) Fatal Python error: Segmentation fault\n"
    assert (read(signal).code, read(signal).root_line) == ("run.segfault", 1)
    assert (read(signal + where).code, read(signal + where).root_line) == ("run.segfault", 2)


def test_where_the_beginning_is_lost_what_others_did_next_tells_the_phase() -> None:
    lost = b"(Worker_TP1 pid=3) ERROR 01-01 10:00:00 [x.py:1] torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
    other = b"(Worker_TP0 pid=2) INFO 01-01 10:00:00 [backends.py:1] Dynamo bytecode transform time: 7.92 s\n"
    assert (read(lost).phase, read(lost + other).phase) == ("profile", "compile")


def test_a_server_that_listens_before_it_loads_has_not_served() -> None:
    log = (
        b"build: 4205 (c6bc7395) with cc\nmain: HTTP server is listening, hostname: 127.0.0.1, port: 8080, http threads: 11\n"
        b"main: loading model\nsrv    load_model: loading model 'x.gguf'\n"
        b"llama_model_load: error loading model: error loading model vocabulary: unknown pre-tokenizer type: 'x'\n"
    )
    found = read(log)
    assert (found.code, found.phase, found.root_line) == ("llamacpp.unknown_pretokenizer", "load", 5)


HARMLESS = (
    b"ERROR 01-01 10:00:00 [fa_utils.py:57] Cannot use FA version 2 is not supported due to FA3 is only supported on devices with compute capability >= 8\n"
    b"ERROR 01-01 10:00:00 [config.py:130] Error retrieving safetensors: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/x'., retrying 1 of 2\n"
    b"[2025-01-01 10:00:00] Ignore import error when loading sglang.srt.models.glm4v: cannot import name 'Glm4vConfig' from 'transformers' (/v/x.py)\n"
    b"ERROR: pip's dependency resolver does not currently take into account all the packages that are installed.\n"
    b"vllm 0.9.1 requires torch==2.7.0, but you have torch 2.6.0 which is incompatible.\n"
    b"/venv/torch/cuda/__init__.py:63: FutureWarning: The pynvml package is deprecated. No module named 'x'\n"
    b"/venv/vllm/version.py:8: RuntimeWarning: Failed to read commit hash:\nNo module named 'vllm._version'\n"
    b"WARNING:root:Please install flash_attn to use this.\n"
    b"WARNING 01-01 10:00:00 [x.py:1] Found ulimit of 1024 and failed to automatically increase with error. OSError: [Errno 24] Too many open files\n"
    b"[W622 01:26:22.7 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called, Error: x\n"
    b"sagemaker HandlerFileNotFoundError: [Errno 2] No such file or directory: '/opt/ml/model/model.py'\n"
)


def test_scary_lines_of_healthy_starts_are_no_cause() -> None:
    assert not read(HARMLESS, "vllm").recognised
    for engine in ("vllm", "sglang"):
        for line in HARMLESS.splitlines(keepends=True):
            assert not read(line, engine).recognised, line
        found = read(HARMLESS + b"ValueError: No available memory for the cache blocks.\n", "vllm")
        assert (found.code, found.root_line) == ("mem.kv_none", HARMLESS.count(b"\n") + 1)


def test_what_came_up_was_not_kept_from_it() -> None:
    early = b"ERROR 01-01 10:00:00 [x.py:1] OSError: [Errno 28] No space left on device\n"
    found = read(early + b"INFO:     Application startup complete.\n", "vllm")
    assert (found.code, found.failed) == ("", False)


def test_a_port_that_is_taken_last() -> None:
    log = (
        b"INFO:     Started server process [1]\nINFO:     Application startup complete.\n"
        b"ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use\n"
        b"INFO:     Waiting for application shutdown.\nINFO:     Application shutdown complete.\n"
    )
    found = read(log, "vllm")
    assert (found.code, found.phase, found.root_line) == ("http.port_in_use", "http", 3)


BESIDE = (
    b"ERROR 01-01 10:00:00 [registry.py:810] Error saving model info cache.\n"
    b"ERROR 01-01 10:00:00 [registry.py:810] Traceback (most recent call last):\n"
    b"ERROR 01-01 10:00:00 [registry.py:810] FileNotFoundError: [Errno 2] No such file or directory: '/.cache/vllm/modelinfos'\n"
    b"ERROR 01-01 10:00:00 [registry.py:810] \n"
    b"ERROR 01-01 10:00:00 [registry.py:810] During handling of the above exception, another exception occurred:\n"
    b"ERROR 01-01 10:00:00 [registry.py:810] Traceback (most recent call last):\n"
    b"ERROR 01-01 10:00:00 [registry.py:810] PermissionError: [Errno 13] Permission denied: '/.cache'\n",
    b"Exception in thread Thread-5 (_report_usage_worker):\nTraceback (most recent call last):\n"
    b"requests.exceptions.ConnectionError: HTTPSConnectionPool(host='stats.vllm.ai', port=443): Max retries exceeded\n",
    b"Task exception was never retrieved\nfuture: <Task finished name='Task-1' coro=<x()>>\n"
    b"Traceback (most recent call last):\nConnectionResetError: [Errno 104] Connection reset by peer\n",
    b"'(MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded\"))' thrown while requesting "
    b"HEAD https://huggingface.co/a/b/resolve/main/config.json\nRetrying in 1s [Retry 1/5].\n",
)


@pytest.mark.parametrize("beside", BESIDE)
def test_what_the_engine_goes_on_without_is_no_cause(beside: bytes) -> None:
    up = b"INFO:     Application startup complete.\n"
    for log in (
        beside + up,
        up + beside,
        b"INFO 01-01 10:00:00 [api_server.py:1] vLLM API server version 0.11.0\n" + beside,
    ):
        assert not read(log, "vllm").failed or up not in log, log
    found = read(beside + b"ValueError: No available memory for the cache blocks.\n", "vllm")
    assert (found.code, found.root_line) == ("mem.kv_none", beside.count(b"\n") + 1)


def test_imports_that_failed_above_the_banner_did_not_end_a_start_that_serves() -> None:
    log = (
        b"A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1.2 as it may crash.\n"
        b"INFO 01-01 10:00:00 [api_server.py:1] vLLM API server version 0.11.0\n"
    )
    assert not read(log + b"INFO:     Application startup complete.\n", "vllm").failed
    assert read(log, "vllm").code == "env.numpy2"


def test_sizes_that_differ_while_the_model_computes_are_no_wrong_cut() -> None:
    frame = b'Traceback (most recent call last):\n  File "/v/vllm/v1/worker/gpu_model_runner.py", line 1, in %s\n'
    sizes = b"RuntimeError: The size of tensor a (4900) must match the size of tensor b (4096) at non-singleton dimension 1\n"
    assert read(frame % b"load_model" + sizes, "vllm").code == "tp.quant_shard"
    assert (read(frame % b"profile_run" + sizes, "vllm").code, read(frame % b"profile_run" + sizes, "vllm").phase) == (
        "run.bug",
        "profile",
    )


def test_who_listens_late_finds_its_port_taken() -> None:
    log = (
        b"[2025-01-01 10:00:00] server_args=ServerArgs(model_path='/m')\n[2025-01-01 10:00:01] INFO:     Application startup complete.\n"
        b"[2025-01-01 10:00:02] ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 30000): address already in use\n"
    )
    assert (read(log, "sglang").code, read(log, "sglang").phase) == ("sglang.port_in_use", "http")


def test_a_core_that_died_is_explained_where_the_beginning_is_lost() -> None:
    log = (
        b"ERROR 10-01 09:52:48 client.py:244] TimeoutError('No heartbeat received from MQLLMEngine')\n"
        b"INFO 10-01 09:52:48 metrics.py:351] Avg prompt throughput: 2443.7 tokens/s, Running: 0 reqs\n"
        b"CRITICAL 10-01 09:52:48 launcher.py:99] MQLLMEngine is already dead, terminating server process\n"
    )
    assert (read(log, "vllm").code, read(log, "vllm").root_line) == ("run.rpc_timeout", 1)


@pytest.mark.parametrize(
    ("engine", "line"),
    [
        ("vllm", b"Exception: Could not send runai_request to libstreamer due to: b'File access error'\n"),
        ("llamacpp", b"/llama.cpp/tools/server/server.cpp:3700: GGML_ASSERT(!slot.prompt.tokens.has_mtmd) failed\n"),
    ],
)
def test_an_error_that_no_rule_knows_is_shown_all_the_same(engine: str, line: bytes) -> None:
    found = read(line, engine)
    assert (found.code, found.root_line, found.root) == ("run.bug", 1, line.decode().strip())


def test_a_server_in_the_middle_of_its_work_has_served() -> None:
    log = b"[2025-02-03 22:28:08 TP12] Decode out of memory happened. #retracted_reqs: 3\nFatal Python error: Segmentation fault\n"
    assert (read(log, "sglang").code, read(log, "sglang").phase) == ("run.segfault", "serving")
    log = b'INFO:     127.0.0.1:45354 - "POST /v1/completions HTTP/1.1" 200 OK\nRuntimeError: CUDA error: an illegal memory access was encountered\n'
    assert (read(log, "vllm").code, read(log, "vllm").phase) == ("gpu.illegal_memory", "serving")
