"""Every role at every address, the shape of a refusal, and what the record says of it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, Client, RequestFactory
from django.urls import reverse

from panel.accounts import services
from panel.accounts.access import RIGHTS, NotSignedIn, OutOfReach, ReadOnly, RoleTooLow, can, load_or_404, require
from panel.accounts.actor import Actor, address_of
from panel.accounts.guard import right
from panel.accounts.models import ApiToken, Role, User
from panel.audit.models import Event
from panel.core.errors import NotFound
from tests.deployments import builders

pytestmark = pytest.mark.django_db
Browser = Callable[..., Client]
ROLES = ["stranger", *Role.values]

# method, address, role → status. A stranger's browser is led to the sign-in page.
ENDPOINTS = [
    ("get", "profile", (302, 200, 200, 200)),
    ("get", "activity", (302, 200, 200, 200)),
    ("post", "profile-password", (302, 422, 422, 422)),
    ("post", "token-create", (302, 422, 422, 422)),
    ("get", "token-create", (405, 405, 405, 405)),
    ("get", "profile-password", (405, 405, 405, 405)),
    ("post", "activity", (302, 405, 405, 405)),
    ("get", "login", (200, 302, 302, 302)),
    ("post", "logout", (302, 302, 302, 302)),
    ("get", "logout", (405, 405, 405, 405)),
]


@pytest.mark.parametrize(("method", "name", "expected"), ENDPOINTS)
@pytest.mark.parametrize("n", range(4), ids=ROLES)
def test_each_role_at_each_address(browser: Browser, method: str, name: str, expected: tuple[int, ...], n: int) -> None:
    answer = getattr(browser(ROLES[n]), method)(reverse(name))
    assert answer.status_code == expected[n]
    if expected[n] == 302 and ROLES[n] == "stranger" and name not in ("login", "logout"):
        assert answer["Location"].startswith("/login")


@pytest.mark.parametrize("name", RIGHTS)
def test_each_role_holds_the_rights_of_the_ones_below(people: dict[str, User], name: str) -> None:
    least = Role.values.index(RIGHTS[name])
    assert [can(people[role], name) for role in Role.values] == [n >= least for n in range(3)]
    assert not can(AnonymousUser(), name)
    people["admin"].is_active = False
    assert not can(people["admin"], name)
    assert can(Actor.system(), name)


def test_an_unknown_right_or_nobody_is_a_bug(people: dict[str, User]) -> None:
    with pytest.raises(LookupError):
        require(people["admin"], "deployment.craete")
    with pytest.raises(LookupError):
        right("nonsense")
    with pytest.raises(AttributeError):
        require(None, "hosts.view")


def test_a_refusal_says_which_role_is_missing_and_is_recorded(people: dict[str, User]) -> None:
    with pytest.raises(RoleTooLow) as caught:
        require(Actor.from_user(people["viewer"], address="192.0.2.9"), "hosts.manage", ("host", 4, "atlas"))
    assert caught.value.as_dict() == {
        "code": "denied",
        "message": "Your role does not allow this.",
        "hint": "This needs the role “Admin”. An admin of this panel can give it to you.",
    }
    event = Event.objects.get()
    assert (event.verb, event.outcome, event.actor, event.address, event.target) == (
        "hosts.manage", "denied", "viewer-1", "192.0.2.9", "atlas",
    )  # fmt: skip
    with pytest.raises(NotSignedIn):
        require(AnonymousUser(), "hosts.view")


@pytest.mark.django_db(transaction=True)
def test_a_refusal_in_a_service_is_recorded_although_its_transaction_ends(people: dict[str, User]) -> None:
    with pytest.raises(RoleTooLow), transaction.atomic():
        User.objects.filter(pk=people["viewer"].pk).update(role="admin")
        require(people["viewer"], "users.manage", people["viewer"])
    assert User.objects.get(username="viewer-1").role == "viewer"
    assert Event.objects.get().verb == "users.manage"


def test_a_reading_token_only_reads(people: dict[str, User]) -> None:
    token, _plain = services.create_token(people["admin"], "ci", actor=people["admin"])
    actor = Actor.from_token(token)
    assert can(actor, "deployments.view") and not can(actor, "deployments.create")
    with pytest.raises(ReadOnly):
        require(actor, "deployments.create")
    token.scope = "api:write"
    assert can(Actor.from_token(token), "hosts.manage")


# --- the keeper of views ----------------------------------------------------------------------------------------------


@right("hosts.manage")
def secret(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"hello {request.actor.name}")  # type: ignore[attr-defined]


@right("hosts.manage")
async def secret_stream(request: HttpRequest) -> HttpResponse:
    return HttpResponse("streamed")


def ask(user: Any, method: str = "get", **headers: str) -> HttpResponse:
    from django_htmx.middleware import HtmxDetails

    request = getattr(RequestFactory(), method)("/hosts/atlas", headers=headers)
    request.user = user
    request.session = {}
    request.htmx = HtmxDetails(request)
    return secret(request)


PAGE = {"Accept": "text/html,*/*", "Sec-Fetch-Mode": "navigate"}
FETCH = {"Accept": "*/*", "Sec-Fetch-Mode": "cors"}
JSON = {"Accept": "application/json"}
HTMX = {"HX-Request": "true", "HX-Current-URL": "http://testserver/hosts?x=1", "Sec-Fetch-Mode": "cors"}


def test_a_stranger_is_led_to_the_sign_in_page_or_told_in_json() -> None:
    stranger = AnonymousUser()
    assert ask(stranger, **PAGE)["Location"] == "/login?next=%2Fhosts%2Fatlas"
    assert ask(stranger, "post", **PAGE)["Location"] == "/login"
    for headers in (FETCH, JSON, {}, {"Accept": "text/event-stream", "Sec-Fetch-Mode": "cors"}):
        answer = ask(stranger, **headers)
        assert (answer.status_code, answer["Content-Type"]) == (401, "application/json")
        assert b'"code": "not_signed_in"' in answer.content
    answer = ask(stranger, **HTMX)
    assert (answer.status_code, answer["HX-Redirect"]) == (401, "/login?next=%2Fhosts%3Fx%3D1")
    answer = ask(stranger, **{**HTMX, "HX-Current-URL": "http://[::1"})  # no browser sends that
    assert (answer.status_code, answer["HX-Redirect"]) == (401, "/login")


def test_a_role_too_low_gets_403_in_its_own_shape(people: dict[str, User]) -> None:
    for headers in (FETCH, JSON, {}):
        answer = ask(people["operator"], **headers)
        assert (answer.status_code, answer["Content-Type"]) == (403, "application/json")
    page = ask(people["operator"], **PAGE)
    assert page.status_code == 403 and "This needs the role “Admin”." in page.content.decode()
    fragment = ask(people["operator"], **HTMX)
    assert fragment.status_code == 403 and fragment["HX-Retarget"] == "#notice"
    assert ask(people["admin"]).content == b"hello admin-1"


def test_what_is_recorded_of_refusals(people: dict[str, User]) -> None:
    ask(AnonymousUser(), **PAGE)
    assert not Event.objects.exists()  # someone who is not signed in opened a page
    ask(AnonymousUser(), "post", **PAGE)
    ask(people["operator"], **PAGE)
    told = list(Event.objects.order_by("pk").values_list("verb", "actor", "outcome", "target"))
    assert told == [
        ("hosts.manage", "", "denied", "POST /hosts/atlas"),
        ("hosts.manage", "operator-1", "denied", "GET /hosts/atlas"),
    ]


def test_many_denied_requests_are_few_rows(client: Client) -> None:
    for n in range(300):
        client.post(f"/account/tokens?{n}", {"name": "x" * n}, REMOTE_ADDR=f"2001:db8::{n:x}")
    assert Event.objects.count() <= 3
    assert sum(Event.objects.values_list("count", flat=True)) == 300


@pytest.mark.django_db(transaction=True)
def test_an_async_view_gives_its_connection_back_before_it_streams(people: dict[str, User]) -> None:
    from asgiref.sync import sync_to_async
    from django.db import connection

    async def go(user: Any) -> tuple[int, bool]:
        request = AsyncRequestFactory().get("/stream", headers=JSON)
        request.user = user
        answer = await secret_stream(request)
        return answer.status_code, await sync_to_async(lambda: connection.connection is None)()

    assert asyncio.run(go(people["admin"])) == (200, True)
    assert asyncio.run(go(people["viewer"])) == (403, True)


# --- small pieces -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pk", [0, -1, 10**30, "x", "1; DROP TABLE", None, "\0", [1], {"a": 1}])
def test_load_or_404_takes_anything(people: dict[str, User], pk: Any) -> None:
    with pytest.raises(NotFound):
        load_or_404(ApiToken, people["admin"], pk=pk)


def test_load_or_404(people: dict[str, User]) -> None:
    viewer = people["viewer"]
    token, _plain = services.create_token(viewer, "x", actor=viewer)
    assert load_or_404(ApiToken, viewer, pk=token.pk) == token
    assert load_or_404(ApiToken.objects.filter(user=viewer), viewer, pk=token.pk) == token
    for source, who in ((ApiToken.objects.filter(user=people["admin"]), viewer), (ApiToken, AnonymousUser())):
        with pytest.raises(NotFound):
            load_or_404(source, who, pk=token.pk)


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.1", "", "192.0.2.1"),
        ("192.0.2.1", "198.51.100.1", "192.0.2.1"),  # a header says nothing: the web server resolves trusted proxies
        ("<script>", "", ""),
        ("", "", ""),
    ],
)
def test_the_address_is_the_peers(peer: str, forwarded: str, expected: str) -> None:
    extra = {"HTTP_X_FORWARDED_FOR": forwarded} if forwarded else {}
    assert address_of(RequestFactory().get("/", REMOTE_ADDR=peer, **extra)) == expected


# --- tokens for some deployments --------------------------------------------------------------------------------------


def limited(owner: User, *ids: int, scope: str = "api:write") -> Actor:
    row = ApiToken(user=owner, name="ci", scope=scope, deployment_ids=list(ids))
    return Actor.from_token(row, "192.0.2.5")


@pytest.mark.parametrize(
    ("right_name", "writes", "reads"),
    [
        ("deployments.view", True, True),
        ("deployments.edit", True, False),
        ("deployments.operate", True, False),
        ("deployments.delete", True, False),
        ("deployments.try", True, False),
        ("deployments.create", False, False),
        ("models.view", False, False),
        ("hosts.view", False, False),
        ("audit.view", False, False),
        ("tokens.own", False, False),  # else it could make itself a wider one
        ("users.manage", False, False),
    ],
)
def test_a_limited_token_of_an_admin_acts_on_its_deployments_only(
    people: dict[str, User], right_name: str, writes: bool, reads: bool
) -> None:
    actor = limited(people["admin"], 7)
    assert (actor.address, actor.via, actor.deployments) == ("192.0.2.5", "token ci", frozenset({7}))
    assert can(actor, right_name) is writes
    assert can(limited(people["admin"], 7, scope="api:read"), right_name) is reads


def test_what_a_limited_token_is_told(people: dict[str, User]) -> None:
    with pytest.raises(OutOfReach):
        require(limited(people["admin"], 7), "hosts.manage")
    with pytest.raises(RoleTooLow):
        require(limited(people["viewer"], 7), "hosts.manage")
    with pytest.raises(ReadOnly):
        require(limited(people["admin"], 7, scope="api:read"), "deployments.edit")


def test_other_deployments_do_not_exist_for_a_limited_token(people: dict[str, User]) -> None:
    host = builders.make_host()
    copy = builders.make_copy(host)
    mine, other = (builders.make_deployment(copy, name=name) for name in ("mine", "other"))
    actor = limited(people["admin"], mine.pk)
    assert require(actor, "deployments.operate", mine) is actor
    assert load_or_404(type(mine), actor, pk=mine.pk) == mine
    assert (actor.reaches(mine.pk), actor.reaches(other.pk)) == (True, False)
    with pytest.raises(NotFound):
        require(actor, "deployments.operate", other)
    with pytest.raises(NotFound):
        load_or_404(type(other).objects.all(), actor, pk=other.pk)
    assert load_or_404(type(other), people["admin"], pk=other.pk) == other
