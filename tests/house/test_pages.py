"""Promises about all templates and addresses together."""

import re
from pathlib import Path

import pytest
from django.urls import NoReverseMatch, reverse

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))


def test_the_menu_leads_somewhere() -> None:
    for name in ("deployments", "models", "hosts", "activity", "login", "logout", "profile", "preferences"):
        try:
            reverse(name)
        except NoReverseMatch:
            pytest.fail(f"no address is called {name!r}; the menu would hide it")


def test_pages_set_a_title_and_forms_carry_their_token() -> None:
    for file in TEMPLATES:
        text = file.read_text()
        if file.name != "base_lone.html" and re.search(r'\{% extends "base(_lone)?\.html"', text):
            assert "{% block title %}" in text, f"{file.name} has no title"
        for form in re.findall(r"<form[^>]*method=[\"']post[\"'].*?</form>", text, re.S | re.I):
            if 'name="theme"' not in form:  # sent by script, with the token in a header
                assert "{% csrf_token %}" in form, f"{file.name}: a form without csrf_token"


def test_words_stand_in_gettext() -> None:
    """Text between tags, and words in attributes that people hear or read, go through translation."""
    allowed = re.compile(
        r"^(?:[\s\d\W]|Berth|GPU|CPU|CUDA|RAM|Python|JavaScript|curl|English|中文|vLLM|GiB|MiB|KV|pid|JSON|CSV|API|v\d|r)*$"
    )
    spoken = re.compile(r"""(?:aria-label|title|placeholder|alt)="([^"{]*[A-Za-z]{3}[^"{]*)\"""")
    found = []
    for file in TEMPLATES:
        text = re.sub(r"\{#.*?#\}|\{% comment %\}.*?\{% endcomment %\}", "", file.read_text(), flags=re.S)
        text = re.sub(r"\{% blocktrans(?:late)?\b.*?\{% endblocktrans(?:late)? %\}", "", text, flags=re.S)
        text = re.sub(r"<(code|pre|script|svg)\b.*?</\1>", "", text, flags=re.S)
        found += [f"{file.name}: {word}" for word in spoken.findall(text)]
        bare = re.sub(r"\{%.*?%\}|\{\{.*?\}\}", "\x00", text, flags=re.S)
        for piece in re.split(r"<[^>]*>|\x00|&\w+;", bare):
            if piece.strip() and not allowed.match(piece):
                found.append(f"{file.name}: {piece.strip()[:80]}")
    assert not found, "\n".join(found)


def test_triggers_need_no_eval() -> None:
    """htmx runs with allowEval off: a filter in square brackets would be ignored."""
    for file in TEMPLATES:
        for trigger in re.findall(r'hx-trigger="([^"]*)"', file.read_text()):
            assert "[" not in trigger, f"{file.name}: {trigger}"


def test_every_class_of_the_stylesheet_is_used() -> None:
    """`s-…` are the kinds of a bar's segments, `htmx-…` are set by htmx."""
    sheet = re.sub(r"/\*.*?\*/", "", (ROOT / "static/panel/app.css").read_text(), flags=re.S)
    rooms = ("templates", "panel", "deployments", "models_catalog", "static/panel")
    files = [file for room in rooms for ending in ("html", "py", "js") for file in (ROOT / room).rglob(f"*.{ending}")]
    words = set(re.findall(r"[\w-]+", "\n".join(file.read_text() for file in files)))
    names = set(re.findall(r"\.([a-zA-Z][\w-]*)", sheet))
    assert not {name for name in names - words if not name.startswith(("s-", "htmx-"))}
