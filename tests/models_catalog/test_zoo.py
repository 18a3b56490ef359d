"""Real models in their real shapes: every fact that the files tell, and nothing that they do not."""

from pathlib import Path
from typing import Any

import pytest

from models_catalog.facts import ModelFacts
from models_catalog.inspect.one import look_at
from tests.models_catalog.zoo.case import Case
from tests.models_catalog.zoo.gguf_models import MODELS as GGUF
from tests.models_catalog.zoo.gguf_models import gemma
from tests.models_catalog.zoo.hf_models import MODELS
from tests.models_catalog.zoo.hf_special import SPECIAL

CASES = [*MODELS, *SPECIAL, *GGUF]
# Told by the files' bytes and looked at below, or in parts.
APART = ("fingerprint", "files", "geometry", "weight_bytes", "own_bytes", "origin", "source", "template_text")


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
    has_text = wanted["templates"] and wanted["template_source"] != "tekken.json"
    assert bool(found["template_text"]) == bool(has_text)
    assert [problem["code"] for problem in items[0]["problems"]] == case.problems
    geometry = found["geometry"] or {}
    assert {name: geometry.get(name) for name in case.shape} == case.shape
    weights = [file for file in found["files"] if file["kind"] == "weights"]
    if found["format"] == "gguf" and found["parameters"]:
        assert found["weight_bytes"] == sum(found["dtype_bytes"].values())
    if found["parameters"]:
        held = sum(file["size"] for file in weights)
        assert 0 <= held - sum(found["dtype_bytes"].values()) < held / 100 + 100_000_000
    assert found["own_bytes"] == items[0]["size_bytes"]
    assert len(found["files"]) == min(found["file_count"], 1000)
    assert ModelFacts.from_dict(found).to_dict() == found


def test_there_are_enough_of_them() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 40


def test_the_file_that_sees_is_told_with_its_model_and_by_itself(tmp_path: Path) -> None:
    gemma(tmp_path)
    items = {item["name"]: item for item in look_at(tmp_path) if item["format"] != "folder"}
    model, eyes = items["gemma-3-1b-it"]["facts"], items["mmproj"]["facts"]
    assert (model["projector"], model["inputs"]) == ("mmproj-F16.gguf", ["text", "image"])
    assert (model["parameters"], model["sliding_window"], model["rope"]["factor"]) == (999_885_952, 512, 8.0)
    assert model["geometry"]["layers"] == (["sliding"] * 5 + ["full"]) * 4 + ["sliding"] * 2
    assert (eyes["inputs"], eyes["tasks"]) == (["image"], [])
    assert [problem["code"] for problem in items["mmproj"]["problems"]] == ["projector_only"]
