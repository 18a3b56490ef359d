"""English and Simplified Chinese are both complete: every string of the code has its Chinese, compiled and well formed, and
every Chinese one is said somewhere.

`make messages` collects new strings; the sentences are then written into locale/zh_Hans/LC_MESSAGES/django.po.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Formatter

import pytest

ROOT = Path(__file__).resolve().parents[2]
CATALOG = ROOT / "locale/zh_Hans/LC_MESSAGES/django.po"
STRING = r'"(?:[^"\\]|\\.)*"'
TOOLS = pytest.mark.skipif(shutil.which("xgettext") is None, reason="GETTEXT IS MISSING: install the package gettext")


@dataclass(frozen=True)
class Entry:
    context: str
    text: str
    plural: str
    translation: str
    fuzzy: bool


def entries(file: Path) -> Iterator[Entry]:
    for block in file.read_text(encoding="utf-8").split("\n\n"):
        text = _field(block, "msgid")
        if not text or block.lstrip().startswith("#~"):
            continue
        translation = _field(block, r"msgstr\[0\]") or _field(block, "msgstr")
        fuzzy = bool(re.search(r"^#,.*\bfuzzy\b", block, re.M))
        yield Entry(_field(block, "msgctxt"), text, _field(block, "msgid_plural"), translation, fuzzy)


def _field(block: str, name: str) -> str:
    found = re.search(rf"^{name} ((?:{STRING}\s*)+)", block, re.M)
    return "".join(ast.literal_eval(part) for part in re.findall(STRING, found[1])) if found else ""


def places(text: str) -> set[str]:
    """The %(name)s and {name} places of a string."""
    braces = {name for _t, name, _s, _c in Formatter().parse(re.sub(r"\{\{|\}\}", "", text)) if name}
    return set(re.findall(r"%\(([^)]+)\)[#0-9.]*[sdf]", text)) | braces


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The strings of the code as it is now, collected into a copy."""
    copy = tmp_path_factory.mktemp("messages") / "src"
    skip = shutil.ignore_patterns("__pycache__", "static", "migrations")
    for name in ("panel", "models_catalog", "deployments", "templates", "locale"):
        shutil.copytree(ROOT / name, copy / name, ignore=skip)
    shutil.copy(ROOT / "manage.py", copy)
    command = [sys.executable, "-m", "django", "makemessages", "-l", "zh_Hans", "--no-location", "--no-wrap"]
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    done = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return copy / "locale/zh_Hans/LC_MESSAGES/django.po"


@TOOLS
def test_every_string_has_its_chinese(fresh: Path) -> None:
    missing = [entry.text for entry in entries(fresh) if not entry.translation or entry.fuzzy]
    assert not missing, f"{len(missing)} strings have no Chinese (`make messages`, then write it):\n" + "\n".join(
        missing
    )


@TOOLS
def test_no_translation_is_left_over(fresh: Path) -> None:
    """A sentence that no code says any more leaves the catalog, so that nobody keeps translating it."""
    said = {(entry.context, entry.text, entry.plural) for entry in entries(fresh)}
    unused = [entry.text for entry in entries(CATALOG) if (entry.context, entry.text, entry.plural) not in said]
    assert not unused, "`make messages` takes these out:\n" + "\n".join(unused)
    assert "#~" not in CATALOG.read_text(encoding="utf-8")


def test_catalog_is_sound() -> None:
    for entry in entries(CATALOG):
        assert entry.translation and not entry.fuzzy, entry.text
        meant = places(entry.text) | places(entry.plural)
        assert places(entry.translation) == meant, f"places differ: {entry.text!r} → {entry.translation!r}"
        assert re.findall(r"</?\w+", entry.text) == re.findall(r"</?\w+", entry.translation), entry.text


def test_chinese_is_set_like_chinese() -> None:
    """Full-width punctuation, and a space between Chinese and Latin letters or digits."""
    tight = re.compile(r"[\u4e00-\u9fff][A-Za-z0-9]|[A-Za-z0-9][\u4e00-\u9fff]")
    half = re.compile(r"[\u4e00-\u9fff][,;:?!](?:\s|$)|[\u4e00-\u9fff]\.(?:\s|$)")
    for entry in entries(CATALOG):
        if entry.context == "date format":
            continue
        text = re.sub(r"%\([^)]+\)[.0-9]*[sdf]|\{\w+\}|<[^>]+>", " ", entry.translation)
        assert not tight.search(text), f"a space is missing in {entry.translation!r}"
        assert not half.search(text), f"half-width punctuation in {entry.translation!r}"


def test_compiled_catalog_is_current() -> None:
    import gettext

    with CATALOG.with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for entry in entries(CATALOG):
        if entry.plural:
            said = compiled.ngettext(entry.text, entry.plural, 2)
        else:
            said = compiled.pgettext(entry.context, entry.text) if entry.context else compiled.gettext(entry.text)
        assert said == entry.translation, f"run `make messages`: {entry.text!r}"
