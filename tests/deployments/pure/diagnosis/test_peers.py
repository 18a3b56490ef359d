"""One of several processes ends, and the others lose their connection to it: the first tells why, in whatever order."""

from __future__ import annotations

import pytest

from deployments.diagnosis.result import Evidence
from tests.deployments.pure.diagnosis.test_endings import LOADING, read

WEIGHTS = LOADING + b"(Worker_TP0 pid=11) INFO 01-01 10:00:01 [m.py:1] Loading weights took 1.00 seconds\n"
OTHER = b"(Worker_TP1 pid=12) ERROR 01-01 10:00:02 [multiproc_executor.py:824] "
# What the process that lives says of it.
PEERS: dict[str, bytes] = {
    "nccl": b"(Worker_TP0 pid=11) ERROR 01-01 10:00:02 [multiproc_executor.py:824] torch.distributed.DistBackendError: "
    b"NCCL error in: /p/NCCLUtils.cpp:94, remote process exited or there was a network error, NCCL version 2.27.3\n"
    b"(Worker_TP0 pid=11) ERROR 01-01 10:00:02 [multiproc_executor.py:824] ncclRemoteError: A call failed possibly due "
    b"to a network error or a remote process exiting prematurely.\n",
    "gloo": b"(Worker_TP0 pid=11) ERROR 01-01 10:00:02 [multiproc_executor.py:824] RuntimeError: "
    b"[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:41234\n",
    "store": b"[rank0]: torch.distributed.DistBackendError: [0] is setting up NCCL communicator, but store->get('1') "
    b"got error: Connection reset by peer\n",
    "bare": b"(Worker_TP0 pid=11) ERROR 01-01 10:00:02 [m.py:1] ConnectionResetError: [Errno 104] Connection reset by peer\n",
    "ray": b"(EngineCore_DP0 pid=9) ERROR 01-01 10:00:02 [core.py:386] ray.exceptions.ActorDiedError: The actor died "
    b"unexpectedly before finishing this task.\n",
}
# What the other one, or the system, says of its end: class, and the words that its line holds.
ENDS: dict[str, tuple[bytes, str, str]] = {
    "memory of the GPU": (
        OTHER + b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n",
        "mem.oom_load",
        "OutOfMemoryError",
    ),
    "an error that no rule knows": (OTHER + b"ValueError: this and that do not go together\n", "run.bug", "ValueError"),
    "the kernel": (
        b"[ 123.4] oom-kill:constraint=CONSTRAINT_MEMCG,task=VLLM::Worker_TP,pid=12\n",
        "mem.host_oom_killed",
        "oom-kill",
    ),
    "its exit code": (b"ERROR 01-01 10:00:02 [m.py:1] Worker VllmWorkerProcess pid 12 died, exit code: -9\n",
                      "mem.host_oom_killed", "exit code: -9"),
    "its core": (
        b"RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': -9}\n",
        "mem.host_oom_killed",
        "-9",
    ),
    "nobody": (
        b"ERROR 01-01 10:00:02 [multiproc_executor.py:140] Worker proc VllmWorker-1 died unexpectedly, shutting down.\n",
        "run.worker_died",
        "VllmWorker-1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("first", ["peer", "end"])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("peer", PEERS)
def test_what_ended_the_other_process_counts_above_and_below(peer: str, end: str, first: str) -> None:
    said, code, words = ENDS[end]
    pair = (PEERS[peer], said) if first == "peer" else (said, PEERS[peer])
    found = read(WEIGHTS + b"".join(pair), exit_code=1)
    if (peer, end) == ("ray", "nobody"):  # both say only that one is gone
        assert found.code == "run.worker_died"
        return
    assert (found.code in (code, "mem.oom_profile"), words in found.root) == (True, True), (found.code, found.root)
    assert found.root_line == (3 if first == "end" else 3 + PEERS[peer].count(b"\n"))


@pytest.mark.parametrize("peer", ["nccl", "gloo", "store"])
def test_alone_it_is_likely_and_no_more(peer: str) -> None:
    found = read(WEIGHTS + PEERS[peer], exit_code=1)
    assert (found.code, found.confidence, found.recognised, found.root_line) == ("dist.peer_gone", 0.6, True, 3)


def test_a_reset_that_does_not_say_of_whom_is_not_named() -> None:
    found = read(WEIGHTS + PEERS["bare"], exit_code=1)
    assert (found.root_line, found.recognised) == (3, False)


@pytest.mark.parametrize(
    "after",
    [
        b"(Worker_TP0 pid=11) ERROR 01-01 10:00:03 [m.py:1] ValueError: some object is not there any more\n",
        b"(EngineCore_DP0 pid=9) ERROR 01-01 10:00:03 [core.py:1] LookupError: no answer from the workers\n",
        b"(EngineCore_DP0 pid=9) ERROR 01-01 10:00:03 [core.py:1] TimeoutError: RPC call to sample_tokens timed out.\n",
        b"(Worker_TP1 pid=12) KeyboardInterrupt: terminated\n",
        b"ERROR 01-01 10:00:03 [multiproc_executor.py:140] Worker proc VllmWorker-0 died unexpectedly, shutting down.\n",
        b"WARNING 01-01 10:00:03 [core_client.py:1] [shutdown] MPClient: engine core exited unexpectedly\n",
        b"(EngineCore_DP0 pid=9) RuntimeError: Worker failed with error '[/g/gloo/transport/tcp/pair.cc:534] Connection "
        b"closed by peer', please check the stack trace above for the root cause\n",
    ],
    ids=["itself", "core", "waited", "ended", "its own end", "core gone", "repeated"],
)
def test_what_follows_from_the_loss_is_no_cause(after: bytes) -> None:
    found = read(WEIGHTS + PEERS["gloo"] + after, exit_code=1)
    assert (found.code, found.root_line) == ("dist.peer_gone", 3)


def test_the_kernels_count_and_a_signal_explain_a_loss() -> None:
    known = Evidence(oom_kills=1, oom_ago_s=2.0)
    for peer in ("nccl", "gloo", "ray"):
        found = read(WEIGHTS + PEERS[peer], known, exit_code=1)
        assert (found.code, found.confidence, found.root_line) == ("mem.host_oom_killed", 0.95, 3)
        assert read(WEIGHTS + PEERS[peer], Evidence(oom_kills=0), exit_code=1).code != "mem.host_oom_killed"
    assert read(WEIGHTS + PEERS["gloo"], signal=9).code == "mem.host_oom_killed"
    assert read(WEIGHTS + PEERS["gloo"], signal=11).code == "run.segfault"


def test_ray_says_that_memory_was_short_or_only_that_it_may_have_been() -> None:
    """Ray adds the same list of possible reasons to each actor that vanished; its exit type is what it knows."""
    dead = b"(EngineCore_DP0 pid=9) ERROR 01-01 10:00:02 [core.py:386] The actor is dead because its worker process has died. Worker exit type: "
    list_ = b"SYSTEM_ERROR Worker exit detail: There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage.\n"
    found = read(WEIGHTS + PEERS["ray"] + dead + list_, exit_code=1)
    assert (found.code, found.confidence) == ("run.worker_died", 0.7)
    short = b"NODE_OUT_OF_MEMORY Worker exit detail: Task was killed due to the node running low on memory.\n"
    found = read(WEIGHTS + PEERS["ray"] + dead + short, exit_code=1)
    assert (found.code, found.confidence, found.root_line) == ("mem.host_oom_killed", 0.85, 4)


def test_a_client_that_goes_away_while_it_serves_is_no_failure() -> None:
    log = LOADING + b"INFO:     Application startup complete.\n"
    log += b"(APIServer pid=1) ERROR 01-01 10:00:02 [serving.py:1] ConnectionResetError: [Errno 104] Connection reset by peer\n"
    assert not read(log).failed


def test_a_hub_that_ends_the_connection_is_no_process_of_the_engine() -> None:
    log = b"(APIServer pid=1) ConnectionResetError: [Errno 104] Connection reset by peer\n" * 2
    log += b"(APIServer pid=1) requests.exceptions.ChunkedEncodingError: ('Connection broken: reset')\n"
    found = read(log, exit_code=1)
    assert (found.root_line, found.recognised) == (1, False)
