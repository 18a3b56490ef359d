"""The estimate against measured launches: no worse than promised, and better than the rules of thumb."""

import pytest

from tests.models_catalog.estimate.reports import Errors, all_errors, end_to_end, from_cache, reports, weights

LIMITS = {
    "weights": (weights, 80, 0.001, 0.01),
    "tokens": (lambda: from_cache()[0], 85, 0.0002, None),
    "concurrency": (lambda: from_cache()[1], 75, 0.0005, None),
    "cache": (end_to_end, 59, 0.001, 0.015),
}


@pytest.mark.parametrize("name", LIMITS)
def test_as_close_to_measured_launches_as_promised(name: str) -> None:
    measure, least, most_median, most_p90 = LIMITS[name]
    found: Errors = measure()
    middle, p90 = found.spread()
    assert len(found.rows) >= least, "fewer reports are compared than there are"
    assert middle <= most_median
    assert most_p90 is None or p90 <= most_p90


def test_better_than_every_rule_of_thumb() -> None:
    for errors in all_errors():
        for rule in errors.rules:
            assert errors.spread()[1] < errors.spread(rule)[1], (errors.name, rule)


def test_every_measured_value_of_the_promised_rows_is_near_its_range() -> None:
    """Nine of ten caches lie within the range that is shown beside the number."""
    inside = [
        (low := report.plan().ranks[0].kv).low <= measured <= low.high
        for report in reports()
        if (measured := report.number("kv_gib_logged")) and report["id"] in {row[0] for row in end_to_end().rows}
    ]
    assert sum(inside) >= 0.9 * len(inside)


def test_one_request_fits_or_not_as_it_did() -> None:
    """From the logged size of the cache: does one request of the wanted context fit?"""
    wrong = {}
    for report in reports():
        size, length = report.number("kv_gib_logged"), report.number("max_model_len")
        failed = {"ok": False, "fail:max_len_gt_kv": True}.get(report["outcome"])
        if failed is None or not size or size < 0 or not length or "excluded from KV" in report.note:
            continue
        plan = report.plan(kv_gib=size)
        if plan.verdict == "unknown":
            continue  # said so, which is no error
        if (plan.verdict == "does_not_fit") is not failed:
            wrong[report["id"]] = (report["outcome"], plan.verdict, plan.max_len.value)
    assert not wrong


def test_a_pipeline_has_the_tokens_of_its_last_stage() -> None:
    """The report with four stages: its log shows the first stage's memory and the smallest number of blocks."""
    report = next(report for report in reports() if report["pp"] == "4")
    plan = report.plan()
    assert plan.kv_tokens.value == pytest.approx(report.number("kv_tokens_logged"), rel=0.001)
    last, first = plan.ranks[-1].kv.value, plan.ranks[0].kv.value
    assert last is not None
    assert first is not None
    assert last < first
