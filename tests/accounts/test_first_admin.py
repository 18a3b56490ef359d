"""The first admin: one link, once, for a day, and only while there is none."""

import re
import threading
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.utils import timezone

from deployments.ticker import Ticker
from panel.accounts import services
from panel.accounts.models import OneTimeLink, User
from panel.audit.models import Event
from tests.accounts.conftest import PASSWORD

pytestmark = pytest.mark.django_db


def new_path(settings: Any) -> str:
    link = services.first_admin_link()
    assert link and link.startswith(settings.BERTH_PUBLIC_URL + "/")
    return link.removeprefix(settings.BERTH_PUBLIC_URL)


def fill(client: Client, path: str, name: str = "ada", password: str = PASSWORD, again: str | None = None) -> Any:
    return client.post(path, {"name": name, "password": password, "again": again or password})


def test_from_the_link_to_the_first_page(client: Client, settings: Any) -> None:
    path = new_path(settings)
    assert client.get(path).status_code == 200
    assert client.get(path).status_code == 200  # looking does not use it up
    assert fill(client, path)["Location"] == "/account"
    user = User.objects.get()
    assert (user.username, user.role, user.is_superuser) == ("ada", "admin", False)
    assert client.get("/account").status_code == 200
    assert services.first_admin_link() is None
    for status in (client.get(path).status_code, fill(client, path, "ben").status_code):
        assert status == 409
    assert list(Event.objects.order_by("pk").values_list("verb", "actor", "address")) == [
        ("first_admin.link_made", "system", ""),
        ("first_admin.created", "ada", "127.0.0.1"),
        ("login", "ada", "127.0.0.1"),
    ]


def test_the_secret_is_kept_nowhere(settings: Any) -> None:
    secret = new_path(settings).rpartition("/")[2]
    assert len(secret) >= 40
    assert secret not in str(list(OneTimeLink.objects.values())) + str(list(Event.objects.values()))


def test_a_newer_link_ends_the_older(client: Client, settings: Any) -> None:
    old, new = new_path(settings), new_path(settings)
    assert client.get(old).status_code == 404
    assert client.get(new).status_code == 200


def test_it_ends_after_a_day(client: Client, settings: Any) -> None:
    path = new_path(settings)
    OneTimeLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert client.get(path).status_code == 404
    assert fill(client, path).status_code == 404
    link = OneTimeLink.objects.get()
    new_path(settings)
    fresh = OneTimeLink.objects.exclude(pk=link.pk).get()
    assert timedelta(hours=23) < fresh.expires_at - timezone.now() <= timedelta(hours=24)


@pytest.mark.parametrize("secret", ["x", "../../login", "' OR 1=1 --", "%00", "%ff%fe", "a" * 5000, "<script>"])
def test_guesses_find_nothing(client: Client, settings: Any, secret: str) -> None:
    new_path(settings)
    assert client.get(f"/first-admin/{secret}").status_code == 404
    assert not User.objects.exists()


@pytest.mark.parametrize(
    ("name", "password", "again"),
    [
        ("", PASSWORD, PASSWORD),
        ("a b", PASSWORD, PASSWORD),
        ("<b>x</b>", PASSWORD, PASSWORD),
        ("x" * 151, PASSWORD, PASSWORD),
        ("ada", "short", "short"),
        ("ada", "1234567890", "1234567890"),
        ("ada", PASSWORD, PASSWORD + "x"),
        ("ada", "a\0" * 10, "a\0" * 10),
        ("ada", "x" * 5000, "x" * 5000),
    ],
)
def test_a_bad_form_comes_back_and_the_link_still_works(
    client: Client, settings: Any, name: str, password: str, again: str
) -> None:
    path = new_path(settings)
    answer = fill(client, path, name, password, again)
    assert answer.status_code == 422 and answer.context["form"].errors
    assert not User.objects.exists()
    assert fill(client, path).status_code == 302


@pytest.mark.django_db(transaction=True)
def test_of_two_at_once_one_wins(settings: Any) -> None:
    path = new_path(settings)
    start, statuses = threading.Barrier(4), []

    def run(name: str) -> None:
        try:
            client = Client()
            client.get(path)
            start.wait(20)
            statuses.append(fill(client, path, name).status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[f"person-{n}"]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(statuses) == [302, 409, 409, 409]
    assert User.objects.count() == 1
    assert Event.objects.filter(verb="first_admin.created").count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_leads_the_loop_holds_nobody_up(client: Client, settings: Any) -> None:
    ticker = Ticker()
    assert ticker._leads()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '5s'")
        assert fill(client, new_path(settings)).status_code == 302
    finally:
        ticker._let_go()
        connection.close()  # and its short patience with it


def test_when_all_admins_are_disabled_the_shell_can_make_a_link_again(people: dict[str, User]) -> None:
    assert services.first_admin_link() is None
    User.objects.filter(role="admin").update(is_active=False)
    assert services.first_admin_link()


def test_names_differ_by_more_than_capitals(people: dict[str, User]) -> None:
    with pytest.raises(CommandError, match="taken"):
        admin("ADMIN-1")


# --- the command ------------------------------------------------------------------------------------------------------


def admin(name: str, *flags: str) -> str:
    out = StringIO()
    call_command("createadmin", name, *flags, stdout=out)
    return out.getvalue()


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_ADMIN_PASSWORD", PASSWORD)


def test_createadmin() -> None:
    admin("ops")
    user = User.objects.get()
    assert user.role == "admin" and user.check_password(PASSWORD)
    event = Event.objects.get()
    assert (event.verb, event.actor, event.facts) == ("user.created", "system", {"via": "shell"})
    assert "exists already" in admin("ops", "--if-absent")
    with pytest.raises(CommandError):
        admin("ops")
    assert not re.search(PASSWORD, str(list(Event.objects.values())))


def test_createadmin_reads_the_password_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTH_ADMIN_PASSWORD")
    monkeypatch.setattr("sys.stdin", StringIO(PASSWORD + "\n"))
    admin("ops")
    assert User.objects.get().check_password(PASSWORD)
    monkeypatch.setattr("sys.stdin", StringIO(""))
    with pytest.raises(CommandError, match="No password"):
        admin("ops2")
