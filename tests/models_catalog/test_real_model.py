"""A real model in both of its forms, when `make engine` has prepared it. The figures are those of the `gguf` package."""

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from models_catalog.facts import ModelFacts
from models_catalog.inspect.gguf import read_gguf
from models_catalog.inspect.scan import scan_roots
from panel.fleet.agent.sample_model import folders, is_ready

pytestmark = pytest.mark.engine

SHARED = {
    "parameters": 134_515_008, "layers": 30, "hidden_size": 576, "heads": 9, "kv_heads": 3, "head_dim": 64,
    "vocab_size": 49_152, "context_length": 8192, "tasks": ["generate"], "chat_template": True, "missing": [],
}  # fmt: skip


@pytest.fixture
def cache() -> Path:
    found: Path = settings.TEST_ENGINE_CACHE
    if not is_ready(found):
        pytest.skip("the small model is not prepared; run `make engine`")
    return found


def test_both_forms_of_the_real_model(cache: Path) -> None:
    items: dict[str, dict[str, Any]] = {item["format"]: item for item in scan_roots([cache / "models"])}
    for form, own in (
        ("hf", {"label": "float16", "tokenizer": "tokenizer.json", "template_source": "chat_template.jinja"}),
        ("gguf", {"label": "Q4_1", "tokenizer": "gpt2", "template_source": "tokenizer.chat_template"}),
    ):
        facts = ModelFacts.from_dict(items[form]["facts"]).to_dict()
        assert {key: facts[key] for key in {**SHARED, **own}} == {**SHARED, **own}
        assert items[form]["problems"] == []
        assert items[form]["name"] == "SmolLM2-135M-Instruct"


def test_the_real_header_in_detail(cache: Path) -> None:
    path = folders(cache)[1].resolve()
    header = read_gguf(str(path))
    assert header.type_bytes == {"Q8_0": 30_081_024, "F32": 140_544, "Q4_1": 66_355_200}
    assert (header.tensors, header.expected_size) == (272, path.stat().st_size)
    assert header.lists["tokenizer.ggml.merges"] == 48_900
    assert header.bytes_read < 2 << 20
