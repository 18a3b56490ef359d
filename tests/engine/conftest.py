"""A whole Berth with real vLLM (CPU) and a small real model, as `make engine` prepares them."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from panel.fleet.agent import engine_cpu, provision, sample_model
from tests.browser.conftest import browser  # noqa: F401  # a fixture
from tests.e2e.stack import ROOT, Stack, running
from tests.servers import Servers

# A real engine takes all cores of a small machine for minutes: what is late there is not lost.
PATIENT = {"BERTH_HOST_LOST_S": "60", "BERTH_CLAIM_S": "6", "BERTH_TICK_S": "1", "BERTH_PROBE_TIMEOUT_S": "180"}
# Each start would import the engine twice; a module whose subject that is says so in its own ENV.
UNASKED = {"BERTH_CHECK_BEFORE_START": "0"}


@pytest.fixture(scope="session")
def engine_cache() -> Path:
    """The folder with vLLM and the model. It is prepared here only when nothing may be left out: that takes minutes."""
    cache: Path = settings.TEST_ENGINE_CACHE
    marker = provision.read_marker(cache / engine_cpu.NAME)
    if engine_cpu.is_current(marker, engine_cpu.REQUIREMENTS.read_bytes()) and sample_model.is_ready(cache):
        return cache
    if os.environ.get("BERTH_TEST_ALL") != "1":
        pytest.skip(f"NO ENGINE in {cache}: the real engine was not tested. Run `make engine`.")
    subprocess.run([sys.executable, "-m", "panel.fleet.agent.engine_cpu", "--into", str(cache)], cwd=ROOT, check=True)
    return cache


@pytest.fixture(scope="module")
def berth(
    engine_cache: Path,
    servers: Servers,
    django_test_environment: None,
    django_db_blocker: Any,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Stack]:
    """Web, worker and agent; the agent finds the engine and the model by itself."""
    own = getattr(request.module, "ENV", {})
    env = {**PATIENT, **UNASKED, **own, "BERTH_ENGINE_CACHE": str(engine_cache), "PATH": os.environ["PATH"]}
    with django_db_blocker.unblock(), running(servers, tmp_path_factory.mktemp("real"), env=env) as stack:
        stack.url = f"http://localhost:{stack.port}"  # as it is shown to people
        stack.models = engine_cache / "models"
        stack.start_all()
        yield stack
