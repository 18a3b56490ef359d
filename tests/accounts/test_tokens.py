"""Tokens: shown once, kept as a hash, one's own only, ended for good."""

import json
import re
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from panel.accounts import services, tokens
from panel.accounts.actor import Actor
from panel.accounts.models import ApiToken, User
from panel.accounts.services import create_token
from panel.accounts.signals import tokens_changed
from panel.audit.models import Event
from panel.core.errors import Denied, Invalid
from tests.deployments import builders

pytestmark = pytest.mark.django_db
Browser = Callable[..., Client]
FORM = re.compile(r"berth_[A-Za-z0-9_-]{40}")
HTMX = {"HX-Request": "true"}
JSON = {"Accept": "application/json"}


def test_made_and_kept_as_a_hash(people: dict[str, User]) -> None:
    user = people["viewer"]
    token, plain = services.create_token(user, "nightly", actor=user, days=30)
    assert FORM.fullmatch(plain) and plain.startswith(token.prefix) and len(token.prefix) == 12
    assert token.token_hash == tokens.hash_of(plain) and token.scope == "door"
    assert timedelta(days=29) < token.expires_at - timezone.now() <= timedelta(days=30)
    everything = str(list(ApiToken.objects.values())) + str(list(Event.objects.values()))
    assert plain not in everything and plain[12:] not in everything
    assert Event.objects.get().verb == "token.created"


def test_found_while_it_works(people: dict[str, User]) -> None:
    user = people["viewer"]
    token, plain = services.create_token(user, "x", actor=user, days=1)
    found = tokens.find_token(plain)
    assert found == token and ApiToken.objects.get().last_used_at
    for wrong in ("", "berth_", plain[:-1], plain + "x", plain.upper(), "berth_" + "\0" * 40, "berth_\ud800"):
        assert tokens.find_token(wrong) is None
    User.objects.filter(pk=user.pk).update(is_active=False)
    assert tokens.find_token(plain) is None
    User.objects.filter(pk=user.pk).update(is_active=True)
    ApiToken.objects.update(expires_at=timezone.now())
    assert tokens.find_token(plain) is None
    ApiToken.objects.update(expires_at=None)
    assert services.revoke_token(token, actor=user) is True
    assert services.revoke_token(token, actor=user) is False
    assert tokens.find_token(plain) is None
    assert Event.objects.filter(verb="token.revoked").count() == 1


@pytest.mark.parametrize(
    ("name", "more", "field"),
    [
        ("", {}, "name"), (" \n", {}, "name"), ("x" * 81, {}, "name"), ("x", {"days": 0}, "days"),
        ("x", {"days": -5}, "days"), ("x", {"days": 99999}, "days"), ("x", {"scope": "root"}, "scope"),
    ],
)  # fmt: skip
def test_impossible_tokens(people: dict[str, User], name: str, more: dict[str, Any], field: str) -> None:
    with pytest.raises(Invalid) as caught:
        services.create_token(people["viewer"], name, actor=people["viewer"], **more)
    assert list(caught.value.fields) == [field]


def test_a_token_makes_none_that_outlives_it(people: dict[str, User]) -> None:
    ada = people["admin"]
    short, _text = create_token(ada, "a day", actor=ada, scope="api:write", days=1)
    by_it = Actor.from_token(short)
    for days in (None, 2):
        with pytest.raises(Invalid) as refused:
            create_token(ada, "longer", actor=by_it, scope="api:write", days=days)
        assert "days" in refused.value.fields
    endless, _text = create_token(ada, "endless", actor=ada, scope="api:write")
    assert create_token(ada, "endless too", actor=Actor.from_token(endless))[0].expires_at is None
    week, _text = create_token(ada, "a week", actor=ada, scope="api:write", days=7)
    assert create_token(ada, "a day too", actor=Actor.from_token(week), days=1)[0].expires_at < week.expires_at


