"""The people's pages as everyone, and what an admin does there: roles, disabling, and that an admin is always left."""

import threading
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from panel.accounts import limits, links, services, tokens
from panel.accounts import people as persons  # `people` is the fixture
from panel.accounts.actor import Actor
from panel.accounts.models import LoginAttempt, OneTimeLink, PersonSession, Role, User
from panel.accounts.signals import tokens_changed
from panel.audit.models import Event
from panel.core.errors import Denied, Invalid, NotFound
from tests.accounts.conftest import PASSWORD

pytestmark = pytest.mark.django_db
Browser = Callable[..., Client]


@pytest.fixture
def somebody(people: dict[str, User]) -> User:
    return User.objects.create_user(username="somebody", password=PASSWORD, role="operator")


# --- who may ------------------------------------------------------------------------------------------------------------

ACTS = {
    "list": ("get", "/people/", {}),
    "invite": ("post", "/people/invite", {"label": "Mei", "role": "viewer"}),
    "person": ("get", "/people/{pk}/", {}),
    "role": ("post", "/people/{pk}/role", {"role": "viewer"}),
    "disable": ("post", "/people/{pk}/disable", {}),
    "enable": ("post", "/people/{pk}/enable", {}),
    "reset": ("post", "/people/{pk}/reset", {}),
    "sessions": ("post", "/people/{pk}/sessions/end", {}),
    "revoke": ("post", "/people/{pk}/tokens/{token}/revoke", {}),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("who", ["stranger", "viewer", "operator", "disabled"])
def test_only_admins_get_in_and_nothing_changes_for_others(
    browser: Browser, people: dict[str, User], somebody: User, act: str, who: str
) -> None:
    token, plain = services.create_token(somebody, "x", actor=somebody)
    there = Client()
    there.force_login(somebody)
    client = browser("admin" if who == "disabled" else who)
    if who == "disabled":
        User.objects.filter(pk=people["admin"].pk).update(is_active=False)
    before = list(User.objects.order_by("pk").values("role", "is_active", "password"))
    method, path, values = ACTS[act]
    answer = getattr(client, method)(path.format(pk=somebody.pk, token=token.pk), values)
    assert answer.status_code == (302 if who in ("stranger", "disabled") else 403)
    assert who not in ("stranger", "disabled") or answer["Location"].startswith("/login")
    assert list(User.objects.order_by("pk").values("role", "is_active", "password")) == before
    assert not OneTimeLink.objects.exists()
    assert tokens.find_token(plain) and there.get("/account").status_code == 200
    if who != "stranger" or method == "post":
        assert Event.objects.filter(outcome="denied").exists() or who == "disabled"


@pytest.mark.parametrize("act", ACTS)
def test_an_admin_gets_in(browser: Browser, somebody: User, act: str) -> None:
    token, _plain = services.create_token(somebody, "x", actor=somebody)
    method, path, values = ACTS[act]
    answer = getattr(browser("admin"), method)(path.format(pk=somebody.pk, token=token.pk), values)
    assert answer.status_code == (302 if act in ("role", "disable", "enable", "sessions", "revoke") else 200)
    wrong = getattr(browser("admin"), method)(path.format(pk=999_999, token=token.pk), values)
    assert wrong.status_code == (404 if "{pk}" in path else 200)


def test_services_ask_for_the_right_themselves(people: dict[str, User], somebody: User) -> None:
    acts: list[Callable[[Any], Any]] = [
        lambda who: links.invite(label="x", role="viewer", actor=who),
        lambda who: links.make_reset(somebody, actor=who),
        lambda who: persons.change_role(somebody, "admin", actor=who),
        lambda who: persons.disable(somebody, actor=who),
        lambda who: persons.enable(somebody, actor=who),
        lambda who: persons.unlock(actor=who),
    ]
    for act in acts:
        for who in (people["viewer"], people["operator"]):
            with pytest.raises(Denied):
                act(who)
    assert not Event.objects.filter(outcome="done").exists()


# --- the list -----------------------------------------------------------------------------------------------------------


def test_found_by_name_role_and_state(browser: Browser, people: dict[str, User], somebody: User) -> None:
    User.objects.filter(pk=somebody.pk).update(is_active=False, last_seen_at=timezone.now())
    links.invite(label="<b>Mei</b>", role="operator", actor=people["admin"])
    page = browser("admin").get("/people/").content.decode()
    assert all(name in page for name in ("viewer-1", "operator-1", "admin-1", "somebody"))
    assert "&lt;b&gt;Mei&lt;/b&gt;" in page and "<b>Mei" not in page
    part = {"HX-Request": "true"}
    for query, names in {
        "q=SOME": {"somebody"},
        "show=disabled": {"somebody"},
        "show=operator": {"operator-1"},
        "q=%25": set(),
        "show=nonsense": {"viewer-1", "operator-1", "admin-1", "somebody"},
    }.items():
        text = browser("admin").get(f"/people/?part=rows&{query}", headers=part).content.decode()
        found = {name for name in ("viewer-1", "operator-1", "admin-1", "somebody") if f'/">{name}</a>' in text}
        assert found == names, query


def test_a_thousand_people_and_many_invitations_take_the_same_queries(
    browser: Browser, people: dict[str, User]
) -> None:
    admin = people["admin"]
    links.invite(label="one", role="viewer", actor=admin)
    client = browser("admin")
    client.get("/people/")
    with CaptureQueriesContext(connection) as few:
        client.get("/people/")
    User.objects.bulk_create(User(username=f"p{n:04}", password="!") for n in range(1000))
    now = timezone.now()
    OneTimeLink.objects.bulk_create(
        OneTimeLink(purpose="invite", secret_hash=str(n), label=f"i{n}", role="viewer", made_by=admin,
                    expires_at=now + timedelta(hours=1)) for n in range(150)
    )  # fmt: skip
    with CaptureQueriesContext(connection) as many:
        page = client.get("/people/").content.decode()
    assert len(many) == len(few)
    assert page.count('<span class="who wrap">') == 50 and "page=2" in page and page.count("i149") >= 1
    last = client.get("/people/?page=21").content.decode()
    assert 'rel="next"' not in last and "viewer-1" in last


def test_one_person_with_many_sessions_and_tokens_takes_the_same_queries(browser: Browser, somebody: User) -> None:
    client = browser("admin")
    url = f"/people/{somebody.pk}/"
    client.get(url)
    services.create_token(somebody, "0", actor=somebody)
    Client().force_login(somebody)
    with CaptureQueriesContext(connection) as few:
        client.get(url)
    for n in range(8):
        services.create_token(somebody, str(n), actor=somebody)
        Client().force_login(somebody)
    with CaptureQueriesContext(connection) as many:
        client.get(url)
    assert len(many) == len(few)


# --- roles --------------------------------------------------------------------------------------------------------------


def test_a_role_holds_at_the_next_request(browser: Browser, people: dict[str, User], somebody: User) -> None:
    there = Client(headers={"Sec-Fetch-Mode": "navigate"})
    there.force_login(somebody)
    assert there.get("/people/").status_code == 403
    assert persons.change_role(somebody, "admin", actor=people["admin"]) is True
    assert persons.change_role(somebody, "admin", actor=people["admin"]) is False
    assert there.get("/people/").status_code == 200
    event = Event.objects.get(verb="user.role_changed")
    assert (event.target, event.before, event.after) == ("somebody", {"role": "operator"}, {"role": "admin"})
    with pytest.raises(Invalid):
        persons.change_role(somebody, "root", actor=people["admin"])


@pytest.mark.parametrize("act", ["role", "disable"])
def test_nobody_acts_on_the_own_role(browser: Browser, people: dict[str, User], act: str) -> None:
    User.objects.create_user(username="second", role="admin")
    admin = people["admin"]
    answer = browser("admin").post(f"/people/{admin.pk}/{act}", {"role": "viewer"})
    assert answer.status_code == 409 and "Another admin" in answer.content.decode()
    admin.refresh_from_db()
    assert admin.role == "admin" and admin.is_active
    page = browser("admin").get(f"/people/{admin.pk}/").content.decode()
    assert "This is you" in page and f"/people/{admin.pk}/role" not in page


@pytest.mark.parametrize("shell", [True, False])
def test_the_last_admin_stays(people: dict[str, User], shell: bool) -> None:
    """The shell may everything but this; so may a page that was opened while there were two."""
    admin = people["admin"]
    other = User.objects.create_user(username="second", role="admin")
    actor = Actor.shell() if shell else Actor.from_user(other)
    if shell:
        User.objects.filter(pk=other.pk).update(is_active=False)
        wanted: Any = persons.LastAdmin
    else:
        User.objects.filter(pk=other.pk).update(role="viewer")
        wanted = Denied
    for act in (lambda: persons.disable(admin, actor=actor), lambda: persons.change_role(admin, "viewer", actor=actor)):  # fmt: skip
        with pytest.raises(wanted):
            act()
    admin.refresh_from_db()
    assert admin.role == "admin" and admin.is_active


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("act", ["change_role", "disable"])
def test_admins_who_demote_each_other_at_once_leave_one(act: str) -> None:
    admins = [User.objects.create_user(username=f"a{n}", role="admin") for n in range(4)]
    start, errors = threading.Barrier(4), []

    def run(n: int) -> None:
        me, other = admins[n], admins[(n + 1) % 4]
        try:
            start.wait(20)
            more = ("viewer",) if act == "change_role" else ()
            getattr(persons, act)(other, *more, actor=Actor.from_user(me))
        except (Denied, persons.LastAdmin) as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=[n]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    left = User.objects.filter(role="admin", is_active=True).count()
    assert left >= 1 and left == 4 - (4 - len(errors))
    assert errors, "who was demoted may not demote"


# --- disabled -----------------------------------------------------------------------------------------------------------


def test_disabled_and_enabled_again(
    people: dict[str, User], somebody: User, django_capture_on_commit_callbacks: Any
) -> None:
    admin = people["admin"]
    there = Client(headers={"Sec-Fetch-Mode": "navigate"})
    there.force_login(somebody)
    _token, plain = services.create_token(somebody, "x", actor=somebody)
    heard = []

    def listen(**kwargs: Any) -> None:
        heard.append(1)

    tokens_changed.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            assert persons.disable(somebody, actor=admin) is True
        assert persons.disable(somebody, actor=admin) is False
    finally:
        tokens_changed.disconnect(listen)
    assert heard == [1]  # the door drops the token too
    assert there.get("/account").status_code == 302 and not PersonSession.objects.filter(user=somebody).exists()
    assert tokens.find_token(plain) is None
    body = {"name": "somebody", "password": PASSWORD}
    assert Client().post("/login", body).status_code == 422
    assert persons.enable(somebody, actor=admin) is True
    assert persons.enable(somebody, actor=admin) is False
    assert tokens.find_token(plain) and Client().post("/login", body).status_code == 302
    assert [*Event.objects.filter(verb__startswith="user.").order_by("pk").values_list("verb", "facts__sessions")] == [
        ("user.disabled", 1),
        ("user.enabled", None),
    ]


@pytest.mark.parametrize("change", [{"is_active": False}, {"role": "operator"}])
def test_who_was_an_admin_when_the_request_came_does_nothing_more(
    people: dict[str, User], somebody: User, change: dict[str, Any]
) -> None:
    former = User.objects.create_user(username="former", role="admin")
    link, _url = links.invite(label="x", role="admin", actor=former)
    User.objects.filter(pk=former.pk).update(**change)
    actor = Actor.from_user(former)  # as it was read before
    acts: list[Callable[[], Any]] = [
        lambda: links.invite(label="myself", role="admin", actor=actor),
        lambda: links.invite_again(link, actor=actor),
        lambda: links.make_reset(somebody, actor=actor),
        lambda: persons.change_role(somebody, "admin", actor=actor),
        lambda: persons.disable(somebody, actor=actor),
    ]
    for act in acts:
        with pytest.raises(Denied):
            act()
    assert OneTimeLink.objects.get().ended_at is None


@pytest.mark.parametrize("end", ["disable", "demote"])
def test_links_of_a_former_admin_are_no_way_back(
    people: dict[str, User], somebody: User, end: str, settings: Any
) -> None:
    former = User.objects.create_user(username="former", role="admin")
    _link, invitation = links.invite(label="myself", role="admin", actor=former)
    _link, reset = links.make_reset(somebody, actor=former)
    if end == "disable":
        persons.disable(former, actor=people["admin"])
    else:
        persons.change_role(former, "operator", actor=people["admin"])
    for url in (invitation, reset):
        assert Client().get(url.removeprefix(settings.BERTH_PUBLIC_URL)).status_code == 404


# --- the shell ----------------------------------------------------------------------------------------------------------


def run(*args: str) -> str:
    out = StringIO()
    call_command("people", *args, stdout=out)
    return out.getvalue()


def test_a_sole_admin_who_is_locked_out_is_told_how_and_gets_in(client: Client, people: dict[str, User]) -> None:
    for _ in range(limits.PER_NAME):
        client.post("/login", {"name": "admin-1", "password": "wrong"})
    page = client.post("/login", {"name": "admin-1", "password": PASSWORD})
    assert page.status_code == 429 and "Retry-After" in page
    assert "manage.py people unlock" in page.content.decode() and "minute" in page.content.decode()
    assert "Everyone may" in run("unlock")
    assert not LoginAttempt.objects.exists()
    assert client.post("/login", {"name": "admin-1", "password": PASSWORD}).status_code == 302
    assert Event.objects.get(verb="login.unlocked").facts == {"via": "shell"}


def test_list_reset_and_enable_from_the_shell(client: Client, people: dict[str, User], settings: Any) -> None:
    User.objects.filter(username="admin-1").update(is_active=False)
    assert "disabled" in run("list") and '"name": "admin-1"' in run("list", "--json")
    with pytest.raises(CommandError, match="disabled"):
        run("reset", "admin-1")
    assert "can sign in again" in run("enable", "admin-1") and "was not" in run("enable", "ADMIN-1")
    url = run("reset", "admin-1").strip()
    assert url.startswith(settings.BERTH_PUBLIC_URL + "/new-password/")
    new = {"password": "another light at ten", "again": "another light at ten"}
    assert client.post(url.removeprefix(settings.BERTH_PUBLIC_URL), new).status_code == 302
    assert client.get("/people/").status_code == 200
    with pytest.raises(CommandError, match="nobody"):
        run("reset", "nobody")


def test_nobody_is_found_twice_and_a_vanished_row_is_no_failure(people: dict[str, User], somebody: User) -> None:
    ghost = User.objects.get(pk=somebody.pk)
    User.objects.filter(pk=somebody.pk).delete()
    with pytest.raises(NotFound):
        persons.disable(ghost, actor=people["admin"])
    assert set(Role.values) == {user.role for user in persons.found()}
