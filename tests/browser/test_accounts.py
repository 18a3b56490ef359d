"""In a real browser: from the one-time link to a token and out again; filters and older entries of the activity."""

import re
from collections.abc import Callable

from django.conf import settings
from playwright.sync_api import Page, expect

from panel import audit
from panel.accounts import services, tokens
from panel.accounts.models import User
from panel.audit.models import Event

PASSWORD = "harbour lights at nine"


def test_first_admin_token_and_out(transactional_db: None, visit: Callable[..., Page]) -> None:
    link = services.first_admin_link()
    assert link
    page = visit(link.removeprefix(settings.BERTH_PUBLIC_URL), role=None)
    page.get_by_label("Your name here").fill("ada")
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("The same password again").fill(PASSWORD)
    page.get_by_role("button", name="Make the account").click()
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()

    page.get_by_role("link", name="Your account and tokens").click()
    page.get_by_label("What it is for").fill("<i>nightly</i>")
    page.get_by_role("button", name="Create a token").click()
    shown = page.locator("#token-text")
    expect(shown).to_have_text(re.compile(r"^berth_[\w-]{40}$"))
    plain = shown.inner_text()
    assert tokens.find_token(plain)
    row = page.locator("#tokens").get_by_role("listitem").filter(has_text="<i>nightly</i>")
    expect(row).to_be_visible()  # the list has noticed by itself
    row.get_by_role("button", name="Revoke").click()
    expect(row).to_contain_text("revoked")
    assert tokens.find_token(plain) is None
    page.reload()
    assert plain not in page.content()

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto("/activity?kind=access")
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill("not this one at all")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("Name and password do not match.")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Activity")).to_be_visible()  # where the person wanted to go
    assert page.url.endswith("/activity?kind=access")
    expect(page.locator("#entries")).to_contain_text("gave a wrong name or password")
    assert User.objects.get().role == "admin"
    # a refused form has the status 422, which the browser counts as an error of its console
    assert [c for c in page.complaints if "422" not in c] == []  # type: ignore[attr-defined]


def test_activity_is_searched_and_grows_downwards(transactional_db: None, visit: Callable[..., Page]) -> None:
    for n in range(120):
        audit.record("deployment.started", ("deployment", n % 3, f"name-{n % 3}"), actor=None, revision=n)
    page = visit("/activity", role="viewer")
    entries = page.locator(".act > li")
    expect(entries).to_have_count(50)
    page.get_by_role("link", name="Show older").click()
    expect(entries).to_have_count(100)
    page.get_by_role("link", name="Show older").click()
    expect(entries).to_have_count(120)
    expect(page.locator("h2.day")).to_have_count(1)
    expect(page.get_by_role("link", name="Show older")).to_have_count(0)
    page.get_by_label("On").select_option(label="name-1")
    expect(entries).to_have_count(40)
    page.get_by_label("Search").fill("revision")  # the names of facts are found too
    expect(entries).to_have_count(40)
    page.get_by_label("Search").fill("no such thing")
    expect(page.locator("#entries")).to_contain_text("Nothing matches.")
    assert "q=no%20such%20thing" in page.url and "on=deployment" in page.url
    page.go_back()
    expect(entries).to_have_count(40)
    assert page.complaints == []  # type: ignore[attr-defined]
    assert Event.objects.count() == 120
