"""In real browsers: an invitation accepted in a second one, a new password, a session ended, tokens made and revoked."""

import re
from collections.abc import Callable

import httpx
import pytest
from django.conf import settings
from playwright.sync_api import Page, expect

from panel.accounts import tokens
from panel.accounts.models import ApiToken, User
from tests.browser.checks import until
from tests.deployments import builders
from tests.web import Web

PASSWORD = "harbour lights at nine"


def shown(page: Page, label: str) -> str:
    """The one-time text beside the button that copies it; the link is for the test's own port."""
    expect(page.get_by_role("button", name=label)).to_be_visible()
    return page.locator(f"div.copy:has(button[aria-label='{label}']) code").inner_text()


def path_of(url: str) -> str:
    assert url.startswith(settings.BERTH_PUBLIC_URL)
    return url.removeprefix(settings.BERTH_PUBLIC_URL)


def fill_account(page: Page, name: str) -> None:
    page.get_by_label("Your name here").fill(name)
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("The same password again").fill(PASSWORD)
    page.get_by_role("button", name="Make the account and sign in").click()


def test_invited_and_accepted_in_a_second_browser(transactional_db: None, visit: Callable[..., Page]) -> None:
    admin = visit("/people/")
    admin.get_by_role("button", name="Make the link").click()  # nothing filled in: the browser asks for it
    admin.get_by_label("Who it is for").fill("Lin <b>of search</b>")
    admin.get_by_label("Role", exact=True).select_option("operator")
    admin.get_by_role("button", name="Make the link").click()
    first = path_of(shown(admin, "Copy the link"))
    expect(admin.locator("#invitations")).to_contain_text("Lin <b>of search</b>")  # the list has noticed by itself
    admin.get_by_role("button", name="New link for Lin").click()
    until(admin, f"document.getElementById('link-text')?.textContent.endsWith({first!r}) === false")
    second = path_of(shown(admin, "Copy the link"))

    old = visit(first, role=None)
    expect(old.get_by_role("heading", level=1)).to_contain_text("used, is too old")
    guest = visit(second, role=None)
    expect(guest.locator("main")).to_contain_text("admin-person invited you")
    fill_account(guest, "ADMIN-person")
    expect(guest.get_by_text("This name is taken")).to_be_visible()
    fill_account(guest, "lin")
    expect(guest.get_by_role("navigation", name="Main")).to_be_visible()
    expect(guest.get_by_role("link", name="People")).to_have_count(0)
    assert User.objects.get(username="lin").role == "operator"

    admin.reload()
    expect(admin.locator("#invitations")).not_to_contain_text("Lin")
    admin.get_by_role("link", name="lin", exact=True).click()
    admin.get_by_label("Role", exact=True).select_option("admin")
    admin.get_by_role("button", name="Change the role").click()
    expect(admin.get_by_role("status").filter(has_text="new role")).to_be_visible()
    guest.reload()
    expect(guest.get_by_role("link", name="People")).to_be_visible()
    assert admin.complaints == []  # type: ignore[attr-defined]


def test_an_invitation_is_taken_back(transactional_db: None, visit: Callable[..., Page]) -> None:
    admin = visit("/people/")
    admin.get_by_label("Who it is for").fill("Otto")
    admin.get_by_role("button", name="Make the link").click()
    link = path_of(shown(admin, "Copy the link"))
    admin.get_by_role("button", name="Take back the invitation for Otto").click()
    expect(admin.locator("#notice")).to_contain_text("taken back")
    expect(visit(link, role=None).get_by_label("Your name here")).to_have_count(0)


