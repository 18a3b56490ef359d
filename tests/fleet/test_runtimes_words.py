"""Every code that the host gives for an install, a removal or an engine that it found has words and a next step."""

import ast
from pathlib import Path

import pytest

from panel.fleet.agent import provision
from panel.fleet.runtimes import sources
from panel.fleet.runtimes import wording as runtime_wording
from panel.fleet.runtimes.wording import ALL, CHECKS, FAILURES, failure

AGENT = Path(provision.__file__).parent
# Where problems are made, and how their code begins when it reaches the panel.
PROBLEMS = {
    "provision": "install.", "install": "install.", "install_host": "install.", "install_plan": "install.",
    "install_pip": "install.", "verify": "install.",
}  # fmt: skip
REFUSALS = ("guard", "remove", "install_job", "discover", "jobs")
OTHERS = {"executable_missing", "no_port", "host_restarted"}  # of other jobs, or made by an expression


def codes(module: str, *calls: str) -> set[str]:
    """Literal codes of these calls, and the first words of a table of pip's failures."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((AGENT / f"{module}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in calls:
            texts = [part.value for part in node.args[:1] if isinstance(part, ast.Constant)]
            texts += [k.value.value for k in node.keywords if k.arg == "code" and isinstance(k.value, ast.Constant)]
            found |= {str(text) for text in texts}
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "_PIP_FAILURES":
            assert isinstance(node.value, ast.Tuple)
            rows = [row.elts[0] for row in node.value.elts if isinstance(row, ast.Tuple)]
            found |= {str(first.value) for first in rows if isinstance(first, ast.Constant)}
    return found


def test_every_problem_of_an_install_has_words() -> None:
    made = {start + code for module, start in PROBLEMS.items() for code in codes(module, "SetupProblem")}
    assert {"install.no_space", "install.index_unreachable", "install.verify_failed"} <= made
    assert made - set(FAILURES) == set()


def test_every_refusal_of_the_host_has_words() -> None:
    made = {code for module in REFUSALS for code in codes(module, "Refusal", "Refused")}
    mine = {code for code in made if code.startswith(("install.", "remove.", "folder_", "engine_", "executable_"))}
    assert {"remove.in_use", "install.forbidden", "engine_not_used_yet"} <= mine
    assert mine - set(ALL) - OTHERS == set()
    assert codes("jobs", "Refusal") - set(ALL) - OTHERS == set()


def test_every_failure_names_a_next_step_and_fills_its_places() -> None:
    for code in FAILURES:
        words = failure({"code": code, "params": {}})
        assert words.text and words.hint and "%(" not in words.text + words.hint, code
        assert ":" not in words.code or words.code == code


@pytest.mark.parametrize(
    ("refusal", "part"),
    [
        ({"code": "install.no_space", "params": {"path": "/srv", "free_mib": 1024, "need_mib": 5120}}, "1.0"),
        ({"code": "install.no_space", "params": {"path": "/srv"}}, "ran full"),
        ({"code": "install.verify_failed", "params": {"what": "import", "line": "ImportError: x"}}, "ImportError: x"),
        ({"code": "install.verify_failed", "params": {"what": "import", "signal": "SIGILL"}}, "SIGILL"),
        ({"code": "install.never_heard_of", "params": {}}, "install.never_heard_of"),
        (None, "without a word"),
    ],
)
def test_words_say_what_exactly_it_was(refusal: dict | None, part: str) -> None:
    assert part in failure(refusal).text


def test_what_is_looked_at_before_has_words_for_each_answer() -> None:
    assert set(CHECKS) <= set(FAILURES)
    assert set(runtime_wording.STEPS) == {"checking", "downloading", "installing", "extras", "verifying", "trying"}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://packages.example/simple", "https://packages.example/simple"),
        ("https://ada:pa55@packages.example:8443/simple", "https://••••@packages.example:8443/simple"),
        ("https://t0ken@packages.example/simple", "https://••••@packages.example/simple"),
        ("http://a:b@c@packages.example/simple", "http://••••@packages.example/simple"),
    ],
)
def test_addresses_are_shown_without_who_and_password(url: str, shown: str) -> None:
    assert sources.shown(url) == shown
