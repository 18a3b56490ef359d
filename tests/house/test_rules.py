"""House rules as tests: module and function size, no outside address, every code has words, no work at import."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
ROOMS = ("panel", "models_catalog", "deployments")
MAX_MODULE, MAX_FUNCTION = 400, 40


def modules() -> Iterator[Path]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if "migrations" not in path.parts:
                yield path


def test_no_module_is_longer_than_400_lines() -> None:
    long = {str(p.relative_to(ROOT)): n for p in modules() if (n := len(p.read_text().splitlines())) > MAX_MODULE}
    assert not long


def test_no_function_is_longer_than_40_lines() -> None:
    """The body counts, without the docstring: a long explanation is no long function."""
    long = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
                if lines > MAX_FUNCTION:
                    long[f"{path.relative_to(ROOT)}:{node.name}"] = lines
    assert not long


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        str(p.relative_to(ROOT))
        for p in modules()
        if p.read_text().strip() and not ast.get_docstring(ast.parse(p.read_text()))
    ]
    exempt = [p for p in silent if p.endswith(("apps.py", "__main__.py"))]
    assert sorted(set(silent) - set(exempt)) == []


@pytest.mark.parametrize("kind", ["*.html", "*.js", "*.css"])
def test_pages_name_no_outside_address(kind: str) -> None:
    found = {}
    for folder in ("templates", "static/panel"):
        for path in (ROOT / folder).rglob(kind):
            for address in re.findall(r"https?://[^\s\"'<>)]+", path.read_text()):
                if "www.w3.org" not in address:
                    found.setdefault(str(path.relative_to(ROOT)), []).append(address)
    assert not found


CODE = re.compile(r"^[a-z_]+(\.[a-z_0-9]+)?$")
# Where codes for people are made, and which call makes them.
MAKERS = {
    "deployments/planner": ("Reason", "refuse"),
    "deployments/engines": ("Reason", "_reason"),
    "deployments/steps.py": (),
    "panel/fleet/agent/guard.py": ("Refusal", "Refused", "refuse"),
}


def codes_in(path: Path, calls: tuple[str, ...]) -> set[str]:
    """Literal first texts of these calls, and every {"code": "…"}."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            texts = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            texts += [k.value.value for k in node.keywords if k.arg == "code" and isinstance(k.value, ast.Constant)]
            if name in calls and texts:
                found.add(texts[0])
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "code" and isinstance(value, ast.Constant):
                    found.add(value.value)
    return {code for code in found if CODE.match(str(code))}


def test_every_code_of_planner_engines_loop_and_host_has_words() -> None:
    from deployments.codes import CODES
    from deployments.states import DEADLINES
    from panel.fleet.runtimes.wording import FAILURES

    missing = {}
    for place, calls in MAKERS.items():
        paths = [ROOT / place] if place.endswith(".py") else sorted((ROOT / place).rglob("*.py"))
        for path in paths:
            if unknown := sorted(codes_in(path, calls) - set(CODES) - set(FAILURES)):
                missing[str(path.relative_to(ROOT))] = unknown
    reasons = {limit.reason for limit in DEADLINES.values() if limit.reason} - set(CODES)
    assert not missing and not reasons


def test_words_fill_their_places_and_never_fail() -> None:
    from deployments.codes import CODES
    from deployments.wording import words

    for code in CODES:
        said = words({"code": code, "params": {}})
        assert said is not None and said.text and "%(" not in said.text + said.hint, code
    assert words({"code": "no.such", "params": {}}).text
    assert words({}) is None
