"""Signing in and out: who gets in, what a wrong try tells, how often one may try, what a session outlives."""

import threading
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.auth.hashers import Argon2PasswordHasher
from django.test import Client

from panel.accounts import limits
from panel.accounts.models import LoginAttempt, User
from panel.audit.models import Event
from tests.accounts.conftest import PASSWORD

pytestmark = pytest.mark.django_db


def try_in(client: Client, name: str, password: str, *, address: str = "192.0.2.1", **more: str) -> Any:
    return client.post("/login", {"name": name, "password": password, **more}, REMOTE_ADDR=address)


def test_in_and_out(people: dict[str, User]) -> None:
    client = Client()
    client.get("/login")
    before = client.session.session_key
    answer = try_in(client, "viewer-1", PASSWORD)
    assert (answer.status_code, answer["Location"]) == (302, "/account")
    assert client.session.session_key != before
    assert client.get("/account").status_code == 200
    assert client.get("/logout").status_code == 405
    assert client.post("/logout").status_code == 302
    assert client.get("/account", headers={"Sec-Fetch-Mode": "navigate"})["Location"] == "/login?next=%2Faccount"
    told = list(Event.objects.order_by("pk").values_list("verb", "actor", "address", "outcome"))
    assert told == [("login", "viewer-1", "192.0.2.1", "done"), ("logout", "viewer-1", "127.0.0.1", "done")]


def test_a_planted_session_is_worth_nothing(people: dict[str, User]) -> None:
    thief = Client()
    thief.get("/login")
    session = thief.session
    session["x"] = 1
    session.save()
    victim = Client()
    victim.cookies["berth_session"] = planted = session.session_key
    assert try_in(victim, "admin-1", PASSWORD).status_code == 302
    assert victim.cookies["berth_session"].value != planted
    thief.cookies["berth_session"] = planted
    assert thief.get("/account", headers={"Sec-Fetch-Mode": "navigate"}).status_code == 302


def test_a_wrong_try_never_tells_which_part_was_wrong(people: dict[str, User], client: Client) -> None:
    User.objects.filter(username="operator-1").update(is_active=False)
    pages = []
    for name in ("viewer-1", "nobody-here", "operator-1"):
        password = PASSWORD if name == "operator-1" else "wrong wrong wrong"
        answer = try_in(client, name, password)
        assert answer.status_code == 422
        pages.append(answer.content.decode().replace(name, "NAME").partition("csrfmiddlewaretoken")[0])
    assert len({page.partition('role="alert"')[2] for page in pages}) == 1
    assert "Name and password do not match." in pages[0]


def test_an_unknown_name_costs_one_hash_like_a_known_one(
    people: dict[str, User], client: Client, settings: Any
) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.Argon2PasswordHasher"]
    user = people["viewer"]
    user.set_password(PASSWORD)
    user.save()
    hashes = []
    encode, verify = Argon2PasswordHasher.encode, Argon2PasswordHasher.verify
    with (
        patch.object(Argon2PasswordHasher, "encode", lambda s, *a: hashes.append("e") or encode(s, *a)),
        patch.object(Argon2PasswordHasher, "verify", lambda s, *a: hashes.append("v") or verify(s, *a)),
    ):
        try_in(client, "viewer-1", "wrong wrong wrong")
        known = len(hashes)
        try_in(client, "nobody-here", "wrong wrong wrong")
    assert known == 1 and len(hashes) == 2


def test_a_failed_try_is_recorded_without_what_was_typed(people: dict[str, User], client: Client) -> None:
    try_in(client, "my secret password", "x")
    try_in(client, "viewer-1", "another secret")
    told = str(list(Event.objects.values()))
    assert "secret" not in str(list(LoginAttempt.objects.values()))
    assert "secret" not in told and "viewer-1" not in told.replace("'target': 'viewer-1'", "")
    assert set(Event.objects.values_list("verb", "outcome", "actor")) == {("login.failed", "denied", "")}


# --- how often --------------------------------------------------------------------------------------------------------


