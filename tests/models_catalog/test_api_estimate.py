"""POST /api/v1/estimate: the keys and numbers of `manage.py estimate`, of a form of the catalog or a configuration."""

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from models_catalog.api_estimate import EXAMPLE, EstimateIn
from models_catalog.estimate import ENGINES, specs
from models_catalog.models import Artifact
from panel.api import document
from tests.api.conftest import person, program
from tests.deployments import builders
from tests.models_catalog.estimate.builders import DATA, config, facts

pytestmark = pytest.mark.django_db
QWEN = config("Qwen--Qwen3-8B")
ON_H100 = {"engine_version": "0.19.0", "gpu": "H100-80GB", "gpu_total_gib": 79.19, "util": 0.95, "max_model_len": 8192}


def ask(body: Any, role: str = "viewer") -> Any:
    return program(person(role)).post("/api/v1/estimate", json.dumps(body), content_type="application/json")


def command(*arguments: str) -> dict[str, Any]:
    out = StringIO()
    call_command("estimate", *arguments, "--json", stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


@pytest.mark.parametrize("more", [{}, {"pp": 2}, {"engine": "llama.cpp", "quant": "q4_k_m"}, {"tp": 3}], ids=str)
def test_it_says_what_the_command_says(more: dict[str, Any]) -> None:
    asked = {**ON_H100, **more}
    flags = [part for key, value in asked.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    said = command("--config", str(Path(DATA / "configs/Qwen--Qwen3-8B.json")), *flags)
    answer = ask({**asked, "config": QWEN})
    assert answer.status_code == 200, answer.content
    found = answer.json()
    assert {key: found[key] for key in said} == said
    assert all(not found[key] for key in found.keys() - said.keys())  # what the command leaves out is null or empty


def test_a_form_of_the_catalog_is_named_by_its_number() -> None:
    copy = builders.make_copy(builders.make_host(), "Qwen3-8B")
    Artifact.objects.update(facts=facts("Qwen--Qwen3-8B").to_dict())
    found = ask({**ON_H100, "artifact_id": copy.artifact_id}).json()
    assert found == ask({**ON_H100, "config": QWEN}).json()
    assert ask({"artifact_id": 2**31 - 1}).status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "config"),
        ({"artifact_id": 1, "config": {}}, "config"),
        ({"config": {}, "engine": "tgi"}, "engine"),
        ({"config": {}, "tp": 0}, "tp"),
        ({"config": {}, "pp": 65}, "pp"),
        ({"config": {}, "util": 1.5}, "util"),
        ({"config": {}, "colour": "red"}, "colour"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_means_nothing_is_refused_with_its_field(body: dict[str, Any], field: str) -> None:
    answer = ask(body)
    assert answer.status_code == 422 and field in answer.json()["fields"], answer.content


@pytest.mark.parametrize("config", [{}, {**QWEN, "hidden_size": 10**200}], ids=["empty", "absurd"])
def test_a_configuration_that_no_model_has_gets_no_guess(config: dict[str, Any]) -> None:
    found = ask({"config": config, **ON_H100}).json()
    assert (found["verdict"], found["kv_gib"]) == ("unknown", None)


def test_what_cannot_be_calculated_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models_catalog.api_estimate.try_estimate", lambda *_: None)
    assert ask({"config": QWEN, **ON_H100}).json()["fields"]["config"]


def test_the_schema_has_the_keys_of_a_batch_and_an_example() -> None:
    keys = {key for table in (specs.WHOLE, specs.NUMBERS, specs.TEXTS, specs.SWITCHES) for key in table}
    own = {"artifact_id", "config", "engine_version", "gpu", "gpu_total_gib", "gpu_free_gib"}
    assert set(EstimateIn.model_fields) == keys | own
    assert EstimateIn.model_fields["engine"].annotation.__args__ == ENGINES  # type: ignore[union-attr]
    body = document()["paths"]["/api/v1/estimate"]["post"]["requestBody"]["content"]["application/json"]
    assert body["example"] == EXAMPLE
    assert ask(body["example"]).json()["verdict"] == "fits"


def test_what_a_configuration_says_stays_on_one_short_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_args: Any) -> None:
        raise ValueError("odd\n2026-12-01 INFO forged " + "b" * 10_000)

    monkeypatch.setattr("models_catalog.estimate.estimate", fails)
    assert ask({"config": {**QWEN, "architectures": ["A\n2026-12-01 INFO forged " + "a" * 10_000]}}).status_code == 422
    (said,) = [r.getMessage() for r in caplog.records if r.name == "models_catalog.estimate"]
    assert "\n" not in said and len(said) < 400
