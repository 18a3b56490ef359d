"""A spec is kept for ever and copied into each order: its size has a bound of its own, told in words."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from deployments.spec import MOST, DeploymentSpec
from tests.api.conftest import person, program
from tests.deployments import builders

BIG: list[dict[str, Any]] = [
    {"options": {f"o{n}": "x" * 1000 for n in range(150)}},
    {"options": {"hf_overrides": {"a": ["x"] * 50_000}}},
    {"extra_args": ["x" * 3999] * 90},
    {"env": {"VLLM_X": "x" * 200_000}},
    {"env": {"V" * 200_000: "x"}},
    {"gpu_uuids": ["G" * 3000] * 60},
]


@pytest.mark.parametrize("values", BIG, ids=lambda values: next(iter(values)))
def test_what_is_too_long_together_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="too long together"):
        DeploymentSpec(artifact_id=1, **values)


def test_a_long_chat_template_still_fits() -> None:
    assert DeploymentSpec(artifact_id=1, options={"chat_template": "{# x #}" * (MOST // 10)})


@pytest.mark.django_db
def test_the_api_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    copy = builders.make_copy(builders.make_host(gpus=1))
    client = program(person("operator"))
    deep: Any = 1
    for _n in range(150):
        deep = {"a": deep}
    for options, name in (({"hf_overrides": "x" * 200_000}, "spec"), ({"hf_overrides": deep}, "")):
        body = {"name": "x", "spec": {"artifact_id": copy.artifact_id, "options": options}}
        answer = client.post("/api/v1/deployments", json.dumps(body), content_type="application/json")
        assert answer.status_code in ((422,) if name else (201, 400, 409, 422)), answer.content
        assert not name or "100000" in answer.content.decode() or "100,000" in answer.content.decode()
