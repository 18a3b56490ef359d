"""/metrics of every engine in one set of names; odd text gives less, never an error."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from panel.fleet.agent.engine_metrics import TABLE, normalised
from panel.fleet.wire_serving import Point, Serving

DATA = Path(__file__).parents[1] / "data" / "metrics"
V0 = """
vllm:num_requests_running{model_name="m"} 7.0
vllm:num_requests_swapped{model_name="m"} 1.0
vllm:num_requests_waiting{model_name="m"} 2.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.42
vllm:cpu_cache_usage_perc{model_name="m"} 0.9
vllm:num_preemptions_total{model_name="m"} 3.0
"""


def test_vllm_as_recorded() -> None:
    """Four questions to vLLM 0.32: three answered, one refused."""
    found = normalised((DATA / "vllm-0.32.txt").read_text())
    assert set(found) == {
        "running", "waiting", "kv_usage", "preemptions", "prompt_tokens", "generation_tokens", "steps", "done",
        "failed", "aborted", "http_ok", "http_4xx",
    }  # fmt: skip
    assert (found["running"], found["waiting"], found["preemptions"], found["failed"]) == (0, 0, 0, 0)
    assert (found["done"], found["http_ok"], found["http_4xx"]) == (3, 3, 1)
    assert found["generation_tokens"] > 3 and found["prompt_tokens"] > 0 and 0 <= found["kv_usage"] < 1


def test_names_of_older_releases() -> None:
    found = normalised(V0)
    assert found == {"running": 7, "waiting": 3, "kv_usage": 0.42, "preemptions": 3}
    both = normalised(V0 + 'vllm:kv_cache_usage_perc{model_name="m"} 0.42\n')
    assert both["kv_usage"] == 0.42, "0.10 told it by both names"


def test_sglang_and_llama_cpp() -> None:
    assert normalised((DATA / "sglang-0.4.txt").read_text()) == {
        "running": 162, "waiting": 2826, "kv_usage": 0.28, "prompt_tokens": 8128902, "generation_tokens": 7557572,
    }  # fmt: skip
    assert normalised((DATA / "llamacpp-b4600.txt").read_text()) == {
        "running": 2, "waiting": 1, "kv_usage": 0.63, "prompt_tokens": 6886, "generation_tokens": 3469, "steps": 3512,
    }  # fmt: skip


def test_several_engines_of_one_server_add_up_and_the_fullest_counts() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{n}"}} {n + 1}\nvllm:kv_cache_usage_perc{{engine="{n}"}} 0.{n + 3}\n'
        for n in range(3)
    )
    assert normalised(text) == {"running": 6, "kv_usage": 0.5}


def test_what_each_rank_repeats_counts_once() -> None:
    text = "".join(f'sglang:num_running_reqs{{tp_rank="{rank}",pp_rank="0"}} 4.0\n' for rank in range(4))
    text += 'sglang:num_running_reqs{tp_rank="0",pp_rank="0",priority="1"} 3.0\n'
    assert normalised(text) == {"running": 4}


@pytest.mark.parametrize(
    "line",
    [
        "vllm:num_requests_running NaN", "vllm:num_requests_running +Inf", "vllm:num_requests_running -3",
        "vllm:num_requests_running", "vllm:num_requests_running{a=\"b\" 3", "vllm:num_requests_running 3 4 5",
        "vllm:num_requests_running_extra 9", "vllm:num_requests_running{} x", "# vllm:num_requests_running 3",
        'http_requests_total{handler="/metrics",status="2xx"} 9', 'http_requests_total{handler="/v1/x",status="3xx"} 9',
    ],
    ids=lambda line: line[-24:],
)  # fmt: skip
def test_odd_lines_tell_nothing(line: str) -> None:
    assert normalised(line + "\n") == {}


def test_labels_with_everything_in_them() -> None:
    assert normalised('vllm:num_requests_running{model_name="a\\"b}{,=\\\\",engine="0"} 3 1764000000\n') == {
        "running": 3
    }


def test_every_field_of_the_table_is_one_of_the_message() -> None:
    named = {field for field, _how in TABLE.values() if isinstance(field, str)}
    assert named | {"failed", "aborted", "http_ok", "http_4xx", "http_5xx"} <= set(Serving.model_fields)


def test_a_number_that_is_none_does_not_make_the_host_silent() -> None:
    seen = Serving.model_validate({"at": 1.0, "running": -1, "waiting": "many", "kv_usage": 1e300, "done": True})
    assert (seen.running, seen.waiting, seen.kv_usage, seen.done) == (None, None, None, None)


def test_points_are_read_by_older_and_newer_panels() -> None:
    point = Point.of(Serving(at=5.0, running=2, prompt_tokens=3), 7.0, rss_mib=4, gpu_pct=None, processes=1)
    assert Point.unpack(point.pack()) == point and point.at == 7.0 and point.life == 3
    assert Point.unpack([*point.pack(), "of tomorrow"]) == point
    assert Point.unpack(point.pack()[:4]).running == 2


def test_a_line_without_an_end_costs_nothing() -> None:
    """Labels in which nothing is closed were read again from each of their characters."""
    began = time.process_time()
    for text in ("a" * (1 << 20), 'a="' * (1 << 18), "a=" * (1 << 18)):
        assert normalised(f"vllm:num_requests_running{{{text}}} 1\nvllm:num_requests_running 2\n") == {"running": 2.0}
    assert time.process_time() - began < 2
