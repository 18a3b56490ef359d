"""Every listed page, in every theme, width and language that people use."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.cases import Case, all_cases
from tests.browser.checks import assert_sound

LOOKS = {
    "light": {},
    "dark": {"dark": True},
    "390": {"width": 390},
    "zh": {"language": "zh-hans"},
    "zh-390-dark": {"language": "zh-hans", "width": 390, "dark": True},
}


@pytest.mark.parametrize("shown", all_cases(), ids=lambda shown: shown.name)
def test_page_is_sound_in_every_look(transactional_db: None, visit: Callable[..., Page], shown: Case) -> None:
    path = shown.make()
    for look, how in LOOKS.items():
        page = visit(path, role=shown.role, **how)
        assert page.locator("h1").count() == 1
        assert page.locator("html").get_attribute("lang") == ("zh-Hans" if "zh" in look else "en")
        if shown.status != 200:  # the browser complains of the status itself
            page.complaints[:] = [c for c in page.complaints if str(shown.status) not in c]  # type: ignore[attr-defined]
        assert_sound(page, f"{shown.name}.{look}")
        page.close()
