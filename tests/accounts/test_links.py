"""Links that work once: an invitation and a new password, from both ends, with two at once, and all that ends them."""

import io
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from panel.accounts import limits, links
from panel.accounts.models import OneTimeLink, User
from panel.audit.models import Event
from panel.core.errors import Conflict, Invalid
from tests.accounts.conftest import PASSWORD

pytestmark = pytest.mark.django_db
Browser = Callable[..., Client]
HTMX = {"HX-Request": "true"}
NEW = "another light at ten"


@pytest.fixture
def path(settings: Any) -> Callable[[str], str]:
    return lambda url: url.removeprefix(settings.BERTH_PUBLIC_URL)


def accept(client: Client, path: str, name: str = "mei", password: str = PASSWORD, again: str = "") -> Any:
    return client.post(path, {"name": name, "password": password, "again": again or password})


def invited(people: dict[str, User], role: str = "operator") -> tuple[OneTimeLink, str]:
    return links.invite(label="Mei of the search team", role=role, actor=people["admin"])


# --- invitations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
def test_from_the_invitation_to_the_first_page(people: dict[str, User], path: Any, role: str) -> None:
    link, url = invited(people, role)
    assert timedelta(hours=71) < link.expires_at - timezone.now() <= timedelta(hours=72)
    client = Client()
    page = client.get(path(url))
    assert page.status_code == 200 and "admin-1 invited you" in page.content.decode()
    assert "no-store" in page["Cache-Control"]
    assert accept(client, path(url))["Location"] == "/account"
    user = User.objects.get(username="mei")
    assert (user.role, user.is_active, user.is_superuser, user.is_staff) == (role, True, False, False)
    assert client.get("/account").status_code == 200
    for status in (client.get(path(url)).status_code, accept(Client(), path(url), "ben").status_code):
        assert status == 404
    told = list(Event.objects.order_by("pk").values_list("verb", "actor", "target"))
    assert told == [
        ("invite.made", "admin-1", "Mei of the search team"),
        ("user.joined", "mei", "mei"),
        ("login", "mei", "mei"),
    ]
    assert Event.objects.get(verb="user.joined").facts["invited_by"] == "admin-1"


@pytest.mark.parametrize(("address", "told"), [("http://localhost:8080", True), ("https://berth.example.org", False)])
@pytest.mark.parametrize("headers", [{}, HTMX])
def test_a_link_that_only_this_machine_can_open_says_so(
    browser: Browser, settings: Any, address: str, told: bool, headers: dict[str, str]
) -> None:
    settings.BERTH_PUBLIC_URL = address
    page = browser("admin").post("/people/invite", {"label": "Mei", "role": "viewer"}, headers=headers)
    assert ("on the panel's own machine only" in page.content.decode()) is told


def test_the_secret_is_shown_once_and_kept_nowhere(browser: Browser, settings: Any) -> None:
    client = browser("admin")
    page = client.post("/people/invite", {"label": "Mei", "role": "viewer"})
    url = page.context["url"]
    assert url in page.content.decode() and "no-store" in page["Cache-Control"]
    secret = url.rpartition("/")[2]
    assert len(secret) >= 40
    assert secret not in client.get("/people/").content.decode()
    assert secret not in str(list(OneTimeLink.objects.values())) + str(list(Event.objects.values()))


