"""A start asks the real vLLM (CPU) first: what it refuses is never started, what it accepts is, and is not asked again."""

from __future__ import annotations

import pytest

from deployments import queries, remedies, services
from panel.fleet import logstore
from panel.fleet.agent import sample_model
from panel.fleet.models import Job, Reservation
from tests.e2e.stack import Stack
from tests.waiting import until

pytestmark = pytest.mark.engine
ENV = {"BERTH_CHECK_BEFORE_START": "1"}
ASKED_S, START_S = 180, 420  # importing the engine, and a start, on two busy cores


def test_what_vllm_refuses_is_never_started_and_what_it_takes_is(berth: Stack) -> None:
    berth.scan()
    options = {"max_model_len": 512, "max_num_seqs": 4}
    tools = {"enable_auto_tool_choice": True, "tool_call_parser": "hermess"}
    row = berth.deploy("refused", sample_model.NAME, options={**options, **tools})
    berth.wait_for(row, "failed", timeout=ASKED_S)
    run = row.run
    assert row.reason["code"] == "check.refused" and row.reason["params"]["cause"] == "args.tool_parser_unknown", (
        row.reason
    )
    assert run.job is None and not Job.objects.filter(kind="engine").exists() and not Reservation.objects.exists()
    assert "hermess" in "".join(run.error_block["lines"]) and run.command[1] == "serve"
    first = remedies.of(queries.one(row.pk))[0]
    assert first.by_click and first.patch, "one click mends it"
    log = Job.objects.get(pk=run.placement["check"]["job"])
    until(lambda: b"hermess" in logstore.read(log.pk, 0, 1 << 20).data, timeout=30, why="it can be read")

    good = berth.deploy("taken", sample_model.NAME, options=options)
    berth.wait_for(good, "ready", timeout=ASKED_S + START_S)
    assert good.run.placement["check"]["over"] == "passed" and good.run.job is not None
    services.stop(good, actor=None)
    berth.wait_for(good, "stopped", timeout=60)
