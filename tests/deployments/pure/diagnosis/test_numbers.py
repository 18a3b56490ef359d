"""The numbers of a failure: in its sentence, as two bars, marked in the line that proves it."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from deployments.diagnosis import told
from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.reader import Reader
from deployments.diagnosis.result import Diagnosis, Evidence, Machine
from deployments.diagnosis.rules import BY_CODE
from deployments.diagnosis.rules.numbers import NUMBERS
from deployments.diagnosis.weighed import weighed

KV = (
    "(EngineCore pid=1) ERROR 12-01 13:59:02 [core.py:712] ValueError: To serve at least one request with the model's "
    "max seq len (40960), 5.63 GiB KV cache is needed, which is larger than the available KV cache memory (2.30 GiB). "
    "Based on the available memory, the estimated maximum model length is 16736.\n"
)
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 23.53 GiB "
    "of which 128.00 MiB is free. Including non-PyTorch memory, this process has 23.40 GiB memory in use.\n"
)
OLD_OOM = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 14.76 GiB total capacity; "
    "13.21 GiB already allocated; 1.02 GiB free; 13.30 GiB reserved in total by PyTorch)\n"
)
X86 = Machine(cpu_flags=frozenset({"avx2"}))
NEW_X86 = Machine(cpu_flags=frozenset({"avx2", "avx512f"}))


def read(log: str, known: Evidence | None = None, **ended: Any) -> Diagnosis:
    reader = Reader("vllm")
    reader.feed(log.encode())
    return diagnose(reader, evidence=known, **{"exit_code": 1, **ended})


def said(found: Diagnosis) -> str:
    return told.sentence(found.why, found.told).replace("\u00a0", " ")


# (log, what is known, class, a part of the sentence, bars, marked texts)
CASES: tuple[tuple[str, Evidence | None, str, str, tuple[float, float, str] | None, list[str]], ...] = (
    (KV, None, "mem.kv_lt_len", "2.30 GiB were left for conversations (KV cache). One of 40,960 tokens",
     (5.63, 2.3, "GiB"), ["40960", "5.63 GiB", "2.30 GiB"]),
    ("ValueError: The model's max seq len (131072) is larger than the maximum number of tokens that can be stored in KV "
     "cache (23968).", None, "mem.kv_lt_len", "holds 23,968 tokens", (131072, 23968, "tokens"), ["131072", "23968"]),
    ("ValueError: Free memory on device cuda:0 (5.92/79.19 GiB) on startup is less than desired GPU memory utilization "
     "(0.9, 71.27 GiB).", None, "mem.gpu_busy", "5.92 of 79.19 GiB were free", (71.27, 5.92, "GiB"),
     ["5.92", "79.19 GiB", "0.9", "71.27 GiB"]),
    (OOM, None, "mem.oom_load", "This GPU has 23.53 GiB. The engine held 23.40 GiB of it, 128.00 MiB were free, and it "
     "asked for 512.00 MiB more.", (0.5, 0.125, "GiB"), ["512.00 MiB", "23.53 GiB", "128.00 MiB", "23.40 GiB"]),
    (OOM.replace("capacity", "capacty"), None, "mem.oom_load", "This GPU has 23.53 GiB.", (0.5, 0.125, "GiB"),
     ["512.00 MiB", "23.53 GiB", "128.00 MiB", "23.40 GiB"]),
    (OLD_OOM, None, "mem.oom_load", "1.02 GiB of it were free", (2.0, 1.02, "GiB"), ["2.00 GiB", "14.76 GiB", "1.02 GiB"]),
    ("ValueError: User-specified max_model_len (204800) is greater than the derived max_model_len "
     "(max_position_embeddings=4096).", None, "config.len_gt_derived", "made for 4,096", (204800, 4096, "tokens"),
     ["204800", "4096"]),
    ("ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8).", None, "tp.heads",
     "28 attention heads", None, ["28", "8"]),
    ("ValueError: LoRA rank 64 is greater than max_lora_rank 16.", None, "lora.rank", "has rank 64", (64, 16, ""),
     ["64", "16"]),
    ("ValueError: Model architectures ['FooForCausalLM'] are not supported for now. Supported architectures: x", None,
     "arch.unsupported", "FooForCausalLM", None, ["FooForCausalLM"]),
    ("ValueError: Available memory on node 0 (4.52/23.21 GiB) on kv cache allocation is less than requested memory for "
     "kv (40.0 GiB). Decrease x.", None, "mem.cpu_kv_space", "to take 40.0 GiB", (40, 4.52, "GiB"),
     ["4.52", "23.21 GiB", "40.0 GiB"]),
    ("ValueError: Available memory on node 0 (4.52/23.21 GiB) on kv cache allocation is less than needed.",
     Evidence(options={"VLLM_CPU_KVCACHE_SPACE": "30"}), "mem.cpu_kv_space", "to take 30 GiB", (30, 4.52, "GiB"),
     ["4.52", "23.21 GiB"]),
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your driver",
     None, "env.driver_old", "CUDA 12.2", None, ["12020"]),
    ("ValueError: To serve at least one request with the models's max seq len (1024), (0.0 GiB KV cache is needed, which is "
     "larger than the available KV cache memory (0.0 GiB). Based on the available memory, the estimated maximum model "
     "length is 128.", None, "mem.kv_lt_len", "holds 128 tokens", (1024, 128, "tokens"), ["1024", "128"]),
    ("AssertionError: Error in memory profiling. Initial free memory 43.37432861328125 GiB, current free memory "
     "43.9400634765625 GiB.", None, "mem.profile_changed", "43.37 GiB were free", None,
     ["43.37432861328125 GiB", "43.9400634765625 GiB"]),
    ("OSError: [Errno 98] Address already in use", Evidence(port=18100, port_holder="nginx (process 812)"),
     "http.port_in_use", "Port 18100 was held by nginx (process 812).", None, []),
    ("OSError: [Errno 28] No space left on device", Evidence(machine=Machine(disks=(("/models", 0.2), ("/", 80.0)))),
     "env.disk_full", "0.2 GiB were free on /models", None, []),
)  # fmt: skip


@pytest.mark.parametrize(("log", "known", "code", "part", "bars", "marked"), CASES, ids=range(len(CASES)))
def test_the_sentence_has_the_numbers_of_the_line(
    log: str, known: Evidence | None, code: str, part: str, bars: Any, marked: list[str]
) -> None:
    found = read(log, known)
    assert found.code == code and part in said(found), said(found)
    kept = found.told
    assert (tuple(kept["bars"]) if kept["bars"] else None) == bars
    assert [found.root[start:end] for start, end in kept["marks"]] == marked


def test_the_logs_own_time_of_the_line_is_kept() -> None:
    assert read(KV).told["clock"] == "12-01 13:59:02"
    assert read(OOM).told["clock"] == ""


@pytest.mark.parametrize("code", NUMBERS)
def test_every_sentence_can_be_said(code: str) -> None:
    """Each place has a part of a pattern, or is known beside the log."""
    rule, numbers = BY_CODE[code], NUMBERS[code]
    beside = {name for known in EVERYTHING for name in told.known_values(FACTS, known)}
    beside |= {"capability", "found", "cuda_found"}
    named = {name for pattern in rule.patterns for name in re.compile(pattern).groupindex}
    named |= {name for pattern in numbers.patterns for name in pattern.groupindex}
    for say in numbers.say:
        assert set(re.findall(r"%\((\w+)\)s", say)) <= named | beside, say
        assert say.endswith(".")
    for need, have, _unit in numbers.bars:
        assert {need, have} <= named | beside


FACTS = {"weights_gib": 15.3, "version": "0.32.0"}
EVERYTHING = (
    Evidence(
        options={"gpu_memory_utilization": 0.9, "VLLM_CPU_KVCACHE_SPACE": 4}, gpu_total_gib=24, port=1, port_holder="x",
        machine=Machine(frozenset(), "580.95", "13.0", (("/", 1.5),), 0.06, 1024, 64, 12),
    ),
    Evidence(machine=NEW_X86),
)  # fmt: skip


def test_everything_that_is_known_beside_the_log_has_its_place() -> None:
    names = {name for known in EVERYTHING for name in told.known_values(FACTS, known)}
    places = {name for each in NUMBERS.values() for say in each.say for name in re.findall(r"%\((\w+)\)s", say)}
    bars = {name for each in NUMBERS.values() for bar in each.bars for name in bar}
    assert names - {"has", "lacks"} <= places | bars and {"has", "lacks"} <= places


def test_without_its_numbers_the_sentence_is_the_plain_one() -> None:
    found = read("ValueError: To serve at least one request with something else.")
    assert found.code == "mem.kv_lt_len" and said(found) == BY_CODE["mem.kv_lt_len"].why
    assert told.sentence("Why.", {"say": "%(gone)s GiB", "values": {}}) == "Why."
    assert told.sentence("Why.", None) == told.sentence("Why.", {}) == "Why."
    assert told.sentence("Why.", {"say": "100 %% of %(n)s.", "values": {"n": "4"}, "adds": True}) == "Why. 100 % of 4."


def test_marks_are_apart_bounded_and_within_what_is_shown() -> None:
    long = f"ValueError: Model architectures ['{'A' * 4000}'] are not supported"
    kept = told.of(BY_CODE["arch.unsupported"], long, {}, Evidence()).as_dict()
    assert kept["marks"] == [] and len(kept["values"]["arch"]) <= told.LONGEST + 1
    late = "ValueError: " + "x" * 3000 + "LoRA rank 64 is greater than max_lora_rank 16."
    assert told.of(BY_CODE["lora.rank"], late, {}, Evidence()).as_dict()["marks"] == []
    for rule in BY_CODE.values():
        for example in rule.examples:
            marks = told.of(rule, example, {}, Evidence()).marks
            assert all(a < b <= len(example) for a, b in marks)
            assert all(one[1] <= two[0] for one, two in itertools.pairwise(marks))


# --- what the host said of itself ---------------------------------------------------------------------------------------


def test_a_processor_without_the_instructions_makes_it_certain_and_one_with_them_does_not() -> None:
    old, new, unknown = (
        read("", Evidence(machine=m), exit_code=None, signal=4) for m in (X86, NEW_X86, Machine())
    )  # fmt: skip
    assert [found.code for found in (old, new, unknown)] == ["env.sigill"] * 3
    assert (old.confidence, new.confidence, unknown.confidence) == (0.95, 0.65, 0.9)
    assert "This processor has no AVX-512." in said(old)
    assert "This processor has AVX2, AVX-512, so it must be others" in said(new)
    assert said(unknown) == BY_CODE["env.sigill"].why


@pytest.mark.parametrize(
    ("code", "machine", "groups", "expected"),
    [
        ("env.driver_old", Machine(cuda="12.2"), {"driver": "12020"}, 0.95),
        ("env.driver_old", Machine(cuda="13.0"), {"driver": "12020"}, 0.75),
        ("env.driver_old", Machine(), {"driver": "12020"}, 0.9),
        ("env.driver_old", Machine(cuda="12.2"), {}, 0.9),
        ("env.shm", Machine(shm_gib=0.06), {}, 0.95),
        ("sglang.shm", Machine(shm_gib=16.0), {}, 0.75),
        ("env.ulimit", Machine(open_files=1024), {}, 0.95),
        ("env.ulimit", Machine(open_files=-1), {}, 0.75),
        ("env.disk_full", Machine(disks=(("/", 900.0), ("/models", 0.1))), {}, 0.95),
        ("env.disk_full", Machine(disks=(("/", 900.0),)), {}, 0.75),
        ("mem.kv_lt_len", Machine(cpu_flags=frozenset(), shm_gib=0.0), {}, 0.9),
    ],
)
def test_the_machine_speaks_for_a_class_or_against_it(
    code: str, machine: Machine, groups: dict[str, str], expected: float
) -> None:
    assert weighed(code, 0.9, Evidence(machine=machine), groups) == expected
