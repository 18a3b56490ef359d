"""Which files make a model, and where it would fit."""

import pytest

from models_catalog.downloads.catalogue import HubFile
from models_catalog.downloads.fits import Host, fit, needs_of
from models_catalog.downloads.picks import Choice, choices, one, quantisation
from tests.models_catalog.builders import LLAMA

SUM = "a" * 64
GIB = 1 << 30


def files(**sizes: int) -> list[HubFile]:
    return [HubFile(path, size, SUM) for path, size in sizes.items()]


def test_a_hugging_face_folder_leaves_out_what_is_there_twice() -> None:
    found = choices(
        files(**{
            "config.json": 10, "model-00001-of-00002.safetensors": 100, "model-00002-of-00002.safetensors": 50,
            "model.safetensors.index.json": 5, "pytorch_model.bin": 150, "onnx/model.onnx": 150, "tokenizer.json": 7,
            "original/consolidated.00.pth": 150, "tf_model.h5": 150, "flax_model.msgpack": 150, "README.md": 3,
            "optimizer.pt": 300, "runs/events.out.tfevents.1": 9, "modeling_own.py": 2, "picture.png": 900,
            "tokenizer.model": 6, "training_args.bin": 1, ".gitattributes": 1,
        })
    )  # fmt: skip
    assert [choice.key for choice in found] == ["hf"]
    assert [file.path for file in found[0].files] == [
        "README.md", "config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
        "model.safetensors.index.json", "modeling_own.py", "tokenizer.json", "tokenizer.model",
    ]  # fmt: skip
    assert (found[0].weights, found[0].complete) == (150, True)


def test_old_weights_count_where_there_are_no_others() -> None:
    (choice,) = choices(files(**{"config.json": 1, "pytorch_model.bin": 90, "training_args.bin": 3}))
    assert [file.path for file in choice.files] == ["config.json", "pytorch_model.bin"]


def test_mistrals_own_form_counts_only_alone() -> None:
    both = files(**{"config.json": 1, "model.safetensors": 9, "consolidated.safetensors": 9, "params.json": 1})
    assert [file.path for file in choices(both)[0].files] == ["config.json", "model.safetensors"]
    alone = files(**{"params.json": 1, "consolidated.safetensors": 9, "tekken.json": 2})
    assert [file.path for file in choices(alone)[0].files] == ["consolidated.safetensors", "params.json", "tekken.json"]


def test_a_missing_shard_is_named() -> None:
    (choice,) = choices(files(**{"model-00001-of-00003.safetensors": 1, "model-00003-of-00003.safetensors": 1}))
    assert (choice.missing, choice.complete) == (("model-00002-of-00003.safetensors",), False)
    (gguf,) = choices(files(**{"m-Q8_0-00001-of-00002.gguf": 1}))
    assert gguf.missing == ("m-Q8_0-00002-of-00002.gguf",)


def test_each_quantisation_is_a_choice_with_its_parts_and_its_projector() -> None:
    found = choices(
        files(**{
            "tiny-Q8_0.gguf": 80, "tiny-Q4_K_M.gguf": 40, "BF16/tiny-BF16-00001-of-00002.gguf": 90,
            "BF16/tiny-BF16-00002-of-00002.gguf": 70, "mmproj-F16.gguf": 5, "mmproj-F32.gguf": 9, "README.md": 1,
        })
    )  # fmt: skip
    assert [(choice.label, choice.weights) for choice in found] == [("Q4_K_M", 40), ("Q8_0", 80), ("BF16", 160)]
    assert [file.path for file in found[2].files] == [
        "BF16/tiny-BF16-00001-of-00002.gguf", "BF16/tiny-BF16-00002-of-00002.gguf", "README.md", "mmproj-F16.gguf",
    ]  # fmt: skip
    assert one([file for choice in found for file in choice.files], found[1].key) is not None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Qwen3-8B-Q4_K_M", "Q4_K_M"), ("model.IQ2_XXS", "IQ2_XXS"), ("UD-Q6_K_XL/m-UD-Q6_K_XL", "UD-Q6_K_XL"),
        ("gpt-oss-20b-mxfp4", "MXFP4"), ("smollm2-135m-instruct-q8_0", "Q8_0"), ("tiny", ""), ("x-f16", "F16"),
    ],
)  # fmt: skip
def test_the_name_of_a_quantisation(name: str, said: str) -> None:
    assert quantisation(name) == said


def test_content_without_a_sum_cannot_be_fetched() -> None:
    (choice,) = choices([HubFile("model.safetensors", 5)])
    assert not choice.complete


def choice(gib: float, format_: str = "gguf") -> Choice:
    weight = HubFile("w", int(gib * GIB), SUM)
    return Choice("k", "", format_, (weight,), weight.size)


@pytest.mark.parametrize(
    ("gib", "gpus", "ram_gib", "verdict", "cards"),
    [
        (10, [("L40S", 46_068)], 64, "fits", 1),
        (35, [("L40S", 46_068)] * 2, 64, "tight", 1),
        (60, [("L40S", 46_068)] * 2, 64, "fits", 2),
        (200, [("L40S", 46_068)] * 2, 64, "does_not_fit", 2),
        (3, [], 8, "fits", 0),
        (30, [], 8, "does_not_fit", 0),
    ],
)
def test_where_it_fits_by_its_size(
    gib: float, gpus: list[tuple[str, int]], ram_gib: int, verdict: str, cards: int
) -> None:
    machine = Host("quay", tuple(gpus), ram_gib * 1024, None)
    found = fit(choice(gib), needs_of(choice(gib), {}), machine)
    assert (found.verdict, found.gpus) == (verdict, cards)


def test_the_configuration_says_more_than_the_size() -> None:
    wish = choice(14, "hf")
    config = {**LLAMA, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32, "hidden_size": 4096,
              "intermediate_size": 11008, "vocab_size": 32000}  # fmt: skip
    needs = needs_of(wish, config)
    assert needs.facts is not None and needs.facts.geometry is not None
    small = fit(wish, needs, Host("quay", (("NVIDIA GeForce RTX 3080", 10_240),), 64_000, None))
    large = fit(wish, needs, Host("quay", (("NVIDIA L40S", 46_068),), 64_000, None))
    assert (small.verdict, large.verdict) == ("does_not_fit", "fits")


def test_a_configuration_that_no_model_has_leaves_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    wish = choice(14, "hf")
    needs = needs_of(wish, LLAMA)
    assert needs.facts is not None and needs.facts.geometry is not None
    monkeypatch.setattr("models_catalog.estimate.estimate", broken)
    assert fit(wish, needs, Host("quay", (("NVIDIA L40S", 46_068),), 64_000, None)).verdict == "fits"


def test_the_disk_counts_too() -> None:
    found = fit(choice(10), needs_of(choice(10), {}), Host("quay", (), 64_000, 5_000))
    assert found.disk is False
    enough = Host("quay", (), 64_000, 10 * 1024 + 256)
    assert fit(choice(10), needs_of(choice(10), {}), enough).disk is True
