"""Real models in their real shapes: every fact that the files tell, and nothing that they do not."""

from pathlib import Path
from typing import Any

import pytest

from models_catalog.facts import ModelFacts
from models_catalog.inspect.one import look_at
from tests.models_catalog.zoo.case import Case
from tests.models_catalog.zoo.hf_models import MODELS
from tests.models_catalog.zoo.hf_special import SPECIAL

CASES = [*MODELS, *SPECIAL]
# Told by the files' bytes and looked at below, or in parts.
APART = ("fingerprint", "files", "geometry", "weight_bytes", "own_bytes", "origin", "source")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_fact_of_a_real_model(case: Case, tmp_path: Path) -> None:
    place = tmp_path / case.name
    place.mkdir()
    case.make(place)
    items = [item for item in look_at(place) if item["format"] != "folder"]
    assert len(items) == 1
    found: dict[str, Any] = items[0]["facts"]
    wanted = ModelFacts(format=case.facts["format"]).to_dict() | case.facts
    assert {k: v for k, v in found.items() if k not in APART} == {k: v for k, v in wanted.items() if k not in APART}
    assert [problem["code"] for problem in items[0]["problems"]] == case.problems
    geometry = found["geometry"] or {}
    assert {name: geometry.get(name) for name in case.shape} == case.shape
    weights = [file for file in found["files"] if file["kind"] == "weights"]
    if found["parameters"]:
        held = sum(file["size"] for file in weights)
        assert 0 <= held - sum(found["dtype_bytes"].values()) < held / 100 + 100_000_000
    assert found["own_bytes"] == items[0]["size_bytes"]
    assert len(found["files"]) == min(found["file_count"], 1000)
    assert ModelFacts.from_dict(found).to_dict() == found


def test_there_are_enough_of_them() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 40