def test_in_place_with_the_list_beside_it(browser: Browser, path: Any) -> None:
    client = browser("admin")
    answer = client.post("/people/invite", {"label": "Mei", "role": "viewer"}, headers=HTMX)
    assert answer["HX-Trigger"] == "invitations-changed" and "<html" not in answer.content.decode()
    first = answer.context["url"]
    link = OneTimeLink.objects.get()
    answer = client.post(f"/people/invitations/{link.pk}/again", headers=HTMX)
    second = answer.context["url"]
    assert first != second
    assert [Client().get(path(url)).status_code for url in (first, second)] == [404, 200]  # the newer replaces it
    newer = OneTimeLink.objects.exclude(pk=link.pk).get()
    assert (newer.label, newer.role) == ("Mei", "viewer")
    part = client.get("/people/?part=invitations", headers=HTMX).content.decode()
    assert part.count("Mei</b>") == 1 and f"/{newer.pk}/revoke" in part
    assert client.post(f"/people/invitations/{newer.pk}/revoke").status_code == 302
    assert Client().get(path(second)).status_code == 404
    for act in ("again", "revoke"):  # over is over
        assert client.post(f"/people/invitations/{newer.pk}/{act}").status_code == 409
    again = client.post("/people/invite", {"label": " ", "role": "root"}, headers=HTMX)
    assert again.status_code == 422 and set(again.context["invite_form"].errors) == {"label", "role"}


def test_a_used_invitation_cannot_be_taken_back_or_made_anew(
    browser: Browser, people: dict[str, User], path: Any
) -> None:
    link, url = invited(people)
    accept(Client(), path(url))
    for act in ("again", "revoke"):
        assert browser("admin").post(f"/people/invitations/{link.pk}/{act}").status_code == 409
    reset, _url = links.make_reset(User.objects.get(username="mei"), actor=people["admin"])
    assert browser("admin").post(f"/people/invitations/{reset.pk}/again").status_code == 404


@pytest.mark.parametrize("purpose", ["invite", "new-password"])
@pytest.mark.parametrize("secret", ["x", "../../login", "' OR 1=1 --", "%00", "%ff%fe", "a" * 5000, "<script>"])
def test_guesses_find_nothing(people: dict[str, User], client: Client, purpose: str, secret: str) -> None:
    invited(people)
    assert client.get(f"/{purpose}/{secret}").status_code == 404
    assert accept(client, f"/{purpose}/{secret}").status_code == 404


def test_a_link_is_good_for_its_purpose_only(people: dict[str, User], path: Any, settings: Any) -> None:
    _link, url = invited(people)
    _link, reset = links.make_reset(people["viewer"], actor=people["admin"])
    assert Client().get(path(url).replace("/invite/", "/new-password/")).status_code == 404
    assert Client().get(path(reset).replace("/new-password/", "/invite/")).status_code == 404
    assert Client().get(path(url).replace("/invite/", "/first-admin/")).status_code == 409


def test_too_old(people: dict[str, User], path: Any, browser: Browser) -> None:
    _link, url = invited(people)
    OneTimeLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert accept(Client(), path(url)).status_code == 404
    assert "too old" in browser("admin").get("/people/").content.decode()
    OneTimeLink.objects.update(expires_at=timezone.now() - timedelta(days=31))
    assert "too old" not in browser("admin").get("/people/").content.decode()


@pytest.mark.parametrize(
    ("name", "password", "again", "field"),
    [
        ("", PASSWORD, "", "name"),
        ("VIEWER-1", PASSWORD, "", "name"),  # capitals make no other person
        ("a b", PASSWORD, "", "name"),
        ("mei", "short", "", "password"),
        ("mei", PASSWORD, PASSWORD + "x", "again"),
        ("mei", "x" * 5000, "", "password"),
    ],
)
def test_a_bad_form_comes_back_and_the_link_still_works(
    people: dict[str, User], path: Any, name: str, password: str, again: str, field: str
) -> None:
    _link, url = invited(people)
    answer = accept(Client(), path(url), name, password, again)
    assert answer.status_code == 422 and field in answer.context["form"].errors
    assert User.objects.count() == 3
    assert accept(Client(), path(url)).status_code == 302


def test_csrf_is_asked_for(people: dict[str, User], path: Any) -> None:
    _link, url = invited(people)
    assert accept(Client(enforce_csrf_checks=True), path(url)).status_code == 403
    assert not User.objects.filter(username="mei").exists()


