"""Split GGUF files: parts that are lacking, renamed or of another model are named."""

from pathlib import Path
from typing import Any

from models_catalog.inspect.one import look_at
from tests.models_catalog.zoo.gguf_models import LLAMA, TINY, split

PARTS = [*TINY, ("blk.1.attn_q.weight", [256, 256], 8)]


def problems(path: Path) -> list[tuple[str, dict[str, Any]]]:
    (item,) = [item for item in look_at(path) if item["format"] == "gguf"]
    return [(problem["code"], problem["params"]) for problem in item["problems"]]


def test_whole_ones_and_lacking_parts(tmp_path: Path) -> None:
    split("m", 3, LLAMA, PARTS)(tmp_path)
    assert problems(tmp_path) == []
    assert problems(tmp_path / "m-00002-of-00003.gguf") == []  # any part stands for all
    (tmp_path / "m-00001-of-00003.gguf").unlink()
    found = problems(tmp_path)
    assert found[0] == ("missing_parts", {"files": ["m-00001-of-00003.gguf"]})


def test_a_part_that_lost_its_name(tmp_path: Path) -> None:
    split("m", 3, LLAMA, PARTS)(tmp_path)
    for number in (2, 3):
        (tmp_path / f"m-{number:05d}-of-00003.gguf").unlink()
    (tmp_path / "m-00001-of-00003.gguf").rename(tmp_path / "m.gguf")
    assert ("split_mismatch", {"file": "m.gguf", "count": 3}) in problems(tmp_path)


def test_parts_in_the_wrong_order_and_of_another_split(tmp_path: Path) -> None:
    split("m", 3, LLAMA, PARTS)(tmp_path)
    second, third = (tmp_path / f"m-{number:05d}-of-00003.gguf" for number in (2, 3))
    second.rename(tmp_path / "x")
    third.rename(second)
    (tmp_path / "x").rename(third)
    assert [code for code, _ in problems(tmp_path)] == ["split_mismatch", "split_mismatch"]
    other = tmp_path / "other"
    other.mkdir()
    split("m", 3, LLAMA, [*PARTS, *PARTS])(other)
    (other / third.name).unlink()
    (tmp_path / "m-00001-of-00003.gguf").rename(other / "m-00001-of-00003.gguf")
    second.rename(other / third.name)
    assert problems(other) == [("wrong_shard", {"file": "m-00001-of-00003.gguf", "tensors": 4, "expected": 3})]
