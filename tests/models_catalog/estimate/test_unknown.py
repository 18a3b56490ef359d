"""What is not known is said, with the range that is certain."""

import pytest

from models_catalog.estimate import Gpu, Options, estimate
from models_catalog.estimate.words import WORDS
from models_catalog.facts import ModelFacts, Quantisation
from models_catalog.inspect.config_only import facts_of_config
from tests.models_catalog.estimate.builders import H100, SMOL, codes, facts, plan


def test_an_unknown_version_has_the_range_of_all_and_the_most_careful_number() -> None:
    found = plan("Qwen--Qwen3-8B", "", utilisation=0.9)
    each = [plan("Qwen--Qwen3-8B", v, utilisation=0.9) for v in ("0.11", "0.16", "0.19", "0.21", "0.27", "0.32")]
    assert codes(found)[0] == "version.unknown"
    kv, all_kv = found.ranks[0].kv, [one.ranks[0].kv for one in each]
    assert kv.value == min(amount.value or 0 for amount in all_kv)
    assert (kv.low, kv.high) == (min(a.low or 0 for a in all_kv), max(a.high or 0 for a in all_kv))
    assert found.verdict == "fits"  # whichever it is


def test_a_version_that_decides_leaves_the_verdict_open() -> None:
    """Fits with the new sampler only."""
    gpu = Gpu("A10G", 22.06)
    told = {v: plan("Qwen--Qwen3-8B", v, gpu, context=24576, utilisation=0.9).verdict for v in ("0.16.0", "0.19.0")}
    assert told["0.16.0"] != told["0.19.0"]
    assert plan("Qwen--Qwen3-8B", "", gpu, context=24576, utilisation=0.9).verdict == "unknown"


def test_a_version_older_than_what_was_checked_has_no_verdict() -> None:
    found = plan("Qwen--Qwen3-8B", "0.3.1")
    assert codes(found)[0] == "version.unchecked"
    assert found.verdict == "unknown"
    assert plan("Qwen--Qwen3-8B", "0.3.1", Gpu("T4", 14.56)).verdict == "does_not_fit"  # whatever is changed


@pytest.mark.parametrize("version", ["0.33.0", "0.99.0", "1.0.2", "nightly", "latest"])
def test_a_version_newer_than_what_was_checked_counts_like_the_newest_and_says_so(version: str) -> None:
    found, newest = plan("Qwen--Qwen3-8B", version), plan("Qwen--Qwen3-8B", "0.32.0")
    assert codes(found)[0] == "version.newer"
    assert (found.verdict, found.kv_tokens) == (newest.verdict, newest.kv_tokens)


def test_an_unknown_architecture_is_marked_and_its_range_is_open() -> None:
    model = facts_of_config({**SMOL, "model_type": "novel", "architectures": ["NovelForCausalLM"]})
    found = estimate(model, Options(), H100, "0.19.0")
    assert codes(found)[0] == "model.unchecked"
    assert found.verdict == "unknown"
    assert (found.kv_tokens.low, found.kv_tokens.high) == (0, None)
    sized = model.model_copy(update={"weight_bytes": 300 * 2**30})
    assert estimate(sized, Options(), H100, "0.19.0").ranks[0].weights.high == pytest.approx(300)


def test_no_shape_at_all_says_only_what_the_files_say() -> None:
    nothing = estimate(ModelFacts(format="hf"), Options(), H100, "0.19.0")
    assert (nothing.verdict, nothing.ranks, nothing.kv_tokens.value) == ("unknown", (), None)
    large = ModelFacts(format="hf", weight_bytes=200 * 2**30)
    assert estimate(large, Options(), H100, "0.19.0").verdict == "does_not_fit"
    assert estimate(large, Options(tp=4), H100, "0.19.0").verdict == "unknown"


def test_an_unknown_packing_gives_no_number_but_a_range() -> None:
    model = facts("Qwen--Qwen3-8B").model_copy(update={"quantisation": Quantisation(method="odd", label="Odd")})
    found = plan(model, context=8192)
    weights = found.ranks[0].weights
    assert weights.value is None
    assert (weights.low, weights.high) == (pytest.approx(15.27 / 8, abs=0.1), pytest.approx(15.27, abs=0.1))
    assert "scheme.unknown" in codes(found)
    assert found.verdict == "fits"  # it does in 16 bits
    assert plan(model, gpu=Gpu("T4", 14.56), context=8192).verdict == "unknown"


def test_a_told_cache_is_counted_whatever_the_packing() -> None:
    model = facts("Qwen--Qwen3-8B").model_copy(update={"quantisation": Quantisation(method="odd")})
    assert plan(model, kv_gib=10.0).kv_tokens.value == plan("Qwen--Qwen3-8B", kv_gib=10.0).kv_tokens.value


def test_an_unknown_gpu_leaves_the_cache_open() -> None:
    found = plan("Qwen--Qwen3-8B", gpu=Gpu("Some Card"))
    assert found.ranks[0].weights.value == pytest.approx(15.27, abs=0.01)
    assert (found.ranks[0].kv.value, found.kv_tokens.value) == (None, None)
    assert "gpu.unknown" in codes(found)
    assert found.verdict == "unknown"


def test_engines_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="tensorrt"):
        estimate(facts("Qwen--Qwen3-8B"), Options(engine="tensorrt"), H100, "")


def test_every_reason_has_words() -> None:
    """Codes are written out in the code; each has a sentence, and no sentence is left over."""
    import re
    from pathlib import Path

    import models_catalog.estimate as package

    folder = Path(package.__file__).parent
    text = "\n".join(path.read_text() for path in folder.glob("*.py") if path.name != "words.py")
    told = set(re.findall(r'(?:Reason|fail|warn|note)\(\s*"([a-z_]+\.[a-z_]+)"', text))
    kinds = "overhead|graphs|kv|activation|weights"
    told |= set(re.findall(rf'"((?:{kinds})\.[a-z_]+)"', text))
    assert told == set(WORDS)