def test_disabled_out_and_in_again_with_a_new_password(transactional_db: None, visit: Callable[..., Page]) -> None:
    there = visit("/", role="operator")
    person = User.objects.get(username="operator-person")
    admin = visit(f"/people/{person.pk}/")
    admin.get_by_role("button", name="Disable the account").first.click()
    question = admin.get_by_role("dialog")
    expect(question).to_contain_text("Disable operator-person?")
    question.get_by_role("button", name="Disable the account").click()
    expect(admin.locator("#notice")).to_contain_text("signed out everywhere")
    there.reload()
    expect(there.get_by_role("heading", name="Sign in")).to_be_visible()

    admin.get_by_role("button", name="Enable the account").click()
    admin.get_by_role("button", name="Make a link for a new password").click()
    link = path_of(shown(admin, "Copy the link"))
    there.goto(link)
    there.get_by_label("New password", exact=True).fill("short")
    there.get_by_label("The same password again").fill("short")
    there.get_by_role("button", name="Set the password").click()
    expect(there.get_by_text("too short")).to_be_visible()
    there.get_by_label("New password", exact=True).fill(PASSWORD)
    there.get_by_label("The same password again").fill(PASSWORD)
    there.get_by_role("button", name="Set the password").click()
    expect(there.get_by_role("navigation", name="Main")).to_be_visible()
    person.refresh_from_db()
    assert person.is_active and person.check_password(PASSWORD)
    assert admin.complaints == []  # type: ignore[attr-defined]


def test_a_session_is_ended_from_another_browser(transactional_db: None, visit: Callable[..., Page]) -> None:
    here, there = visit("/account", role="viewer"), visit("/account", role="viewer")
    here.reload()
    rows = here.locator("section:has(#se-h) li")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="this browser")).to_have_count(1)
    here.locator("section:has(#se-h)").get_by_role("button", name=re.compile("^Sign out (Chrom|A browser)")).click()
    expect(rows).to_have_count(1)
    there.reload()
    expect(there.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(here.locator("#notice")).to_contain_text("signed out")


def test_a_token_for_one_deployment_made_tried_and_revoked(
    transactional_db: None, visit: Callable[..., Page], web: Web
) -> None:
    copy = builders.make_copy(builders.make_host())
    for name in ("chat", "search"):
        row = builders.make_deployment(copy, name=name, state="ready")
        builders.ready(row, builders.make_run(row, copy))
    page = visit("/account", role="operator")
    page.get_by_label("What it is for").fill("ci")
    page.get_by_text("Only for some deployments").click()
    page.get_by_label("search", exact=True).check()
    page.get_by_role("button", name="Create a token").click()
    plain = shown(page, "Copy the token")
    expect(page.locator("#token-new")).to_contain_text("for search alone")
    assert "/v1/models" in shown(page, "Copy the example")
    headers = {"Authorization": f"Bearer {plain}"}

    def models() -> httpx.Response:
        return httpx.get(f"{web.url}/v1/models", headers=headers, trust_env=False)

    assert [model["id"] for model in models().json()["data"]] == ["search"]
    admin = visit(f"/people/{ApiToken.objects.get().user_id}/")
    admin.get_by_role("button", name="Revoke ci").click()
    expect(admin.locator("#tokens")).to_contain_text("revoked")
    assert tokens.find_token(plain) is None
    end = 60
    while (status := models().status_code) != 401 and end:
        page.wait_for_timeout(100)
        end -= 1
    assert status == 401
    assert page.complaints == [] and admin.complaints == []  # type: ignore[attr-defined]


def test_language_and_colours_of_the_account(transactional_db: None, visit: Callable[..., Page]) -> None:
    page = visit("/account", role="viewer")
    page.get_by_label("Language", exact=True).select_option("zh-hans")
    page.locator("section:has(#lk-h) select[name=theme]").select_option("dark")
    page.get_by_role("button", name="Keep it").click()
    expect(page.locator("html")).to_have_attribute("lang", "zh-Hans")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    other = visit("/", role="viewer")  # another browser, which speaks English
    expect(other.locator("html")).to_have_attribute("lang", "zh-Hans")


@pytest.mark.parametrize("path", ["/people/", "/account"])
def test_a_page_left_open_by_someone_signed_out(transactional_db: None, visit: Callable[..., Page], path: str) -> None:
    page = visit(path)
    User.objects.filter(username="admin-person").update(is_active=False)
    page.get_by_role("button", name="Make the link" if path == "/people/" else "Create a token").evaluate(
        "b => { for (const f of b.form.querySelectorAll('[required]')) f.value = 'x'; b.click() }"
    )
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