def test_for_others_only_an_admin_may(people: dict[str, User]) -> None:
    viewer, operator, admin = people["viewer"], people["operator"], people["admin"]
    token, _plain = services.create_token(viewer, "x", actor=admin)
    for act in (
        lambda: services.create_token(viewer, "x", actor=operator),
        lambda: services.revoke_token(token, actor=operator),
    ):
        with pytest.raises(Denied):
            act()
    assert ApiToken.objects.filter(revoked_at=None).count() == 1
    assert Event.objects.get(outcome="denied").verb == "tokens.manage"


def test_not_without_end(people: dict[str, User], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MOST", 2)
    user = people["viewer"]
    first, _plain = services.create_token(user, "1", actor=user)
    services.create_token(user, "2", actor=user)
    with pytest.raises(tokens.TooManyTokens):
        services.create_token(user, "3", actor=user)
    services.revoke_token(first, actor=user)
    services.create_token(user, "3", actor=user)


def test_the_rooms_above_hear_of_it(people: dict[str, User], django_capture_on_commit_callbacks: Any) -> None:
    heard = []

    def listen(**kwargs: Any) -> None:
        heard.append(1)
        raise RuntimeError("a receiver that fails harms nobody")

    tokens_changed.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            token, _plain = services.create_token(people["viewer"], "x", actor=people["viewer"])
        with django_capture_on_commit_callbacks(execute=True):
            services.revoke_token(token, actor=people["viewer"])
    finally:
        tokens_changed.disconnect(listen)
    assert heard == [1, 1]


# --- through the browser ------------------------------------------------------------------------------------------------


def test_shown_once_on_the_page(browser: Browser) -> None:
    client = browser("viewer")
    answer = client.post("/account/tokens", {"name": "<b>nightly</b>", "days": "30"})
    text = answer.content.decode()
    (plain,) = set(FORM.findall(text))
    assert "&lt;b&gt;nightly&lt;/b&gt;" in text and "<b>nightly" not in text
    assert "no-store" in answer["Cache-Control"]
    later = client.get("/account").content.decode()
    assert plain not in later and plain[:12] in later


def test_shown_once_in_place(browser: Browser) -> None:
    answer = browser("operator").post("/account/tokens", {"name": "from the ready page"}, headers=HTMX)
    text = answer.content.decode()
    assert answer.status_code == 200 and len(set(FORM.findall(text))) == 1
    assert "<html" not in text and "data-copy" in text
    assert answer["HX-Trigger"] == "tokens-changed"
    assert timedelta(days=89) < ApiToken.objects.get().expires_at - timezone.now() <= timedelta(days=90)
    again = browser("operator").post("/account/tokens", {"name": ""}, headers=HTMX)
    assert again.status_code == 422 and 'id="token-form"' in again.content.decode()


def test_a_thousand_deployments_come_when_someone_wants_to_choose(browser: Browser) -> None:
    client, tick = browser("operator"), 'name="deployments" value='
    assert "token-reach" not in client.get("/account").content.decode()
    row = builders.make_deployment(builders.make_copy(builders.make_host()))
    text = client.get("/account").content.decode()
    assert "part=reach" in text and tick not in text
    part = client.get("/account?part=reach", headers=HTMX).content.decode()
    assert f'{tick}"{row.pk}"' in part and "<html" not in part
    whole = client.get("/account?reach=1").content.decode()  # the way without a script
    assert f'{tick}"{row.pk}"' in whole and 'id="token-reach" open' in whole
    again = client.post("/account/tokens", {"name": "", "deployments": str(row.pk)}).content.decode()
    assert f'{tick}"{row.pk}" id="id_deployments_0" checked' in again and 'id="token-reach" open' in again


def test_as_json(browser: Browser) -> None:
    client = browser("viewer")
    answer = client.post("/account/tokens", json.dumps({"name": "x", "days": None}), "application/json", headers=JSON)
    made = answer.json()
    assert answer.status_code == 201 and made["expires_at"] is None
    assert tokens.find_token(made["token"]).pk == made["id"]
    for body in (
        "",
        "[]",
        '"x"',
        "{",
        "{}",
        '{"name": ""}',
        '{"name": "x", "days": "soon"}',
        '{"name": {"a": 1}, "days": []}',
    ):
        answer = client.post("/account/tokens", body, "application/json", headers=JSON)
        assert answer.status_code == 422 or body.startswith('{"name": {"a"'), body
        assert "html" not in answer["Content-Type"]


def test_revoked_by_its_owner_only(browser: Browser, people: dict[str, User]) -> None:
    token, plain = services.create_token(people["viewer"], "x", actor=people["viewer"])
    url = f"/account/tokens/{token.pk}/revoke"
    for role in ("operator", "admin"):
        assert browser(role).post(url).status_code == 404
    assert browser("stranger").post(url)["Location"] == "/login"
    assert browser("viewer").get(url).status_code == 405
    assert tokens.find_token(plain)
    answer = browser("viewer").post(url, headers=HTMX)
    assert answer.status_code == 200 and "revoked" in answer.content.decode() and "<html" not in answer.content.decode()
    assert tokens.find_token(plain) is None
    assert browser("viewer").post(url).status_code == 302  # twice is no harm
    assert browser("viewer").post("/account/tokens/99999999999999999999/revoke").status_code == 404


def test_the_page_asks_as_often_for_many_tokens(
    browser: Browser, people: dict[str, User], django_assert_num_queries: Any
) -> None:
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    client = browser("viewer")
    services.create_token(people["viewer"], "0", actor=people["viewer"])
    client.get("/account")
    with CaptureQueriesContext(
        connection,
    ) as few:
        client.get("/account")
    for n in range(10):
        services.create_token(people["viewer"], str(n), actor=people["viewer"])
    with CaptureQueriesContext(connection) as many:
        client.get("/account")
    assert len(many) == len(few)


# --- the command ------------------------------------------------------------------------------------------------------


def run(*args: str) -> str:
    out = StringIO()
    call_command("token", *args, stdout=out)
    return out.getvalue()


def test_from_the_shell(people: dict[str, User]) -> None:
    plain = run("create", "viewer-1", "nightly", "--days", "7").strip()
    token = tokens.find_token(plain)
    assert token and token.user == people["viewer"]
    listed = json.loads(run("list", "viewer-1", "--json"))
    assert [(row["id"], row["name"], row["user"]) for row in listed] == [(token.pk, "nightly", "viewer-1")]
    assert plain not in run("list") and token.prefix in run("list")
    run("revoke", str(token.pk))
    assert tokens.find_token(plain) is None
    assert set(Event.objects.values_list("actor", flat=True)) == {"system"}
    for wrong in (("create", "nobody", "x"), ("revoke", "999999"), ("create", "viewer-1", "")):
        with pytest.raises(CommandError):
            run(*wrong)


# --- what a token may, and what it reaches ------------------------------------------------------------------------------


@pytest.fixture
def two(db: None) -> tuple[Any, Any]:
    copy = builders.make_copy(builders.make_host())
    return builders.make_deployment(copy, name="chat"), builders.make_deployment(copy, name="search")


@pytest.mark.parametrize(
    ("scope", "example"),
    [("door", "/v1/models"), ("api:read", "/api/v1/deployments"), ("api:write", "curl -X POST")],
)
def test_a_scope_is_chosen_and_the_example_fits(browser: Browser, scope: str, example: str) -> None:
    answer = browser("viewer").post("/account/tokens", {"name": "ci", "days": "", "scope": scope, "deployments": []})
    token = ApiToken.objects.get()
    assert (token.scope, token.deployment_ids, token.expires_at) == (scope, None, None)
    text = answer.context["example"]
    assert example in text and "$BERTH_API_KEY" in text and "berth_" not in text.replace("berth_api", "")
    assert token.get_scope_display() in browser("viewer").get("/account").content.decode()


def test_ticks_limit_it_to_some_deployments(browser: Browser, two: tuple[Any, Any]) -> None:
    chat, search = two
    client = browser("operator")
    page = client.get("/account?part=reach", headers=HTMX).content.decode()
    assert all(f'value="{row.pk}"' in page for row in two)
    answer = client.post(
        "/account/tokens", {"name": "ci", "scope": "api:write", "deployments": [str(chat.pk)]}, headers=HTMX
    )
    token = ApiToken.objects.get()
    assert token.deployment_ids == [chat.pk]
    assert (
        "for chat alone" in answer.content.decode() and f"/deployments/{chat.pk}/restart" in answer.context["example"]
    )
    assert "only chat" in client.get("/account").content.decode()
    assert Event.objects.get().facts["deployments"] == ["chat"]
    type(chat).objects.filter(pk=chat.pk).update(deleted_at=timezone.now())
    assert "only one that was deleted" in client.get("/account").content.decode()
    again = client.post("/account/tokens", {"name": "x", "scope": "door", "deployments": [str(chat.pk)]}, headers=HTMX)
    assert again.status_code == 422 and search.name in again.content.decode()


@pytest.mark.parametrize(
    ("sent", "status"),
    [([], 422), ([999_999], 422), (["x"], 422), ([{"a": 1}], 422), ("chat", 422), (None, 201), ("both", 201)],
)
def test_limits_as_json(browser: Browser, two: tuple[Any, Any], sent: Any, status: int) -> None:
    ids = [row.pk for row in two]
    body = {"name": "ci", "deployments": ids if sent == "both" else sent}
    answer = browser("viewer").post("/account/tokens", json.dumps(body), "application/json", headers=JSON)
    assert answer.status_code == status
    if status == 201:
        assert answer.json()["deployments"] == (ids if sent else None)
    assert ApiToken.objects.count() == (status == 201)


@pytest.mark.parametrize("ids", [[], [999_999], list(range(1, 300))])
def test_the_service_refuses_impossible_limits(people: dict[str, User], two: tuple[Any, Any], ids: list[int]) -> None:
    with pytest.raises(Invalid) as caught:
        services.create_token(people["viewer"], "x", actor=people["viewer"], deployment_ids=ids)
    assert list(caught.value.fields) == ["deployments"]


def test_an_admin_sees_and_revokes_those_of_others(browser: Browser, people: dict[str, User]) -> None:
    token, plain = services.create_token(people["viewer"], "nightly", actor=people["viewer"], scope="api:read")
    mine, kept = services.create_token(people["operator"], "other", actor=people["operator"])
    url = f"/people/{people['viewer'].pk}"
    page = browser("admin").get(url + "/").content.decode()
    assert "nightly" in page and token.prefix in page and "other" not in page
    assert browser("admin").post(f"{url}/tokens/{mine.pk}/revoke").status_code == 404  # not this person's
    answer = browser("admin").post(f"{url}/tokens/{token.pk}/revoke", headers=HTMX)
    assert answer.status_code == 200 and "revoked" in answer.content.decode() and "<html" not in answer.content.decode()
    assert tokens.find_token(plain) is None and tokens.find_token(kept)
    event = Event.objects.get(verb="token.revoked")
    assert (event.actor, event.facts["owner"]) == ("admin-1", "viewer-1")


def test_scopes_and_deployments_from_the_shell(people: dict[str, User], two: tuple[Any, Any]) -> None:
    chat, search = two
    plain = run(
        "create", "viewer-1", "ci", "--scope", "api:read", "--deployment", "search", "--deployment", "chat"
    ).strip()
    token = tokens.find_token(plain)
    assert token and (token.scope, token.deployment_ids) == ("api:read", sorted([chat.pk, search.pk]))
    assert json.loads(run("list", "--json"))[0]["deployments"] == sorted([chat.pk, search.pk])
    with pytest.raises(CommandError, match="no deployment"):
        run("create", "viewer-1", "ci", "--deployment", "nothing")
    with pytest.raises(CommandError):
        run("create", "viewer-1", "ci", "--scope", "root")