def test_who_is_signed_in_already_is_told_and_replaced(browser: Browser, people: dict[str, User], path: Any) -> None:
    _link, url = invited(people)
    client = browser("viewer")
    assert "signed in as viewer-1" in client.get(path(url)).content.decode()
    assert accept(client, path(url)).status_code == 302
    assert client.get("/account").context["user"].username == "mei"


def test_not_without_end(people: dict[str, User], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "MOST_INVITES", 2)
    for _ in range(2):
        link, _url = invited(people)
    with pytest.raises(links.TooManyInvites):
        invited(people)
    links.take_back(link, actor=people["admin"])
    invited(people)
    with pytest.raises(Invalid):
        links.invite(label="x" * 81, role="viewer", actor=people["admin"])


def at_once(count: int, act: Callable[[int], int]) -> list[int]:
    start, statuses = threading.Barrier(count), []

    def run(n: int) -> None:
        try:
            start.wait(20)
            statuses.append(act(n))
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[n]) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return sorted(statuses)


@pytest.mark.django_db(transaction=True)
def test_of_several_at_once_one_gets_the_account(people: dict[str, User], path: Any) -> None:
    _link, url = invited(people)
    assert at_once(4, lambda n: accept(Client(), path(url), f"person-{n}").status_code) == [302, 404, 404, 404]
    assert User.objects.filter(username__startswith="person").count() == 1


@pytest.mark.django_db(transaction=True)
def test_two_invitations_for_one_name_at_once(people: dict[str, User], path: Any) -> None:
    urls = [invited(people)[1] for _ in range(3)]
    assert at_once(3, lambda n: accept(Client(), path(urls[n]), "mei").status_code) == [302, 422, 422]
    assert OneTimeLink.objects.filter(used_at=None).count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_link_renewed_twice_at_once_has_one_successor(people: dict[str, User]) -> None:
    link, _url = invited(people)

    def act(n: int) -> int:
        try:
            links.invite_again(link, actor=people["admin"])
        except Conflict as error:
            return error.status
        return 200

    assert at_once(3, act) == [200, 409, 409]
    assert OneTimeLink.objects.filter(ended_at=None).count() == 1


# --- new passwords ----------------------------------------------------------------------------------------------------


def reset(client: Client, path: str, password: str = NEW, again: str = "") -> Any:
    return client.post(path, {"password": password, "again": again or password})


def test_a_new_password_by_link(browser: Browser, people: dict[str, User], path: Any, clock: Any) -> None:
    elsewhere = browser("viewer")
    for _ in range(limits.PER_NAME):  # tried until locked
        Client().post("/login", {"name": "viewer-1", "password": "wrong"})
    answer = browser("admin").post(f"/people/{people['viewer'].pk}/reset")
    url = answer.context["url"]
    assert url in answer.content.decode() and "no-store" in answer["Cache-Control"]
    assert elsewhere.get("/account").status_code == 200  # nothing is changed until the link is used
    client = Client()
    assert "viewer-1" in client.get(path(url)).content.decode()
    assert reset(client, path(url), "short").status_code == 422
    assert reset(client, path(url), NEW, NEW + "x").status_code == 422
    assert reset(client, path(url), "viewer-1!!").status_code == 422  # like the name
    assert reset(client, path(url)).status_code == 302
    assert client.get("/account").context["user"].username == "viewer-1"
    assert elsewhere.get("/account").status_code == 302
    assert reset(Client(), path(url)).status_code == 404
    assert Client().post("/login", {"name": "viewer-1", "password": PASSWORD}).status_code == 422
    assert Client().post("/login", {"name": "viewer-1", "password": NEW}).status_code == 302
    verbs = Event.objects.exclude(outcome="denied").order_by("pk").values_list("verb", "actor")
    assert list(verbs)[:3] == [("password.link_made", "admin-1"), ("password.reset", "viewer-1"), ("login", "viewer-1")]


