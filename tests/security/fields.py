"""Every name of a field that the panel has anywhere: in its templates, its forms, and where its views read a request."""

import importlib
import re
from functools import cache
from pathlib import Path

from django.forms import BaseForm

ROOT = Path(__file__).parents[2]
ROOMS = ("panel", "models_catalog", "deployments")
_NAMED = re.compile(r"""\bname="([A-Za-z_][A-Za-z0-9_.]*)\"""")
_READ = re.compile(r"""\b(?:GET|POST)(?:\.get|\.getlist)?[(\[]"([A-Za-z_]+)\"""")
_IN_FORMS = re.compile(r"""\b(?:data|cleaned_data)(?:\.get)?[(\[]"([A-Za-z_]+)\"""")
# What stands for names that are made: an option of an engine, and those that Django adds by itself.
MADE = {"o.max_model_len", "o.kv_cache_dtype", "o.no_such", "csrfmiddlewaretoken"}


@cache
def names() -> tuple[str, ...]:
    """In one order, always the same."""
    found = set(MADE)
    for path in (ROOT / "templates").rglob("*.html"):
        found |= set(_NAMED.findall(path.read_text(encoding="utf-8")))
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            found |= {*_READ.findall(text), *_IN_FORMS.findall(text)}
            if path.name == "forms.py":
                found |= of_forms(path)
    return tuple(sorted(found - {"viewport"}))


def of_forms(path: Path) -> set[str]:
    module = importlib.import_module(path.relative_to(ROOT).with_suffix("").as_posix().replace("/", "."))
    kinds = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, BaseForm)]
    return {name for kind in kinds for name in getattr(kind, "base_fields", {})}
