"""The list of pages that are looked at in light and dark, wide and narrow, English and Chinese.

A room adds a file `cases_<room>.py` here:

    @case("hosts", role="viewer")
    def hosts() -> str:
        Host.objects.create(…)          # committed rows
        return "/hosts/"
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], str]  # makes the rows and returns the address
    role: str | None = "admin"
    status: int = 200


CASES: list[Case] = []


def case(
    name: str, *, role: str | None = "admin", status: int = 200
) -> Callable[[Callable[[], str]], Callable[[], str]]:
    def add(make: Callable[[], str]) -> Callable[[], str]:
        CASES.append(Case(name, make, role, status))
        return make

    return add


def all_cases() -> list[Case]:
    for file in sorted(Path(__file__).parent.glob("cases_*.py")):
        importlib.import_module(f"tests.browser.{file.stem}")
    return CASES
