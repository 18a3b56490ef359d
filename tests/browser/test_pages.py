"""Every listed page, in every theme, width and language that people use."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page

from tests.browser.cases import Case, all_cases
from tests.browser.checks import assert_printable, assert_sound, overflow

# One visit per language; themes and widths change under the open page.
LOOKS: dict[str, list[tuple[str, int, str]]] = {
    "en": [("light", 1280, "light"), ("dark", 1280, "dark"), ("390", 390, "light")],
    "zh-hans": [("zh", 1280, "light"), ("zh-390-dark", 390, "dark")],
}


@pytest.mark.parametrize("shown", all_cases(), ids=lambda shown: shown.name)
def test_page_is_sound_in_every_look(transactional_db: None, visit: Callable[..., Page], shown: Case) -> None:
    path = shown.make()
    for language, looks in LOOKS.items():
        page = visit(path, role=shown.role, language=language)
        assert page.locator("h1").count() == 1
        assert page.locator("html").get_attribute("lang") == ("en" if language == "en" else "zh-Hans")
        if shown.status != 200:  # the browser complains of the status itself
            page.complaints[:] = [c for c in page.complaints if str(shown.status) not in c]  # type: ignore[attr-defined]
        for name, width, theme in looks:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
            assert_sound(page, f"{shown.name}.{name}")
        page.set_viewport_size({"width": 640, "height": 450})  # a window of 1280 × 900 at 200 %
        assert not (wide := overflow(page)), f"{shown.name} at 200 % is too wide:\n" + "\n".join(wide)
        assert_printable(page, shown.name)
        page.close()
