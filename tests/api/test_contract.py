"""The API keeps to its own description: cases made from the schema by schemathesis, valid and invalid, on PostgreSQL.

The cases are the same in every run (no database of examples, no randomness) and few, but for `make fuzz`; nothing
leaves this process.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from panel.accounts.services import create_token
from panel.api import document
from tests.api.conftest import person
from tests.api.test_rights import TABLE
from tests.deployments import builders
from tests.security import fuzzing

pytestmark = pytest.mark.django_db
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.response_headers_conformance,
]
EXAMPLES = 10 if not fuzzing.LONG else max(1, int(fuzzing.LONG * 0.15 / len(TABLE)))


@pytest.fixture(scope="module")
def described() -> Any:
    loaded = schemathesis.openapi.from_dict(json.loads(json.dumps(document())))
    loaded.app = get_wsgi_application()
    loaded.location = "/api/v1/openapi.json"
    return loaded


@pytest.fixture(autouse=True)
def _one_connection() -> Iterator[None]:
    """A server closes what a request leaves behind; here that would end the transaction of the test."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", TABLE)
def test_what_is_answered_is_what_is_described(
    name: str, mode: GenerationMode, described: Any, places: dict[str, Any], world: dict[str, Any]
) -> None:
    method, path = name.split(" ")
    if path.endswith("/verdict"):  # on a start that failed
        broken = builders.make_deployment(world["copy"], "broken", state="failed")
        places["run_id"] = str(builders.failed(broken, world["copy"]).pk)
    operation = described[path][method]
    _row, token = create_token(person("admin"), "contract", actor=person("admin"), scope="api:write")
    real = {key: value for key, value in places.items() if f"{{{key}}}" in path}
    seen = set()

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=not fuzzing.LONG, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def answered(case: Any) -> None:
        if real and len(seen) % 3:  # two of three meet a row that is there
            case.path_parameters = real
        with transaction.atomic():  # each case meets the same rows
            response = case.call(headers={"Authorization": f"Bearer {token}"})
            transaction.set_rollback(True)
        seen.add((len(seen), response.status_code))
        case.validate_response(response, checks=CHECKS)

    answered()
    fuzzing.count(len(seen))
    good = {status for _number, status in seen if status < 300 or status == 424}  # there is no hub here to ask
    assert good or mode is GenerationMode.NEGATIVE or method in ("POST", "PATCH"), seen
