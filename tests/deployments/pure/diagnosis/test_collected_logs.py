"""Real failed starts with known cause: class, root line and phase; and logs of healthy runs, which have none."""

from __future__ import annotations

import json

import pytest

from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.reader import Reader
from deployments.diagnosis.rules import ALL, BY_CODE
from tests.deployments.pure.diagnosis.collected import DATA, SAMPLES, Sample, read, score


def as_it_is(sample: Sample) -> tuple[bytes, int]:
    return sample.log, sample.root


@pytest.mark.parametrize("named", [True, False], ids=["engine told", "engine from the log"])
def test_class_root_line_and_phase(named: bool) -> None:
    result = score(as_it_is, named=named)
    assert result.code >= 0.97, result.wrong
    assert result.root >= 0.95, result.wrong
    assert result.phase >= 0.97, result.wrong


@pytest.mark.parametrize("path", sorted((DATA / "healthy").iterdir()), ids=lambda path: path.stem)
@pytest.mark.parametrize("ended", [{}, {"exit_code": 0}, {"exit_code": 143}, {"signal": 15}])
def test_a_healthy_log_has_no_diagnosis(path, ended) -> None:  # type: ignore[no-untyped-def]
    reader = Reader()
    reader.feed(path.read_bytes())
    found = diagnose(reader, **ended)
    assert (found.code, found.root_line, found.failed, found.fixes) == ("", None, False, ())


def test_what_is_said_is_sure_and_what_is_not_sure_is_not_said() -> None:
    """Of the logs that are classified wrongly none is among the recognised ones."""
    known = 0
    for sample in SAMPLES:
        found = read(sample.log, sample.engine)
        if found.recognised:
            known += 1
            assert found.code == sample.code, sample.name
    assert known >= 0.93 * len(SAMPLES)


def test_a_family_that_is_unknown_is_not_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the rules of a family its logs are rarely given a wrong class with confidence."""
    from deployments.diagnosis import reader as module
    from deployments.diagnosis import rules

    wrong, count = [], 0
    for family in ("mem", "tp", "quant", "config", "args", "load", "env", "hub", "arch"):
        left = {
            name: tuple(r for r in of if not r.code.startswith(f"{family}.")) for name, of in rules.BY_ENGINE.items()
        }
        monkeypatch.setattr(rules, "BY_ENGINE", left)
        rules.tests_of.cache_clear()
        rules.index_of.cache_clear()
        module.match.cache_clear()
        for sample in SAMPLES:
            if sample.code.startswith(f"{family}."):
                found, count = read(sample.log, "vllm"), count + 1
                if found.recognised and not found.code.startswith(f"{family}."):
                    wrong.append((sample.name, sample.code, found.code))
        monkeypatch.undo()
        rules.tests_of.cache_clear()
        rules.index_of.cache_clear()
        module.match.cache_clear()
    assert count > 60
    assert len(wrong) <= 0.12 * count, wrong


def test_every_diagnosis_is_json_with_the_promised_keys() -> None:
    for sample in SAMPLES:
        known = json.loads(json.dumps(read(sample.log).as_dict()))
        assert {"class", "phase", "root_line", "confidence", "title", "fixes", "facts"} <= known.keys()
        assert all(fix["text"] or fix["command"] for fix in known["fixes"]), sample.name
        if known["root_line"]:
            raw = sample.log.split(b"\n")[known["root_line"] - 1].decode("utf-8", "replace")
            assert known["root"][-60:].strip() in raw or known["root"].split()[-1] in raw


def test_the_inventory_of_classes_is_whole() -> None:
    assert len(ALL) == len(BY_CODE) >= 200
    assert {sample.code for sample in SAMPLES if not sample.healthy} <= BY_CODE.keys()
