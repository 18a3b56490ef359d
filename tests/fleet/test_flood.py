"""A flood in one engine's log, small: see benchmarks/flood.py for the whole one."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connections

from benchmarks import flood, measure
from tests.e2e.stack import Stack, running
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.servers import Servers

PLAN = {"lines_per_s": 20_000, "seconds": 2, "long_lines": 3, "unbroken_mib": 70, "binary_mib": 2}
WRITE_MS, TASK_MS = 50.0, 1000.0  # looser than the benchmark: other work shares the machine, and the page shares it too


@pytest.fixture
def stack(
    servers: Servers, django_test_environment: None, django_db_blocker: Any, tmp_path: Path, monkeypatch: Any
) -> Iterator[Stack]:
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")  # Playwright's loop waits in this thread
    with django_db_blocker.unblock(), running(servers, tmp_path) as berth:
        make_fake_engine(berth.engines)
        make_fake_model(berth.models / "good", phase_s=0.01, flood_plan=str(berth.folder / "plan.json"))
        berth.start_all()
        yield berth
        connections.close_all()


@pytest.mark.slow
@pytest.mark.integration
def test_a_flood_blocks_nobody_and_the_stored_log_is_right(stack: Stack, settings: Any) -> None:
    settings.PASSWORD_HASHERS = settings.PASSWORD_HASHERS[1:]  # the real one, which the web process reads
    stack.scan()
    row = stack.deploy("bench", "good")
    stack.wait_for(row, "ready")
    person = measure.Person(SimpleNamespace(port=stack.port))
    pids = {name: stack.procs[name].pid for name in ("web", "agent")}
    found = flood.flooded(stack, pids, row, person, PLAN, flood.alone(PLAN, stack.folder))
    said = "\n".join([*found.lines(), stack.logs()])
    assert found.stored.right, said
    assert found.stored.gaps > 0, "more was written than a host keeps"
    assert all(own["p99"] <= WRITE_MS for own in found.write.values() if "p99" in own), said
    assert all(most <= flood.LIMITS[name] for name, (_first, most) in found.memory.items()), said
    assert not any(reader.failed for reader in found.readers), said
    assert all(reader.got for reader in found.readers if not reader.stalls), said
    if found.page:
        assert found.page["worst"] <= TASK_MS, said
        assert "skipped" in found.page["note"], said
