"""What launches teach: a correction where they agree, none where they are few or differ, and never a worse estimate."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models_catalog.estimate import Gpu, Lesson, Options, Plan, estimate
from models_catalog.estimate.learned import LAST, LEAST, MOST_GIB, lesson
from models_catalog.estimate.specs import read_spec
from tests.models_catalog.estimate.reports import OTHER_BUDGET, OTHER_CACHE, Report, reports

ROUNDING_GIB = 0.005 + 1e-9  # a log tells hundredths


def total(plan: Plan) -> float:
    rank = plan.ranks[0]
    return sum(part.value or 0.0 for part in rank.amounts().values())


@pytest.mark.parametrize(
    ("residuals", "shift", "launches"),
    [
        ([], None, 0),
        ([0.4], None, 0),
        ([0.4, 0.41], None, 0),  # few
        ([0.4, 0.41, 0.4], 0.4, 3),
        ([-0.81] * 20, -0.81, LAST),  # the newest
        ([0.4, 0.41, 0.4, -0.5], 0.4, 4),  # one odd start among four
        ([0.4, 2.0, -1.5], None, 0),  # they do not agree
        ([0.01, -0.02, 0.03], 0.0, 3),  # noise is no error
        ([9.0, 26.0, 81.9], None, 0),  # something else had the memory
        ([9.0, 0.4, 0.4], None, 0),
        ([9.0, 0.4, 0.4, 0.42], 0.4, 3),
        ([0.3] * LAST + [-0.6] * 40, 0.3, LAST),  # what was true once is not what is true now
    ],
)
def test_a_lesson(residuals: list[float], shift: float | None, launches: int) -> None:
    found = lesson(residuals)
    assert (found and round(found.shift_gib, 2), found.launches if found else 0) == (shift, launches)


def test_agreeing_launches_narrow_the_range() -> None:
    close, apart = lesson([0.4, 0.4, 0.41]), lesson([0.4, 0.2, 0.6])
    assert close is not None
    assert apart is not None
    assert close.doubt_gib == pytest.approx(0.1)
    assert apart.doubt_gib > close.doubt_gib
    assert apart.shift_gib == pytest.approx(0.4)


@given(true=st.floats(-3, 3), noise=st.lists(st.floats(-0.4, 0.4), min_size=LEAST, max_size=LAST))
def test_most_launches_are_foreseen_better_and_none_of_those_that_agree_worse(true: float, noise: list[float]) -> None:
    """Whatever the error and its scatter. What may come worse are the odd ones, a quarter at most."""
    seen = [true + each for each in noise]
    found = lesson(seen)
    if found is not None:
        worse = [each for each in seen if abs(each - found.shift_gib) > abs(each) + 1e-3]
        assert len(worse) <= len(seen) / 4


@given(st.lists(st.floats(-100, 100), max_size=30))
def test_a_correction_is_bounded(residuals: list[float]) -> None:
    found = lesson(residuals)
    assert found is None or (
        abs(found.shift_gib) <= MOST_GIB and 0.1 <= found.doubt_gib <= 3 and found.launches <= LAST
    )


# --- measured launches ----------------------------------------------------------------------------------------------


def cache_error(report: Report, found: Lesson | None = None) -> float | None:
    """Logged − foreseen, GiB; None where the report does not tell all that the cache depends on."""
    logged = report.number("kv_gib_logged")
    told = report.number("util") is not None and report.number("gpu_total_gib") is not None
    if logged is None or not told or OTHER_BUDGET.search(report.note) or OTHER_CACHE.search(report.note):
        return None
    spec = read_spec(report.spec())
    plan = estimate(report.facts, spec.options, spec.gpu, spec.engine_version, found)
    value = plan.ranks[0].kv.value if plan.ranks else None
    return None if value is None else logged - value


def by_key() -> dict[tuple[str, ...], list[Report]]:
    """Launches of one kind: GPUs of a lab stand for its host."""
    found: dict[tuple[str, ...], list[Report]] = defaultdict(list)
    for report in reports():
        if cache_error(report) is not None:
            key = (report["gpu"], report["version"], report.facts.model_type, report["tp"], report["pp"])
            found[key].append(report)
    return found


LEARNABLE = {key: rows for key, rows in by_key().items() if len(rows) > LEAST}


def test_there_are_launches_to_learn_from() -> None:
    assert sum(len(rows) for rows in LEARNABLE.values()) >= 15


@pytest.mark.parametrize("bias", [0.0, 0.6, -1.2])
@pytest.mark.parametrize("key", sorted(LEARNABLE), ids="-".join)
def test_learning_never_makes_a_held_out_launch_worse(key: tuple[str, ...], bias: float) -> None:
    """Each launch by what the others of its kind taught. `bias`: a host on which every launch has so much more."""
    rows = LEARNABLE[key]
    errors = [(cache_error(report) or 0.0) + bias for report in rows]
    corrected = []
    for place, report in enumerate(rows):
        found = lesson(errors[:place] + errors[place + 1 :])
        corrected.append(abs((cache_error(report, found) or 0.0) + bias))
        assert corrected[-1] <= abs(errors[place]) + ROUNDING_GIB, report["id"]
    if bias:
        assert max(corrected) <= 0.1, "what every launch shows was not learned"


# --- in the plan ----------------------------------------------------------------------------------------------------

CASES = [report for report in reports() if cache_error(report) is not None and report["pp"] == "1"][:12]


@pytest.mark.parametrize("shift", [-1.5, -0.2, 0.0, 0.2, 1.5])
@pytest.mark.parametrize("report", CASES, ids=lambda report: report["id"])
def test_a_lesson_moves_the_cache_and_keeps_the_sum(report: Report, shift: float) -> None:
    spec = read_spec(report.spec())
    taught = Lesson(shift, 0.1, 5)
    plain = estimate(report.facts, spec.options, spec.gpu, spec.engine_version)
    told = estimate(report.facts, spec.options, spec.gpu, spec.engine_version, taught)
    before, after = plain.ranks[0], told.ranks[0]
    assert after.kv.value == pytest.approx((before.kv.value or 0) + shift)
    assert total(told) == pytest.approx(total(plain))
    assert all((part.value or 0) >= 0 for name, part in after.amounts().items() if name != "kv_gib")
    assert abs(shift) > 1 or after.weights == before.weights
    assert (told.kv_tokens.value > plain.kv_tokens.value) if shift > 0.1 else True
    assert after.kv.reason.code == "kv.learned"
    assert after.kv.reason.params["launches"] == 5


def test_a_told_cache_is_not_corrected() -> None:
    report = CASES[0]
    taught = Lesson(1.0, 0.1, 5)
    told = estimate(report.facts, Options(context=4096, kv_gib=2.0), Gpu("H100"), "0.19.0", taught)
    assert told.ranks[0].kv.value == 2.0
    assert told.ranks[0].kv.reason.code == "kv.told"
    assert estimate(
        report.facts, Options(context=4096, kv_gib=2.0), Gpu("cpu", cpu=True), "0.32.0", taught
    ) == estimate(report.facts, Options(context=4096, kv_gib=2.0), Gpu("cpu", cpu=True), "0.32.0")


def test_the_first_start_is_no_news_after_others() -> None:
    report = CASES[0]

    def codes(taught: Lesson | None) -> set[str]:
        plan = estimate(report.facts, Options(context=4096), Gpu("H100", total_gib=79.19), "0.32.0", taught)
        return {reason.code for reason in plan.reasons}

    assert "start.cold" in codes(None)
    assert "start.cold" not in codes(Lesson(0.0, 0.1, 5))
