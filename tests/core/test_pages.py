"""Pages, partials, refusals in three shapes, slices, and what every answer carries."""

import json
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path

from panel.core import pages
from panel.core.errors import Conflict, Invalid, NotFound

HTMX = {"HX-Request": "true"}


def parts(request: HttpRequest) -> HttpResponse:
    moving = "still" not in request.GET
    return pages.page(request, "fleet/hosts.html", {"cards": [], "silent": []}, parts=["hosts"], moving=moving)


def conflict(request: HttpRequest) -> HttpResponse:
    raise Conflict


def invalid(request: HttpRequest) -> HttpResponse:
    raise Invalid({"name": "No spaces."})


async def missing(request: HttpRequest) -> HttpResponse:
    raise NotFound


def broken(request: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError("secret detail")


def moved(request: HttpRequest) -> HttpResponse:
    return pages.HttpResponseRedirect("/elsewhere")


def went(request: HttpRequest) -> HttpResponse:
    return pages.go(request, "/elsewhere")


urlpatterns = [
    path("parts", parts),
    path("conflict", conflict),
    path("invalid", invalid),
    path("missing", missing),
    path("broken", broken),
    path("moved", moved),
    path("went", went),
    path("api/broken", broken),
    path("api/conflict", conflict),
    path("", include("panel.urls")),
]
handler400, handler403 = pages.bad_request, pages.permission_denied
handler404, handler500 = pages.not_found, pages.server_error


@pytest.fixture
def web(settings: Any) -> Client:
    settings.ROOT_URLCONF = __name__
    return Client(raise_request_exception=False, headers={"host": "localhost", "accept": "text/html"})


def test_page_and_its_part(web: Client) -> None:
    whole = web.get("/parts").content.decode()
    assert "<html" in whole and 'id="hosts"' in whole
    part = web.get("/parts?part=hosts", headers=HTMX)
    assert part.status_code == 200 and b"<html" not in part.content and b'id="hosts"' in part.content
    assert "HX-Request" in part.headers["Vary"]
    assert b"<html" in web.get("/parts?part=hosts").content, "typed by a person it is the whole page"


def test_poll_ends_when_nothing_moves(web: Client) -> None:
    assert web.get("/parts?part=hosts&still=1", headers=HTMX).status_code == pages.STOP_POLLING
    assert web.get("/parts?still=1").status_code == 200


def test_unknown_part_is_not_found(web: Client) -> None:
    assert web.get("/parts?part=secrets", headers=HTMX).status_code == 404


def test_refusal_as_page(web: Client) -> None:
    answer = web.get("/conflict", headers={"Accept": "text/html"})
    assert answer.status_code == 409
    assert b"<h1>Someone changed this a moment ago.</h1>" in answer.content


def test_refusal_as_note_in_the_open_page(web: Client) -> None:
    answer = web.get("/conflict", headers=HTMX)
    assert answer.status_code == 409 and b"<html" not in answer.content
    assert answer.headers["HX-Retarget"] == "#notice"


def test_refusal_as_json_for_programs(web: Client) -> None:
    for answer in (web.get("/api/conflict"), web.get("/conflict", headers={"Accept": "application/json"})):
        assert answer.status_code == 409
        assert set(answer.json()) == {"code", "message", "hint"} and answer.json()["code"] == "conflict"
    assert web.get("/invalid", headers={"Accept": "application/json"}).json()["fields"] == {"name": "No spaces."}


def test_refusal_of_an_async_view(web: Client) -> None:
    assert web.get("/missing").status_code == 404


def test_not_found_page_names_no_address_as_markup(web: Client) -> None:
    answer = web.get("/<script>alert(1)</script>")
    assert answer.status_code == 404 and b"<script>alert" not in answer.content


def test_server_error_tells_a_number_and_no_detail(web: Client, caplog: pytest.LogCaptureFixture) -> None:
    answer = web.get("/broken")
    assert answer.status_code == 500 and b"secret detail" not in answer.content
    number = next(r.args[0] for r in caplog.records if r.msg.startswith("incident"))
    assert str(number).encode() in answer.content
    api = web.get("/api/broken").json()
    assert api["code"] == "panel.error" and api["incident"]
    assert web.get("/broken", headers=HTMX).headers["HX-Retarget"] == "#notice"


def test_wrong_host_names_the_setting(web: Client) -> None:
    answer = web.get("/parts", headers={"host": "panel.example"})
    assert answer.status_code == 400
    assert b"BERTH_ALLOWED_HOSTS" in answer.content and b"panel.example" in answer.content


def test_csrf_failure_says_what_to_do(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    strict = Client(enforce_csrf_checks=True, headers={"host": "localhost"})
    answer = strict.post("/preferences", {"theme": "dark"})
    assert answer.status_code == 403 and b"Load the page again" in answer.content


def test_redirect_is_a_whole_page_for_htmx(web: Client) -> None:
    for address in ("/moved", "/went"):
        answer = web.get(address, headers=HTMX)
        assert (answer.status_code, answer.headers["HX-Redirect"]) == (204, "/elsewhere")
        assert web.get(address).status_code == 302


def test_every_answer_carries_the_policy(web: Client) -> None:
    for address in ("/parts", "/conflict", "/broken", "/no/such"):
        policy = web.get(address).headers["Content-Security-Policy"]
        for word in ("default-src 'self'", "frame-ancestors 'none'", "form-action 'self'", "base-uri 'none'"):
            assert word in policy
        assert "unsafe" not in policy


def test_pages_hold_nothing_inline(web: Client) -> None:
    """The policy would refuse it silently."""
    page = web.get("/parts").content.decode()
    assert " style=" not in page and "<style" not in page and " onclick=" not in page
    assert page.count("<script") == page.count("<script src=") + page.count("<script defer src=")
    config = json.loads(page.split('name="htmx-config" content=\'')[1].split("'>")[0])
    assert config["allowEval"] is False and config["includeIndicatorStyles"] is False


@pytest.mark.parametrize(
    ("query", "first", "more"), [("", 0, True), ("page=3", 20, False), ("page=-1", 0, True), ("page=９", 0, True)]
)
def test_slices(rf: Any, query: str, first: int, more: bool) -> None:
    found = pages.slice_of(rf.get(f"/?{query}"), list(range(25)), size=10)
    assert (found.items[0], found.has_next) == (first, more)


def test_slice_beyond_the_end_is_empty(rf: Any) -> None:
    found = pages.slice_of(rf.get("/?page=99"), list(range(25)), size=10)
    assert len(found) == 0 and found.has_previous and not found.has_next


# --- language and theme ---------------------------------------------------------------------------------------------


def test_language_of_the_browser(web: Client) -> None:
    page = web.get("/no/such", headers={"Accept-Language": "zh-CN,zh;q=0.9"}).content.decode()
    assert '<html lang="zh-Hans"' in page


@pytest.mark.django_db
def test_language_of_a_person_wins_and_is_kept(web: Client, django_user_model: Any) -> None:
    user = django_user_model.objects.create_user("mina")
    web.force_login(user)
    answer = web.post("/preferences", {"language": "zh-hans", "next": "/parts"})
    assert (answer.status_code, answer.headers["Location"]) == (302, "/parts")
    user.refresh_from_db()
    assert user.language == "zh-hans"
    elsewhere = Client(headers={"host": "localhost", "accept": "text/html", "Accept-Language": "en"})
    elsewhere.force_login(user)
    assert '<html lang="zh-Hans"' in elsewhere.get("/parts").content.decode()


@pytest.mark.django_db
def test_theme_is_kept_with_the_person(web: Client, django_user_model: Any) -> None:
    user = django_user_model.objects.create_user("mina")
    web.force_login(user)
    assert web.post("/preferences", {"theme": "dark"}).status_code == 204
    assert 'data-choice="dark"' in web.get("/parts").content.decode()
    assert web.post("/preferences", {"theme": "plaid"}).status_code == 422


def test_stranger_may_choose_a_language_too(web: Client) -> None:
    web.post("/preferences", {"language": "zh-hans"})
    assert '<html lang="zh-Hans"' in web.get("/no/such").content.decode()


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "javascript:alert(1)"])
def test_preferences_lead_nowhere_else(web: Client, target: str) -> None:
    assert web.post("/preferences", {"language": "en", "next": target}).headers["Location"] == "/"
