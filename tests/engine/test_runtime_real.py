"""The real vLLM (CPU) installed through the page: verified on the host by a start of its own, then it serves a model.

The packages that `make engine` prepared are taken where they lie, so that this takes a minute, not a download.
"""

from collections.abc import Iterator

import pytest
from django.test import Client
from playwright.sync_api import Browser, Page, expect

from deployments import services
from panel.accounts.models import User
from panel.fleet import logstore
from panel.fleet.agent import sample_model
from panel.fleet.models import RuntimeInstall
from tests.browser import checks
from tests.e2e.stack import Stack
from tests.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.browser]
CLICK_MS = 60_000
INSTALL_S = 600  # the tiny start imports torch: half a minute on an idle machine of two cores


@pytest.fixture
def page(berth: Stack, browser: Browser) -> Iterator[Page]:
    user, _made = User.objects.get_or_create(username="ada", defaults={"role": "admin"})
    client = Client()
    client.force_login(user)
    context = browser.new_context(base_url=berth.url, locale="en-GB", reduced_motion="reduce")
    context.set_default_timeout(CLICK_MS)
    cookies = [{"name": name, "value": m.value, "url": berth.url} for name, m in client.cookies.items()]
    context.add_cookies(cookies)  # type: ignore[arg-type]  # plain dicts of the same keys
    opened = context.new_page()
    opened.complaints = checks.watch(opened, berth.url)  # type: ignore[attr-defined]  # rides along with the page
    yield opened
    context.close()


def test_real_vllm_is_installed_through_the_page_and_answers(berth: Stack, page: Page) -> None:
    page.goto("/runtimes/")
    page.get_by_role("link", name="Install an engine", exact=True).first.click()
    expect(page.get_by_label("Engine")).to_have_value("cpu")
    expect(page.get_by_label("Version")).to_have_value("0.32.0")
    expect(page.locator("#checks")).to_contain_text("The CPU has AVX2.")
    page.get_by_role("button", name="Install", exact=True).click()
    state = page.locator("#state")
    until(lambda: state.inner_text() in ("Installed", "Failed"), timeout=INSTALL_S, why="the install ended")
    row = RuntimeInstall.objects.get()
    log = b"".join(part.data for part in logstore.read_all(row.job_id)).decode()
    assert row.state == "done", (row.refusal, log[-3000:])
    page.screenshot(path=checks.SHOTS / "engine" / "runtime-installed.png", full_page=True)
    expect(page.locator("#steps")).to_contain_text("A tiny model answered")
    assert row.runtime is not None
    assert (row.runtime.version, row.runtime.device, row.runtime.refusal) == ("0.32.0", "cpu", None)
    assert len(row.runtime.flags) > 100, "its own parser was asked"
    assert page.complaints == []  # type: ignore[attr-defined]

    deployment = berth.deploy("installed", sample_model.NAME, runtime_id=row.runtime.pk)
    berth.wait_for(deployment, "ready", "failed", timeout=300)
    assert deployment.state == "ready", deployment.reason
    assert "Paris" in deployment.run.answer["answer"]
    assert deployment.run.command[0] == row.runtime.executable
    services.stop(deployment, actor=None)
    berth.wait_for(deployment, "stopped", timeout=120)