def test_a_name_may_be_tried_ten_times_in_a_quarter_of_an_hour(
    people: dict[str, User], client: Client, clock: Any
) -> None:
    for n in range(limits.PER_NAME):
        assert try_in(client, "Admin-1" if n % 2 else "admin-1", "wrong", address=f"192.0.2.{n}").status_code == 422
        clock.pass_(seconds=20)
    answer = try_in(client, "admin-1", PASSWORD, address="198.51.100.1")  # right, but too late, and from elsewhere
    assert answer.status_code == 429
    assert 0 < int(answer["Retry-After"]) <= 15 * 60
    assert "Try again in 12 minutes." in answer.content.decode()
    assert try_in(client, "viewer-1", PASSWORD, address="198.51.100.1").status_code == 302  # others are not concerned
    client.post("/logout")
    clock.pass_(seconds=int(answer["Retry-After"]))
    assert try_in(client, "admin-1", PASSWORD, address="198.51.100.1").status_code == 302
    assert Event.objects.filter(verb="login.locked", outcome="denied").exists()


def test_other_letters_for_the_same_name_are_no_further_tries(
    people: dict[str, User], client: Client, clock: Any
) -> None:
    """A sign-in takes "ａ" for "a", so the limit must as well."""
    for n in range(limits.PER_NAME):
        assert try_in(client, "admin-1", "wrong", address=f"192.0.2.{n}").status_code == 422
    for n, name in enumerate(["ａdmin-1", "admin-１", "ⓐdmin-1", "𝐚𝐝𝐦𝐢𝐧-1", "ADMIN-1"]):
        assert try_in(client, name, PASSWORD, address=f"198.51.100.{n}").status_code == 429, name


def test_an_address_may_try_thirty_names(people: dict[str, User], client: Client, clock: Any) -> None:
    for n in range(limits.PER_ADDRESS):
        assert try_in(client, f"name-{n}", "wrong", address=f"2001:db8::{n:x}").status_code == 422
    assert try_in(client, "admin-1", PASSWORD, address="2001:db8::ffff").status_code == 429
    assert try_in(client, "admin-1", PASSWORD, address="2001:db8:0:1::1").status_code == 302
    client.post("/logout")
    clock.pass_(minutes=16)
    assert try_in(client, "viewer-1", PASSWORD, address="2001:db8::1").status_code == 302


def test_tries_while_locked_do_not_make_it_longer(people: dict[str, User], client: Client, clock: Any) -> None:
    for _ in range(limits.PER_NAME):
        try_in(client, "admin-1", "wrong")
    for _ in range(14):
        clock.pass_(minutes=1)
        assert try_in(client, "admin-1", "wrong").status_code == 429
    clock.pass_(minutes=1)
    assert try_in(client, "admin-1", PASSWORD).status_code == 302


def test_ones_own_account_does_not_clear_the_way_to_others(people: dict[str, User], client: Client, clock: Any) -> None:
    statuses = []
    for n in range(40):
        statuses.append(try_in(client, f"name-{n}", "wrong").status_code)
        try_in(client, "viewer-1", PASSWORD)
        client.post("/logout")
    assert 429 in statuses[: limits.PER_ADDRESS + 2]


def test_what_strangers_leave_behind_is_swept(people: dict[str, User], client: Client, clock: Any) -> None:
    for hour in range(4):
        for n in range(8):
            try_in(client, f"{hour}-{n}-" + "x" * 140, "wrong", address=f"192.0.2.{hour}")
        clock.pass_(hours=2)
    assert LoginAttempt.objects.count() <= 9


@pytest.mark.django_db(transaction=True)
def test_a_burst_gains_nothing(people: dict[str, User]) -> None:
    from django.db import connection

    statuses: list[int] = []

    def burst() -> None:
        try:
            for _ in range(5):
                statuses.append(try_in(Client(), "admin-1", "wrong").status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=burst) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(statuses) == 30
    assert statuses.count(422) <= 2 * limits.PER_NAME  # twice: the minute may turn, never more in one window
    assert statuses.count(422) <= limits.PER_NAME


# --- where to, and what is typed ----------------------------------------------------------------------------------------

ELSEWHERE = [
    "https://evil.example/", "//evil.example", "/\\evil.example", "\\\\evil.example", "javascript:alert(1)",
    "http:evil.example", "///evil.example", "/\t/evil.example", "evil.example", "\n//evil.example", "http://testserver/x",
    "/a\nX: y",
]  # fmt: skip


