"""How many cases a fuzz test makes: a short, always equal run in `make test`; with BERTH_TEST_FUZZ=n (`make fuzz`) other ones.

BERTH_TEST_FUZZ counts cases of all fuzz tests together, roughly; BERTH_TEST_FUZZ_SEED makes a long run repeatable. How many
cases were really sent is added to test-output/fuzz.count.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

LONG = int(os.environ.get("BERTH_TEST_FUZZ") or 0)
COUNT = Path(__file__).parents[2] / "test-output" / "fuzz.count"

# What breaks things: NUL and lone surrogates, directions and escapes, formulas, templates, SQL, paths, odd numbers.
NASTY = [
    "", " ", "\0", "a\0b", "\u202e", "\ud800", "\x1b[31m", "\r\nX: y", "<script>alert(1)</script>", "'; DROP TABLE x; --",
    "=cmd|' /C calc'!A0", "{{7*7}}", "{% load x %}", "${7*7}", "%00", "%s%n", "../../etc/passwd", "file:///etc/passwd",
    "http://169.254.169.254/", "9" * 400, "-1", "1e999", "NaN", "Infinity", "²", "٣", "0x10", "1_000", "true", "null",
    "[" * 2000, '{"a":' * 500, "a" * 5000, "\U0001f600" * 50, "ﬁ", "İ", "\x7f", "\u2028", "--trust-remote-code",
]  # fmt: skip
texts = st.one_of(st.sampled_from(NASTY), st.text(max_size=40))
numbers = st.sampled_from([0, -1, 1, 2**31, 2**31 - 1, -(2**31) - 1, 2**63, 2**63 - 1, 2**64, 10**40, 1e308, -0.0])


def cases(short: int, share: float = 1.0) -> Callable[[Any], Any]:
    """Hypothesis settings: `short` equal cases, or `share` of the long run's."""
    most = max(1, int(LONG * share)) if LONG else short
    made = settings(
        max_examples=most, deadline=None, derandomize=not LONG, database=None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    seed = os.environ.get("BERTH_TEST_FUZZ_SEED")

    def wrap(test: Any) -> Any:
        return hypothesis.seed(int(seed))(made(test)) if LONG and seed else made(test)

    return wrap


def count(number: int) -> None:
    """Add to what was sent in a long run."""
    if LONG:
        COUNT.parent.mkdir(exist_ok=True)
        with COUNT.open("a", encoding="ascii") as file:
            file.write(f"{number}\n")
