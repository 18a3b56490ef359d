"""Where one model fits: rows, columns, what is left out, and that one answer never contradicts the next."""

from hypothesis import given, settings
from hypothesis import strategies as st

from models_catalog.estimate.machines import USUAL, Machine, answer, usual
from models_catalog.estimate.need import Needs
from models_catalog.estimate.table import CONTEXTS, Group, contexts_of, elsewhere, table
from models_catalog.facts import ModelFacts
from tests.models_catalog.estimate.builders import DATA, facts

MODELS = sorted(path.stem for path in (DATA / "configs").glob("*.json"))
QWEN = facts("Qwen--Qwen3-8B")
ORDER = ("fits", "tight", "unknown", "does_not_fit")
machines = st.builds(
    Machine,
    st.sampled_from(["NVIDIA L4", "NVIDIA L40S", "NVIDIA H100 80GB HBM3", "A card"]),
    st.integers(4_000, 200_000),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
    st.sampled_from([None, (7, 0), (8, 0), (9, 0)]),
)


def l40s(*counts: int) -> list[Group]:
    return [Group("NVIDIA L40S", 46_068, count, ("lab",)) for count in counts]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(MODELS), machines, st.lists(st.integers(16, 300_000), min_size=2, max_size=2))
def test_a_longer_context_never_fits_better(name: str, machine: Machine, lengths: list[int]) -> None:
    needs = Needs(facts(name))
    short, long = (answer(needs, machine, length, "0.32.0") for length in sorted(lengths))
    assert ORDER.index(short.verdict) <= ORDER.index(long.verdict)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(MODELS), st.sampled_from([1, 2, 4]), st.integers(8_000, 200_000), st.integers(0, 60_000))
def test_a_larger_card_never_fits_worse(name: str, count: int, mib: int, more: int) -> None:
    """Of cards that no name or size makes another kind."""
    needs = Needs(facts(name))
    small, large = (answer(needs, Machine("CPU", total, cpu=True), 4096, "0.32.0") for total in (mib, mib + more))
    assert ORDER.index(small.verdict) >= ORDER.index(large.verdict)


def test_columns_go_to_the_length_that_the_model_names() -> None:
    assert contexts_of(QWEN) == [4096, 8192, 16384, 32768, 40960]
    assert contexts_of(facts("Qwen--Qwen3-8B", max_position_embeddings=2048)) == [2048]
    assert contexts_of(facts("Qwen--Qwen3-8B", max_position_embeddings=1 << 20)) == [*CONTEXTS, 1 << 20]
    assert contexts_of(ModelFacts(format="hf")) == list(CONTEXTS[:4])


def test_more_gpus_of_a_kind_are_shown_while_fewer_do_not_hold_every_length() -> None:
    assert [row.group.count for row in table(QWEN, l40s(1, 2, 4, 8), "0.32.0")] == [1, 2]
    large = facts("Qwen--Qwen3-30B-A3B", num_hidden_layers=96)
    counts = [row.group.count for row in table(large, l40s(1, 2, 4, 8), "0.32.0")]
    assert counts[:3] == [1, 2, 4]


def test_numbers_of_gpus_that_a_model_does_not_divide_into_are_no_rows() -> None:
    odd = facts("Qwen--Qwen3-8B", num_attention_heads=33, num_key_value_heads=33)
    assert [row.group.count for row in table(odd, l40s(1, 2), "0.32.0")] == [1]


def test_why_nothing_fits_is_told() -> None:
    (small,) = table(QWEN, [Group("NVIDIA T4", 12_000, 1, ("lab",))], "0.32.0")
    assert not small.fits and small.reasons[0].code in ("kv.none", "context.too_long")
    (old,) = table(QWEN, [Group("Quadro P6000", 24_576, 1, ("lab",), capability=(6, 1))], "0.32.0")
    assert not old.fits and (old.reasons[0].code, old.reasons[0].params["need"]) == ("gpu.capability", "7.0")
    (cpu,) = table(QWEN, [Group("CPU", 12_000, 1, ("lab",), cpu=True)], "0.32.0")
    assert not cpu.fits and cpu.reasons[0].code == "ram.too_small"


def test_usual_gpus_are_those_that_nobody_has() -> None:
    names = {name for name, _capability in USUAL}
    assert {machine.name for machine in usual([])} == names
    assert names - {machine.name for machine in usual(["NVIDIA L40S", "NVIDIA H100 80GB HBM3"])} == {
        "L40S",
        "H100 80 GB",
    }
    shown = elsewhere(QWEN, l40s(1), "0.32.0")
    assert "L40S" not in {row.group.name for row in shown} and any(row.fits for row in shown)


def test_nothing_is_said_of_a_model_that_says_nothing() -> None:
    rows = table(ModelFacts(format="hf"), l40s(1), "0.32.0")
    assert {cell.verdict for row in rows for cell in row.cells} == {"unknown"}
