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


def test_a_server_that_listens_before_it_loads_has_not_served() -> None:
    log = (
        b"build: 4205 (c6bc7395) with cc\nmain: HTTP server is listening, hostname: 127.0.0.1, port: 8080, http threads: 11\n"
        b"main: loading model\nsrv    load_model: loading model 'x.gguf'\n"
        b"llama_model_load: error loading model: error loading model vocabulary: unknown pre-tokenizer type: 'x'\n"
    )
    found = read(log)
    assert (found.code, found.phase, found.root_line) == ("llamacpp.unknown_pretokenizer", "load", 5)
