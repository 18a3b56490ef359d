"""Our reader of GGUF headers against the format's official package: what it reads, and files that it writes."""

import sys
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest
from django.conf import settings

from models_catalog.inspect import gguf_types
from models_catalog.inspect.gguf import GgufHeader, read_gguf
from models_catalog.inspect.one import look_at
from panel.fleet.agent.sample_model import folders, is_ready
from tests.models_catalog.builders import gguf_layout, sparse
from tests.models_catalog.zoo import gguf_models as zoo
from tests.models_catalog.zoo.twin import twin_layout

ORDERS = {"<": gguf.GGUFEndian.LITTLE, ">": gguf.GGUFEndian.BIG}


def agree(path: Path) -> GgufHeader:
    """Every value, the length of every list, and the sums over the tensors are the same."""
    header, official = read_gguf(str(path)), gguf.GGUFReader(str(path))
    fields = {name: field for name, field in official.fields.items() if not name.startswith("GGUF.")}
    assert set(header.values) | set(header.lists) == set(fields)
    for name, field in fields.items():
        told = field.contents() if gguf.GGUFValueType.STRING not in field.types[1:] else None
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            assert header.lists[name] == len(field.data), name
        if name in header.values:
            kept = header.values[name]
            assert (list(kept) if isinstance(kept, tuple) else kept) == told, name
    sizes: dict[str, int] = {}
    for tensor in official.tensors:
        sizes[tensor.tensor_type.name] = sizes.get(tensor.tensor_type.name, 0) + int(tensor.n_bytes)
    assert header.type_bytes == sizes
    assert header.tensors == len(official.tensors)
    assert header.elements == sum(int(tensor.n_elements) for tensor in official.tensors)
    ends = [int(tensor.data_offset + tensor.n_bytes) for tensor in official.tensors]
    assert header.expected_size == max(ends, default=header.expected_size)
    return header


def test_number_formats_and_file_types_are_those_of_the_package() -> None:
    sizes = gguf.GGML_QUANT_SIZES
    known = {int(kind): (kind.name, *sizes[kind]) for kind in gguf.GGMLQuantizationType}
    assert known == gguf_types.TENSOR_TYPES
    names = {int(kind): kind.name.removeprefix("ALL_").removeprefix("MOSTLY_") for kind in gguf.LlamaFileType}
    names.pop(1024)
    assert {n: name.removesuffix("_MOE") for n, name in names.items()} == gguf_types.FILE_TYPES


@pytest.mark.parametrize("arch", ["llama", "gemma3", "deepseek2", "nemotron_h"])
@pytest.mark.parametrize(("version", "order"), [(2, "<"), (3, "<"), (3, ">")])
def test_files_in_the_manner_of_real_ones(tmp_path: Path, arch: str, version: int, order: str) -> None:
    more: dict[str, Any] = {"deepseek2": zoo.MLA, "nemotron_h": {"attention__head_count_kv": zoo.HYBRID_HEADS}}.get(
        arch, {"attention__sliding_window_pattern": [True, False, True, True]}
    )
    more = {"rope__scaling__factor": 0.1, **more}
    keys = zoo.keys(arch, tokens=300, **zoo.SMALL, **more, general__license="mit")
    keys["tokenizer.ggml.scores"] = ("f32", [0.5] * 300)
    path = sparse(tmp_path / "m.gguf", gguf_layout(keys, zoo.TINY, version=version, order=order))
    header = agree(path)
    assert header.version == version
    assert header.big_endian == (order == ">")


@pytest.mark.parametrize("order", ["<", ">"])
def test_files_that_the_package_writes(tmp_path: Path, order: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "w.gguf", "qwen3", endianess=ORDERS[order])
    writer.add_name("Written")
    writer.add_context_length(40960)
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_head_count([4, 8])
    writer.add_head_count_kv([2, 0])
    writer.add_rope_freq_base(1e6)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(10240)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token {n} 词" for n in range(500)])
    writer.add_token_merges(["a b"] * 400)
    writer.add_chat_template([{"name": "default", "template": "x"}, {"name": "tool_use", "template": "y"}])
    writer.add_custom_alignment(64)
    for kind, name in ((numpy.float32, "token_embd.weight"), (numpy.float16, "blk.0.attn_q.weight")):
        writer.add_tensor(name, numpy.zeros((100, 64), kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = agree(tmp_path / "w.gguf")
    assert header.values["general.alignment"] == 64
    item = next(iter(look_at(tmp_path / "w.gguf")))
    facts = item["facts"]
    assert (facts["parameters"], facts["heads"], facts["kv_heads"], facts["heads_by_layer"]) == (12800, 8, 2, [2, 0])
    assert facts["rope"] == {"base": 1e6, "scaling": "yarn", "factor": 4.0, "original_context": 10240}
    assert facts["templates"] == ["default", "tool_use"]
    native = (order == "<") == (sys.byteorder == "little")
    assert ("byte_order" in [problem["code"] for problem in item["problems"]]) is not native


def test_parts_that_the_package_writes(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", split_max_tensors=2, small_first_shard=True)
    writer.add_block_count(1)
    for number in range(5):
        writer.add_tensor(f"blk.0.t{number}.weight", numpy.zeros((32, 32), numpy.float32))
    writer.write_header_to_file(tmp_path / "big.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert len(list(tmp_path.iterdir())) == 4  # the first one holds keys only
    (item,) = [item for item in look_at(tmp_path) if item["format"] == "gguf"]
    assert item["facts"]["parameters"] == 5 * 1024
    assert not {"split_mismatch", "missing_parts", "wrong_shard", "truncated"} & {p["code"] for p in item["problems"]}


@pytest.mark.engine
def test_the_real_model_agrees_on_all_that_its_file_says() -> None:
    cache: Path = settings.TEST_ENGINE_CACHE
    if not is_ready(cache):
        pytest.skip("the small model is not prepared; run `make engine`")
    header = agree(folders(cache)[1].resolve())
    assert header.parameters == 134_515_008


def test_a_header_with_many_words(tmp_path: Path) -> None:
    agree(sparse(tmp_path / "twin.gguf", twin_layout(12_000, 12_000)))
