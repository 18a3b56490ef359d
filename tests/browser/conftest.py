"""Real browser, real web process: Chromium of the system through Playwright, uvicorn as a child on a free port.

`visit` opens a page as a person of a role; `tests/browser/checks.py` looks at it. Pages that should be looked at in
every language, theme and width are listed in `cases_<room>.py` files, see tests/browser/cases.py.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connections
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.browser.cases_downloads import hub
from tests.browser.chromium import CHROMIUM, FLAGS
from tests.servers import Servers
from tests.web import Web, web_process

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for a module. Not for the session: while it is open no other test may run an event loop."""
    if not CHROMIUM:
        pytest.skip("NO CHROMIUM: the pages were not looked at. Install chromium or set BERTH_TEST_CHROMIUM.")
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # Playwright's loop waits in this thread while tests use the ORM
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        # While Playwright's loop runs, Django keeps connections of its own for it; the next module has another database.
        connections.close_all()
        chromium.close()
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
    else:
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = before


@pytest.fixture(scope="module")
def web(servers: Servers, django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The panel's web process on the test database; rows must be committed (`transactional_db`)."""
    hubs = {"HF_ENDPOINT": hub(), "BERTH_MODELSCOPE_ENDPOINT": "http://127.0.0.1:1"}
    with web_process(servers, tmp_path_factory.mktemp("web"), **hubs) as running:
        yield running


@pytest.fixture
def person(transactional_db: None, django_user_model: Any) -> Callable[..., Any]:
    """person("operator") → a committed user of that role, the same one each time."""

    def make(role: str = "admin", **values: Any) -> Any:
        user, _made = django_user_model.objects.get_or_create(username=f"{role}-person", defaults={"role": role})
        if values:
            django_user_model.objects.filter(pk=user.pk).update(**values)
            user.refresh_from_db()
        return user

    return make


@pytest.fixture
def contexts(browser: Browser) -> Iterator[list[BrowserContext]]:
    opened: list[BrowserContext] = []
    yield opened
    for context in opened:
        context.close()


@pytest.fixture
def visit(
    browser: Browser, web: Web, broker: Any, person: Callable[..., Any], contexts: list[BrowserContext]
) -> Callable[..., Page]:
    """visit("/hosts/", role="viewer", width=390, dark=True, language="zh-hans") → the page, loaded and at rest.

    What the browser complains about is in `page.complaints`; `role=None` is a stranger.
    """

    def go(
        path: str, *, role: str | None = "admin", width: int = 1280, dark: bool = False, language: str = "en"
    ) -> Page:
        from django.test import Client

        from tests.browser.checks import rest, watch

        context = browser.new_context(
            base_url=web.url,
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            locale="zh-CN" if language == "zh-hans" else "en-GB",
            timezone_id="UTC",
            reduced_motion="reduce",
        )
        contexts.append(context)
        if role:
            client = Client()
            client.force_login(person(role))
            context.add_cookies(
                [{"name": name, "value": morsel.value, "url": web.url} for name, morsel in client.cookies.items()]
            )
        page = context.new_page()
        page.complaints = watch(page, web.url)  # type: ignore[attr-defined]  # rides along with the page
        page.goto(path)
        rest(page)
        return page

    return go
