"""Words and numbers as people read them, and markup that cannot be broken by what it shows."""

from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.template import Context, Template
from django.utils import timezone, translation

from panel.core import numbers, wording
from panel.core.templatetags import ui

N = "\u00a0"


def render(text: str, **context: Any) -> str:
    return Template(text).render(Context(context))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, ""),
        (0, f"0{N}s"),
        (0.04, f"0.1{N}s"),
        (0.44, f"0.4{N}s"),
        (0.97, f"1{N}s"),
        (41.4, f"41{N}s"),
        (59.6, f"1{N}min"),
        (85, f"1{N}min 25{N}s"),
        (7500, f"2{N}h 5{N}min"),
        (3 * 86400, "3 days"),
        (-5, f"0{N}s"),
    ],
)
def test_duration(seconds: float | None, words: str) -> None:
    assert numbers.duration(seconds) == words


def test_duration_follows_the_language() -> None:
    with translation.override("zh-hans"):
        assert numbers.duration(85) == f"1{N}分钟 25{N}秒"


@pytest.mark.parametrize(
    ("count", "words"),
    [(17, f"17{N}B"), (2048, f"2{N}KiB"), (5 << 20, f"5{N}MiB"), (int(3.14 * (1 << 30)), f"3.1{N}GiB"), (None, "—")],
)
def test_size(count: int | None, words: str) -> None:
    assert numbers.size(count) == words


@pytest.mark.parametrize("said", ["it", [], {}, "nan"])
def test_what_a_host_says_is_never_an_error_of_the_page(said: object) -> None:
    assert wording.fill("%(free:gib)s free", {"free": said}).endswith(" free")


def test_gib_and_groups() -> None:
    assert numbers.gib(46_068) == f"45.0{N}GiB"
    assert numbers.gib(2_500_000, "") == "2,441.4"
    assert numbers.gib(None) == "—"
    assert numbers.ngroup(118784) == "118,784"
    assert numbers.ngroup("many") == "many"


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> datetime:
    moment = datetime(2026, 5, 20, 12, 0, tzinfo=timezone.get_current_timezone())
    monkeypatch.setattr(numbers.timezone, "localtime", lambda value=None, tz=None: value or moment)
    return moment


def test_ago_like_people_say_it(noon: datetime) -> None:
    assert numbers.ago(noon - timedelta(seconds=40)) == f"40{N}s ago"
    assert numbers.ago(noon - timedelta(minutes=12)) == f"12{N}min ago"
    assert numbers.ago(noon - timedelta(hours=3)) == "09:00"
    assert numbers.ago(noon - timedelta(hours=20)) == "yesterday 16:00"
    assert numbers.ago(noon - timedelta(days=9)) == "11 May"
    assert numbers.ago(noon - timedelta(days=400)) == f"15 Apr{N}2025"
    assert numbers.ago(noon + timedelta(seconds=30)) == f"0{N}s ago", "clocks may differ a little"
    assert numbers.ago(None) == "—"


def test_when_keeps_the_exact_time(noon: datetime) -> None:
    html = ui.when(noon - timedelta(seconds=40))
    assert 'datetime="2026-05-20T11:59:20+00:00"' in html
    assert "40" in html and "title=" in html


EVIL = '"><script>alert(1)</script>'
ESCAPED = "&lt;script&gt;"


def test_everything_is_escaped() -> None:
    page = render(
        "{% icon e %}{% state 'ok' e %}{% measured e %}{% estimated e %}{% copy 'c' e e text=e %}{% avatar e %}"
        "{% step 'now' e e e e 12 e %}{% bar segments 10 e %}"
        "{% note 'warn' e %}{{ e }}{% endnote %}{% log_panel 'l' e e job=e download=e %}",
        e=EVIL,
        segments=[("w", 5, EVIL)],
    )
    assert "<script" not in page
    assert page.count(ESCAPED) > 15


def test_bar_never_exceeds_its_width() -> None:
    html = render("{% bar s 10 'all' %}", s=[("w", 8, "weights"), ("x", 9, "")])
    assert 'width="80.00%"' in html and 'width="20.00%"' in html
    assert "url(#hatch)" in html and ">weights<" in html
    assert render("{% bar s 0 'nothing' %}", s=[("w", 8)]).count('width="0.00%"') == 1


def test_progress_of_a_step_is_plain_digits_in_every_language() -> None:
    with translation.override("zh-hans"):
        assert 'value="62"' in render("{% step 'now' 'x' value=62.4 %}")


def test_state_icons_differ_so_that_colour_is_never_alone() -> None:
    assert len(set(ui.STATE_ICONS.values())) == len(ui.STATE_ICONS)


def test_field_ties_hint_and_error_to_the_control() -> None:
    from panel.fleet.forms import EngineForm

    html = render("{% field f.executable 'a hint' %}", f=EngineForm({"executable": ""}))
    assert 'aria-describedby="id_executable-hint id_executable-bad"' in html
    assert 'aria-invalid="true"' in html and 'class="form-control is-invalid"' in html
    assert 'id="id_executable-hint"' in html and 'id="id_executable-bad"' in html


def test_every_template_compiles() -> None:
    from django.conf import settings
    from django.template.loader import get_template

    folder = Path(settings.BASE_DIR) / "templates"
    for file in folder.rglob("*.html"):
        get_template(str(file.relative_to(folder)))


def test_menu_marks_the_section_and_hides_nothing_for_a_stranger(rf: Any) -> None:
    request = rf.get("/x")
    html = Template('{% extends "base.html" %}').render(
        Context({"request": request, "section": "hosts", "user": SimpleNamespace(is_authenticated=False)})
    )
    assert 'aria-current="page"' in html and "data-choice" not in html
