"""What strangers can make the host's door write into its log is bounded."""

import logging

import pytest

from panel.fleet.door import sparse


def test_a_flood_leaves_a_few_lines_and_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(sparse.time, "monotonic", lambda: now[0])
    keep = sparse.Sparse(most=3, window_s=60.0)

    def said(text: str) -> str:
        record = logging.LogRecord("a", logging.WARNING, "", 0, "%s", (text,), None)
        return record.getMessage() if keep.filter(record) else ""

    assert [said(str(n)) for n in range(100)] == ["0", "1", "2", *[""] * 97]
    now[0] += 61
    assert said("later") == "later (before it 97 more were left out)"
    assert said("more") == "more"