def test_a_newer_reset_link_ends_the_older(people: dict[str, User], path: Any) -> None:
    urls = [path(links.make_reset(people["viewer"], actor=people["admin"])[1]) for _ in range(2)]
    other = path(links.make_reset(people["operator"], actor=people["admin"])[1])
    assert [Client().get(url).status_code for url in (*urls, other)] == [404, 200, 200]


def test_a_disabled_person_gets_no_new_password(browser: Browser, people: dict[str, User], path: Any) -> None:
    _link, url = links.make_reset(people["viewer"], actor=people["admin"])
    browser("admin").post(f"/people/{people['viewer'].pk}/disable")
    assert reset(Client(), path(url)).status_code == 404
    assert browser("admin").post(f"/people/{people['viewer'].pk}/reset").status_code == 409
    assert "Make a link" not in browser("admin").get(f"/people/{people['viewer'].pk}/").content.decode()


def test_a_password_that_its_person_changes_ends_the_link_for_a_new_one(people: dict[str, User], path: Any) -> None:
    _link, url = links.make_reset(people["viewer"], actor=people["admin"])
    client = Client()
    client.force_login(people["viewer"])
    form = {"current": PASSWORD, "password": NEW, "again": NEW}
    assert client.post("/account/password", {**form, "current": "wrong"}).status_code == 422
    assert Client().get(path(url)).status_code == 200
    assert client.post("/account/password", form).status_code == 302
    assert Client().get(path(url)).status_code == 404


def test_a_link_that_is_open_does_not_stand_in_the_log(people: dict[str, User], path: Any) -> None:
    """A mistyped password, a missing cookie and a failure all name the address in a line."""
    _link, url = links.invite(label="Mei", role="admin", actor=people["admin"])
    secret, written = path(url).rsplit("/", 1)[1], io.StringIO()
    handler = next(one for one in logging.getLogger().handlers if type(one) is logging.StreamHandler)
    before = handler.setStream(written)
    try:
        assert accept(Client(), path(url), again="another one").status_code == 422
        assert accept(Client(enforce_csrf_checks=True), path(url)).status_code == 403
        with patch.object(links, "accept", side_effect=LookupError(f"at {url}")):
            assert accept(Client(raise_request_exception=False), path(url)).status_code == 500
    finally:
        handler.setStream(before)
    assert "/invite/" in written.getvalue() and "LookupError" in written.getvalue()
    assert secret not in written.getvalue()
    assert Client().get(path(url)).status_code == 200


def test_ones_own_password_needs_the_present_one(browser: Browser, people: dict[str, User]) -> None:
    answer = browser("admin").post(f"/people/{people['admin'].pk}/reset")
    assert answer.status_code == 409 and not OneTimeLink.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_links_used_made_and_ended_at_once_wait_for_each_other(people: dict[str, User], path: Any) -> None:
    """Nobody locks in another order: a deadlock would be a failure of the panel."""
    second = User.objects.create_user(username="second", role="admin", password=PASSWORD)
    admin = people["admin"]
    for round_ in range(5):
        _link, url = links.make_reset(second, actor=admin)

        def act(n: int, url: str = url, round_: int = round_) -> int:
            if n == 0:
                return reset(Client(), path(url), f"{NEW} {round_}").status_code
            try:
                links.make_reset(admin if n == 1 else second, actor=second if n == 1 else admin)
            except Conflict as error:
                return error.status
            return 200

        assert set(at_once(3, act)) <= {200, 302, 404}


@pytest.mark.django_db(transaction=True)
def test_a_reset_link_used_twice_at_once_works_once(people: dict[str, User], path: Any) -> None:
    _link, url = links.make_reset(people["viewer"], actor=people["admin"])
    assert at_once(3, lambda n: reset(Client(), path(url), f"{NEW} {n}").status_code) == [302, 404, 404]
    assert Event.objects.filter(verb="password.reset").count() == 1
