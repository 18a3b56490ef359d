"""Ends of runs on real failed starts: how it ended, phase, root line, block, and whether a restart can cure it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from deployments.diagnosis.failure import MAX_BLOCK, diagnosed, explain, signal_name
from deployments.diagnosis.reader import Reader

LOGS = Path(__file__).parents[2] / "logs"
INDEX = [line.split("\t") for line in (LOGS / "index.tsv").read_text(encoding="utf-8").splitlines()[1:]]
# Labels that rest on more than the log says (the report's title, an exit code, an older start in the same file), or
# where the engine had gone further than the class suggests.
PHASE_NOT_TOLD = {"006", "102", "104"}
ROOT_NOT_TOLD = {"085", "090"}


@pytest.mark.parametrize(("file", "version", "cause", "phase", "root"), INDEX, ids=[row[0] for row in INDEX])
def test_phase_and_root_line(file: str, version: str, cause: str, phase: str, root: str) -> None:
    log = (LOGS / file).read_bytes()
    ending = explain(log=log, exit_code=1)
    json.dumps(ending.error_block)
    if file[:3] not in PHASE_NOT_TOLD:
        assert ending.phase == phase
    if file[:3] in ROOT_NOT_TOLD:
        return
    block = ending.error_block
    assert block["root_line"] == int(root)
    raw = log.decode("utf-8", "replace").split("\n")[block["root_line"] - 1]
    at = block["numbers"].index(block["root_line"])
    assert block["lines"][at].strip() in raw
    assert block["first_line"] == block["numbers"][0]
    assert len(block["lines"]) == len(block["numbers"]) <= MAX_BLOCK


def end(name: str, **given: Any) -> Any:
    return explain(log=(LOGS / f"{name}.log").read_bytes(), **given)


def test_exit_and_signal_by_name() -> None:
    assert explain(log=b"", exit_code=0).reason["code"] == "exit.zero"
    assert explain(log=b"", exit_code=3).reason == {"code": "exit.code", "params": {"exit_code": 3, "phase": "start"}}
    assert explain(log=b"", signal=4).reason["params"]["signal"] == "SIGILL"
    assert explain(log=b"", exit_code=137).reason["params"]["signal"] == "SIGKILL"
    assert explain(log=b"").reason["code"] == "exit.unknown"
    assert signal_name(99) == "signal 99"


def test_the_panels_own_reason_and_the_hosts_refusal_lead() -> None:
    own = explain(log=b"", signal=15, own_reason={"code": "start.deadline", "params": {"s": 5}})
    assert own.reason == {"code": "start.deadline", "params": {"s": 5, "phase": "start"}}
    refused = explain(log=b"", refusal={"code": "path_missing", "params": {"path": "/x"}})
    assert (refused.reason["code"], refused.curable) == ("path_missing", False)
    late = explain(log=b"", own_reason={"code": "answer.failed"}, probe={"status": 500})
    assert (late.reason["params"]["status"], late.curable) == (500, False)
    hung = explain(log=b"", signal=15, own_reason={"code": "serve.hung", "params": {"minutes": 3}}, was_ready=True)
    assert (hung.reason["code"], hung.reason["params"]["minutes"], hung.curable) == ("serve.hung", 3, True)


@pytest.mark.parametrize(
    ("name", "given", "curable"),
    [
        ("091", {"exit_code": 2}, False),  # an unknown flag
        ("016", {"exit_code": 1}, False),  # heads do not divide
        ("046", {"exit_code": 1}, False),  # no memory for the KV cache
        ("038", {"exit_code": 1}, False),  # out of memory while loading
        ("015", {"exit_code": 1}, True),  # someone else holds the GPU now
        ("109", {"exit_code": 1}, True),  # the port was taken
        ("113", {"exit_code": 1}, True),  # memory changed while it was measured
        ("090", {"exit_code": 0}, True),  # served, then its core was killed
        ("vllm-0.32.0-cpu-dies-at-first-request", {"exit_code": 1}, False),
        ("vllm-0.32.0-cpu-dies-at-first-request", {"exit_code": 1, "was_ready": True}, True),
    ],
)
def test_what_a_restart_can_cure(name: str, given: dict[str, Any], curable: bool) -> None:
    assert end(name, **given).curable is curable


def test_signals_without_a_word() -> None:
    assert not explain(log=b"", signal=4).curable
    assert not explain(log=b"INFO 01-01 10:00:00 [x.py:1] Starting to load model x...\n", signal=9).curable
    assert explain(log=b"", signal=9, was_ready=True).curable
    assert explain(log=b"INFO:     Application startup complete.\n", signal=9).curable
    assert explain(log=b"INFO:     Application startup complete.\n", exit_code=0).curable
    assert not explain(log=b"", exit_code=1).curable


def test_the_first_error_is_the_cause_not_the_last() -> None:
    block = end("vllm-0.32.0-cpu-dies-at-first-request", exit_code=1).error_block
    assert block["lines"][-1] == "ValueError: Triton dequant kernels require CUDA tensors"
    assert all("EngineDeadError" not in line for line in block["lines"])
    assert len(block["lines"]) == MAX_BLOCK


def test_a_healthy_log_has_no_error() -> None:
    assert end("vllm-0.32.0-cpu-stopped-by-term", signal=15).error_block == {}
    assert explain(log=b"", exit_code=1).error_block == {}


def test_where_only_echoes_are_left_the_first_is_shown() -> None:
    log = b"RuntimeError: Engine core initialization failed. See root cause above.\n"
    assert explain(log=log, exit_code=1).error_block["root_line"] == 1


def test_numbers_count_from_the_start_of_a_long_log() -> None:
    log = b"x\n" * (3 << 20) + b"ValueError: no\n"
    assert explain(log=log, exit_code=1).error_block["root_line"] == (3 << 20) + 1


def test_hostile_text_stays_text_and_bounded() -> None:
    log = b"\x00<script>\nValueError: " + b"A" * 100_000 + b"\x00<script>alert(1)</script>\n"
    block = explain(log=log, exit_code=1).error_block
    assert "\x00" not in json.dumps(block)
    assert max(map(len, block["lines"])) <= 2000


def test_phases_seen_while_it_grew_are_believed() -> None:
    seen = [{"code": "start"}, {"code": "kvcache"}]
    assert explain(log=b"", phases=seen, signal=11).phase == "kvcache"


def test_a_kill_without_a_word_is_nobodys_for_sure() -> None:
    assert "title" not in explain(log=b"", signal=9).reason["params"]
    assert (
        explain(log=b"", signal=4).reason["params"]["title"]
        == "This processor lacks instructions that the engine needs"
    )


OUT = (
    b"(EngineCore_DP0 pid=9) ERROR 01-01 10:00:02 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. "
    b"Tried to allocate 2.00 GiB.\n"
)


def gone(size: int) -> bytes:
    """What a server whose engine is dead prints of each request that still comes, in ever new words."""
    rnd = random.Random(7)
    letters = b"ghijklmnopqrstuvwxyz"  # of no hexadecimal number: each line is of a kind of its own
    line = (
        b"(APIServer pid=1) ERROR 01-01 10:00:03 [serving.py:1] Error in request %s\n"
        b"(APIServer pid=1) ERROR 01-01 10:00:03 [serving.py:1] vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
        b"encountered an issue while it worked on %s.\n"
    )
    made = bytearray()
    while len(made) < size:
        name = bytes(rnd.choices(letters, k=16))
        made += line % (name, name)
    return bytes(made)


@pytest.mark.parametrize("started", [b"", b"INFO:     Application startup complete.\n"], ids=["starting", "serving"])
def test_the_cause_stands_above_megabytes_of_its_echo(started: bytes) -> None:
    loading = b"INFO 01-01 10:00:00 [x.py:1] Starting to load model /m...\n" + started
    ending = explain(log=loading + OUT + gone(7 << 20), exit_code=1, was_ready=bool(started))
    assert ending.reason["params"]["cause"] == ("mem.oom_runtime" if started else "mem.oom_load")
    assert ending.error_block["root_line"] == loading.count(b"\n") + 1


def test_of_what_is_left_out_the_lines_are_counted() -> None:
    reader, line = Reader(), b"INFO 01-01 10:00:00 [x.py:1] a line\n"
    reader.feed(line * 3 + b"half a li")
    reader.skip(b"ne\n" + line * 5 + b"and ")
    reader.feed(b'a half\nTraceback (most recent call last):\n  File "x.py", line 1, in x\nZeroWidgetError: no\n')
    found = diagnosed(reader, exit_code=1)
    assert (found.root_line, found.root, found.numbers) == (13, "ZeroWidgetError: no", (12, 13))
