"""Days, times, numbers and plural forms follow the language; the clock has 24 hours in both."""

from datetime import UTC, date, datetime, timedelta

import pytest
from django.template import engines
from django.utils import translation
from django.utils.formats import date_format
from django.utils.translation import ngettext

from panel.core import numbers

AT = datetime(2026, 3, 5, 14, 7, 9, tzinfo=UTC)
NOW = datetime(2026, 12, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    local = numbers.timezone.localtime
    monkeypatch.setattr(numbers.timezone, "localtime", lambda value=None: local(value) if value else NOW)


DAYS = [
    ("en", "DATE_FORMAT", "5 March 2026"),
    ("en", "DATETIME_FORMAT", "5 March 2026, 14:07:09"),
    ("en", "SHORT_DATETIME_FORMAT", "5 Mar 2026, 14:07"),
    ("en", "TIME_FORMAT", "14:07"),
    ("zh-hans", "DATE_FORMAT", "2026 年 3 月 5 日"),
    ("zh-hans", "DATETIME_FORMAT", "2026 年 3 月 5 日 14:07:09"),
    ("zh-hans", "SHORT_DATETIME_FORMAT", "2026-03-05 14:07"),
    ("zh-hans", "TIME_FORMAT", "14:07"),
]


@pytest.mark.parametrize(("language", "form", "written"), DAYS)
def test_days_and_times(language: str, form: str, written: str) -> None:
    with translation.override(language):
        assert date_format(AT, form) == written


@pytest.mark.parametrize(("language", "written"), [("en", "5 Mar 2026"), ("zh-hans", "2026 年 3 月 5 日")])
def test_a_day(language: str, written: str) -> None:
    with translation.override(language):
        assert numbers.day(date(2026, 3, 5)) == written


AGO = [
    (timedelta(seconds=40), "40\u00a0s ago", "40\u00a0秒前"),
    (timedelta(minutes=5), "5\u00a0min ago", "5\u00a0分钟前"),
    (timedelta(hours=3), "09:00", "09:00"),
    (timedelta(days=1), "yesterday 12:00", "昨天 12:00"),
    (timedelta(days=10), "21 Nov", "11 月 21 日"),
]


@pytest.mark.usefixtures("noon")
@pytest.mark.parametrize(("age", "english", "chinese"), AGO)
def test_how_long_ago(age: timedelta, english: str, chinese: str) -> None:
    with translation.override("en"):
        assert numbers.ago(NOW - age) == english
    with translation.override("zh-hans"):
        assert numbers.ago(NOW - age) == chinese


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_numbers_are_written_the_same_in_both(language: str) -> None:
    with translation.override(language):
        assert numbers.ngroup(118_784) == "118,784"
        assert numbers.gib(20_685) == "20.2\u00a0GiB"


def test_plural_forms() -> None:
    def said(n: int) -> str:
        return ngettext("%(n)s GPU", "%(n)s GPUs", n) % {"n": n}

    with translation.override("en"):
        assert [said(0), said(1), said(2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
    with translation.override("zh-hans"):
        assert [said(0), said(1), said(2)] == ["0 个 GPU", "1 个 GPU", "2 个 GPU"]


def test_plural_forms_in_templates() -> None:
    template = engines["django"].from_string(
        "{% blocktranslate count n=n %}{{ n }} entry{% plural %}{{ n }} entries{% endblocktranslate %}"
    )
    with translation.override("en"):
        assert [template.render({"n": n}) for n in (1, 2)] == ["1 entry", "2 entries"]
    with translation.override("zh-hans"):
        assert [template.render({"n": n}) for n in (1, 2)] == ["1 条", "2 条"]