@pytest.mark.parametrize("target", ELSEWHERE)
def test_sign_in_leads_to_no_other_site(people: dict[str, User], client: Client, target: str) -> None:
    assert try_in(client, "viewer-1", PASSWORD, next=target)["Location"] == "/account"
    assert client.get("/login", {"next": target})["Location"] == "/account"


def test_sign_in_leads_back(people: dict[str, User], client: Client) -> None:
    page = client.get("/login", {"next": "/activity?q=%3Cb%3E"})
    assert 'name="next" value="/activity?q=%3Cb%3E"' in page.content.decode()
    assert try_in(client, "viewer-1", PASSWORD, next="/activity?q=a")["Location"] == "/activity?q=a"


@pytest.mark.parametrize(
    "name",
    ["' OR 1=1 --", "<script>alert(1)</script>", "a\0b", "\ud800", "../../etc/passwd", "$(id)", "%s%n", "名" * 150],
)
def test_strange_names_are_only_wrong(people: dict[str, User], client: Client, name: str) -> None:
    body = {"name": name.encode("utf-8", "replace").decode(), "password": name.encode("utf-8", "replace").decode()}
    answer = client.post("/login", body)
    assert answer.status_code == 422
    assert "<script>alert" not in answer.content.decode()


def test_csrf_is_on(people: dict[str, User]) -> None:
    client = Client(enforce_csrf_checks=True)
    assert try_in(client, "viewer-1", PASSWORD).status_code == 403
    token = client.get("/login").context["csrf_token"]
    assert try_in(client, "viewer-1", PASSWORD, csrfmiddlewaretoken=str(token)).status_code == 302
    for url in ("/logout", "/account/tokens", "/account/password", "/account/tokens/1/revoke"):
        assert client.post(url).status_code == 403, url
    assert client.get("/account").status_code == 200


# --- passwords --------------------------------------------------------------------------------------------------------

NEW = "another light at ten"


def test_a_new_password_ends_all_other_sessions(people: dict[str, User]) -> None:
    here, there = Client(), Client()
    for client in (here, there):
        try_in(client, "viewer-1", PASSWORD)
    before = here.session.session_key
    body = {"current": PASSWORD, "password": NEW, "again": NEW}
    assert here.post("/account/password", body).status_code == 302
    assert here.get("/account").status_code == 200
    assert here.session.session_key != before
    assert there.get("/account", headers={"Sec-Fetch-Mode": "navigate"}).status_code == 302
    assert Event.objects.get(verb="password.changed").target == "viewer-1"
    assert try_in(Client(), "viewer-1", PASSWORD).status_code == 422
    assert try_in(Client(), "viewer-1", NEW).status_code == 302


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"current": "wrong", "password": NEW, "again": NEW}, "current"),
        ({"current": PASSWORD, "password": NEW, "again": NEW + "x"}, "again"),
        ({"current": PASSWORD, "password": "short", "again": "short"}, "password"),
        ({"current": PASSWORD, "password": "password123", "again": "password123"}, "password"),
        ({"current": PASSWORD, "password": "viewer-1!!", "again": "viewer-1!!"}, "password"),
        ({}, "current"),
    ],
)
def test_a_bad_change_comes_back(people: dict[str, User], client: Client, body: dict[str, str], field: str) -> None:
    client.force_login(people["viewer"])
    answer = client.post("/account/password", body)
    assert answer.status_code == 422
    assert field in answer.context["password_form"].errors
    assert 'aria-invalid="true"' in answer.content.decode()
    assert User.objects.get(username="viewer-1").check_password(PASSWORD)


def test_guessing_the_present_password_is_limited_too(people: dict[str, User], client: Client, clock: Any) -> None:
    client.force_login(people["viewer"])
    body = {"current": "wrong", "password": NEW, "again": NEW}
    statuses = [client.post("/account/password", body).status_code for _ in range(limits.PER_NAME + 1)]
    assert statuses == [422] * limits.PER_NAME + [429]


def test_a_disabled_person_is_out_at_once(people: dict[str, User]) -> None:
    client = Client()
    try_in(client, "operator-1", PASSWORD)
    assert client.get("/account").status_code == 200
    User.objects.filter(username="operator-1").update(is_active=False)
    assert client.get("/account", headers={"Sec-Fetch-Mode": "navigate"}).status_code == 302
