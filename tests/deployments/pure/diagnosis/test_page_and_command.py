"""The page of all classes is current, and the command reads a log without a database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.diagnosis.catalogue import PAGE, page
from deployments.diagnosis.failure import explain
from deployments.diagnosis.rules import ALL
from panel.core.tongue import of_terminal
from tests.deployments.pure.diagnosis.collected import DATA

ROOT = Path(__file__).parents[4]


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(), "run: python -m deployments.diagnosis.catalogue"
    assert all(f"`{rule.code}`" in text for rule in ALL)


def diagnose(tmp_path: Path, *given: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command in a process of its own. Its database cannot be reached."""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "panel.settings", "BERTH_DATA": str(tmp_path / "data"),
           "DATABASE_URL": "postgres://nobody:x@127.0.0.1:1/none", "REDIS_URL": "redis://127.0.0.1:1/0"}  # fmt: skip
    command = [sys.executable, "manage.py", "diagnose", *given]
    return subprocess.run(command, cwd=ROOT, env=env, input=stdin, capture_output=True, timeout=60, check=False)


def test_json_has_the_promised_keys(tmp_path: Path) -> None:
    ended = diagnose(tmp_path, str(DATA / "corpus" / "065.log"), "--json", "--engine", "vllm", "--exit-code", "1")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert (found["class"], found["phase"], found["root_line"]) == ("mem.kv_lt_len", "kvcache", 7)
    assert found["confidence"] > 0.9 and found["title"] and found["fixes"][0]["to"] == 23968
    assert found["facts"]["engine"] == "vllm"
    other = diagnose(tmp_path, str(DATA / "corpus" / "022.log"), "--json", "--engine", "llama.cpp")
    assert json.loads(other.stdout)["class"] == "llamacpp.file_not_found"


def test_a_person_reads_the_cause_the_line_and_the_fixes(tmp_path: Path) -> None:
    said = diagnose(tmp_path, str(DATA / "corpus" / "016.log")).stdout.decode()
    assert "[tp.heads]" in said and "Line 29:" in said and "1. Change tensor_parallel_size from 3 to 2." in said


def test_a_failed_run_carries_class_line_and_title() -> None:
    ending = explain(log=(DATA / "corpus" / "016.log").read_bytes(), exit_code=1)
    params = ending.reason["params"]
    assert (ending.reason["code"], params["cause"], params["root_line"], params["phase"]) == (
        "exit.code",
        "tp.heads",
        29,
        "config",
    )
    assert params["title"] and params["confidence"] > 0.9 and ending.error_block["root_line"] == 29
    unknown = explain(log=b"ZeroDivisionError: division by zero\n", exit_code=1)
    assert "cause" not in unknown.reason["params"] and unknown.error_block["root_line"] == 1


def test_standard_input_and_a_signal(tmp_path: Path) -> None:
    assert b"env.sigill" in diagnose(tmp_path, "-", "--signal", "SIGILL").stdout
    assert b"not recognised" in diagnose(tmp_path, "-", "--exit-code", "1").stdout
    healthy = (DATA / "healthy" / "vllm-0.32.0-cpu-stopped-by-term.log").read_bytes()
    assert b"Nothing in this log failed" in diagnose(tmp_path, "-", "--signal", "TERM", stdin=healthy).stdout


@pytest.mark.parametrize("given", [("/no/such.log",), ("-", "--signal", "SIGNONE"), ("-", "--exit-code", "x")])
def test_what_cannot_be_read_is_refused_in_words(tmp_path: Path, given: tuple[str, ...]) -> None:
    ended = diagnose(tmp_path, *given)
    assert ended.returncode != 0 and ended.stderr and b"Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"LC_ALL": "zh_CN.UTF-8", "LANG": "en_GB.UTF-8"}, "zh-hans"),
        ({"LC_MESSAGES": "zh_SG", "LANG": "de_DE"}, "zh-hans"),
        ({"LC_ALL": "", "LANG": "ZH_cn"}, "zh-hans"),
        ({"LC_ALL": "C.UTF-8", "LANG": "zh_CN.UTF-8"}, None),
        ({"LANG": "en_US.UTF-8"}, None),
        ({}, None),
    ],
)
def test_the_language_of_a_terminal(env: dict[str, str], expected: str | None) -> None:
    assert of_terminal(env) == expected


def test_a_person_with_a_chinese_terminal_reads_chinese(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = str(DATA / "corpus" / "007.log")
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    assert "要求的上下文超过了模型的设计长度" in diagnose(tmp_path, log).stdout.decode()
    monkeypatch.setenv("LC_ALL", "en_US.UTF-8")
    said = diagnose(tmp_path, log).stdout.decode()
    assert "204,800 tokens (pieces of words) were asked for. The model was made for 4,096" in said
    assert "More about this: https://docs.vllm.ai/" in said and "Versions that fail so:" in said


def test_json_has_phases_numbers_and_what_the_engine_warned_of(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text(
        "INFO 12-01 10:00:00 [api_server.py:1] vLLM API server version 0.32.0\n"
        "WARNING 12-01 10:00:01 [model.py:1] Casting torch.bfloat16 to torch.float16.\n"
        "Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:01<00:00]\n"
        "ValueError: LoRA rank 64 is greater than max_lora_rank 16.\n"
    )
    found = json.loads(diagnose(tmp_path, str(log), "--json", "--exit-code", "1").stdout)
    assert found["class"] == "lora.rank" and "has rank 64" in found["explanation"]
    assert found["numbers"]["bars"] == [64.0, 16.0, ""] and found["causes"] == [] and found["doc"].endswith("/lora/")
    load = next(phase for phase in found["phases"] if phase["code"] == "load")
    assert (load["done"], load["total"]) == (2, 2)
    assert found["phases"][1]["code"] == "args" and found["phases"][1]["clock"] == "12-01 10:00:00"
    text = "The weights are in bfloat16, and it calculates in float16."
    assert found["facts"]["notices"] == [
        {"code": "other_dtype", "line": 2, "values": {"old": "bfloat16", "new": "float16"}, "text": text}
    ]
