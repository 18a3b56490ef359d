"""One running Berth per test module, with a fake engine."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.stack import Stack, running
from tests.fakes.make_engine import make_fake_engine
from tests.servers import Servers


@pytest.fixture(scope="module")
def stack(
    servers: Servers, django_test_environment: None, django_db_blocker: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Web, worker and agent with a fake vLLM; models are put into `stack.models` by the tests."""
    with django_db_blocker.unblock(), running(servers, tmp_path_factory.mktemp("berth")) as berth:
        make_fake_engine(berth.engines)
        berth.start_all()
        yield berth
