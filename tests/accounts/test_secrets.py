"""Secrets: kept sealed, shown by name alone, replaced, deleted; one's own, and the team's."""

import json
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from panel.accounts import secret_store
from panel.accounts.actor import Actor
from panel.accounts.models import Secret, User
from panel.accounts.secret_store import NoSecret, TooManySecrets
from panel.audit.models import Event
from panel.core.errors import Denied, Invalid
from panel.core.mask import HIDDEN
from tests.api.conftest import program
from tests.deployments import builders
from tests.waiting import until

pytestmark = pytest.mark.django_db
Browser = Callable[..., Client]
VALUE = "Zq8fW2kLmN4pR7tV0xYb"
OTHER = "another-secret-of-mine"
API = "/api/v1/secrets"


def everything() -> str:
    """All that the database says of secrets in plain words."""
    return str([bytes(row.value) for row in Secret.objects.all()]) + str(list(Event.objects.values()))


def test_kept_sealed_replaced_and_recorded_without_the_secret(people: dict[str, User]) -> None:
    actor = Actor.from_user(people["operator"])
    row = secret_store.keep("hf-token", VALUE, team=False, actor=actor)
    assert secret_store.values(["hf-token"], actor.id) == {"hf-token": VALUE}
    again = secret_store.keep("hf-token", f" {OTHER}\n", team=False, actor=actor)
    assert again.pk == row.pk and secret_store.values(["hf-token"], actor.id) == {"hf-token": OTHER}
    secret_store.remove(again, actor=actor)
    assert list(Event.objects.order_by("id").values_list("verb", "target")) == [
        ("secret.kept", "hf-token"), ("secret.replaced", "hf-token"), ("secret.removed", "hf-token"),
    ]  # fmt: skip
    assert VALUE not in everything() and OTHER not in everything()
    with pytest.raises(NoSecret):
        secret_store.values(["hf-token"], actor.id)


def test_a_person_has_their_own_then_the_teams_and_never_anothers(people: dict[str, User]) -> None:
    ada, bob = people["operator"], User.objects.create_user(username="bob", role="operator")
    secret_store.keep("shared", "of the team", team=True, actor=Actor.from_user(people["admin"]))
    secret_store.keep("shared", "of ada", team=False, actor=Actor.from_user(ada))
    secret_store.keep("private", VALUE, team=False, actor=Actor.from_user(ada))
    assert secret_store.values(["shared"], ada.pk) == {"shared": "of ada"}
    assert secret_store.values(["shared"], bob.pk) == {"shared": "of the team"}
    assert secret_store.values(["shared"], None) == {"shared": "of the team"}
    assert secret_store.missing(["shared", "private"], bob.pk) == ["private"]
    assert secret_store.missing(["private"], None) == ["private"]
    User.objects.filter(pk=ada.pk).update(is_active=False)
    assert secret_store.missing(["private"], ada.pk) == ["private"], "a closed account gives nothing"


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("", VALUE, "name"), ("Big", VALUE, "name"), ("a_b", VALUE, "name"), ("-a", VALUE, "name"), ("a" * 65, VALUE, "name"),
        ("sk-abcdefghijklmnop", VALUE, "name"), ("ok", " ", "value"), ("ok", "x" * 8_001, "value"), ("ok", "a\0b", "value"),
        ("ok", f"hf_{HIDDEN}", "value"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept(people: dict[str, User], name: str, value: str, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        secret_store.keep(name, value, team=False, actor=Actor.from_user(people["operator"]))
    assert set(caught.value.fields) == {field} and VALUE not in str(caught.value.as_dict())
    assert not Secret.objects.exists()


def test_there_is_an_end_to_them(people: dict[str, User], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_store, "MOST", 2)
    actor = Actor.from_user(people["operator"])
    for name in ("a", "b", "b"):
        secret_store.keep(name, VALUE, team=False, actor=actor)
    with pytest.raises(TooManySecrets):
        secret_store.keep("c", VALUE, team=False, actor=actor)


def test_who_may(people: dict[str, User]) -> None:
    viewer, operator, admin = (Actor.from_user(people[role]) for role in ("viewer", "operator", "admin"))
    for actor, team in ((viewer, False), (viewer, True), (operator, True)):
        with pytest.raises(Denied):
            secret_store.keep("x", VALUE, team=team, actor=actor)
    mine = secret_store.keep("mine", VALUE, team=False, actor=operator)
    ours = secret_store.keep("ours", VALUE, team=True, actor=admin)
    with pytest.raises(Denied):
        secret_store.remove(ours, actor=operator)
    with pytest.raises(Denied):
        secret_store.remove(mine, actor=Actor.from_user(User.objects.create_user(username="bob", role="operator")))
    with pytest.raises(Invalid):
        secret_store.keep("x", VALUE, team=False, actor=Actor.shell())
    assert secret_store.keep("x", VALUE, team=True, actor=Actor.shell()).owner is None
    secret_store.remove(mine, actor=admin)


# --- the pages --------------------------------------------------------------------------------------------------------


def test_the_page_keeps_replaces_and_deletes_and_never_shows(browser: Browser, people: dict[str, User]) -> None:
    client = browser("operator")
    kept = client.post(reverse("secrets"), {"name": "hf-token", "value": VALUE})
    assert kept.status_code == 302 and Secret.objects.get().owner == people["operator"]
    page = client.get(reverse("secrets")).content.decode()
    assert "hf-token" in page and VALUE not in page and VALUE[-4:] not in page
    bad = client.post(reverse("secrets"), {"name": "Not A Name", "value": OTHER})
    assert bad.status_code == 422 and OTHER not in bad.content.decode()
    replacing = client.get(reverse("secrets") + "?name=hf-token").context["form"]
    assert replacing["name"].value() == "hf-token"
    assert client.post(reverse("secret-remove", args=[Secret.objects.get().pk])).status_code == 302
    assert not Secret.objects.exists()


def test_an_operator_reaches_neither_the_teams_nor_those_of_others(browser: Browser, people: dict[str, User]) -> None:
    ours = secret_store.keep("ours", VALUE, team=True, actor=Actor.from_user(people["admin"]))
    theirs = secret_store.keep("theirs", VALUE, team=False, actor=Actor.from_user(people["admin"]))
    client = browser("operator")
    page = client.get(reverse("secrets")).content.decode()
    assert "ours" in page and "theirs" not in page
    for row in (ours, theirs):
        assert client.post(reverse("secret-remove", args=[row.pk])).status_code == 404
    assert client.post(reverse("secrets"), {"name": "x", "value": VALUE, "team": "1"}).status_code == 403
    assert Secret.objects.count() == 2
    assert "account/secrets" in client.get(reverse("profile")).content.decode()
    assert "account/secrets" not in browser("viewer").get(reverse("profile")).content.decode()


def test_an_admin_sees_names_of_a_person_and_can_delete_them(browser: Browser, people: dict[str, User]) -> None:
    row = secret_store.keep("mine", VALUE, team=False, actor=Actor.from_user(people["operator"]))
    where = reverse("person", args=[people["operator"].pk])
    page = browser("admin").get(where).content.decode()
    assert "mine" in page and VALUE not in page
    answer = browser("admin").post(reverse("secret-remove", args=[row.pk]))
    assert answer["Location"] == where and not Secret.objects.exists()


def test_the_number_of_queries_does_not_grow(
    browser: Browser, people: dict[str, User], django_assert_num_queries: Any
) -> None:
    client, actor = browser("admin"), Actor.from_user(people["admin"])
    for number in range(2):
        secret_store.keep(f"first-{number}", VALUE, team=bool(number), actor=actor)
    client.get(reverse("secrets"))
    with CaptureQueriesContext(connection) as few:
        client.get(reverse("secrets"))
    for number in range(12):
        secret_store.keep(f"more-{number}", VALUE, team=bool(number % 2), actor=actor)
    with django_assert_num_queries(len(few)):
        client.get(reverse("secrets"))


# --- the API ----------------------------------------------------------------------------------------------------------


def put(client: Client, name: str, body: dict[str, Any]) -> Any:
    return client.put(f"{API}/{name}", body, content_type="application/json")


def test_the_api_keeps_and_lists_and_never_tells(people: dict[str, User]) -> None:
    client = program(people["operator"])
    made = put(client, "hf-token", {"value": VALUE})
    assert made.status_code == 200, made.content
    assert made.json()["of"] == "own" and VALUE not in made.content.decode()
    assert put(client, "hf-token", {"value": OTHER}).json()["id"] == made.json()["id"]
    assert put(client, "Bad", {"value": VALUE}).status_code == 422
    assert put(client, "ours", {"value": VALUE, "team": True}).status_code == 403
    assert put(program(people["admin"]), "ours", {"value": VALUE, "team": True}).status_code == 200
    listed = client.get(API)
    assert [item["name"] for item in listed.json()["items"]] == ["hf-token", "ours"]
    assert VALUE not in listed.content.decode() and OTHER not in listed.content.decode()
    assert [item["name"] for item in client.get(f"{API}?of=team").json()["items"]] == ["ours"]
    assert client.delete(f"{API}/ours").status_code == 404
    assert client.delete(f"{API}/a%00b").status_code == 404
    assert client.delete(f"{API}/ours?team=true").status_code == 403
    assert client.delete(f"{API}/hf-token").status_code == 204
    assert program(people["admin"]).delete(f"{API}/ours?team=true").status_code == 204
    assert not Secret.objects.exists()
    assert VALUE not in everything()


def test_a_token_that_reads_or_is_limited_changes_nothing(people: dict[str, User]) -> None:
    assert put(program(people["operator"], "api:read"), "x", {"value": VALUE}).status_code == 403
    row = builders.make_deployment(builders.make_copy(builders.make_host()))
    limited = program(people["operator"], deployment_ids=[row.pk])
    assert put(limited, "x", {"value": VALUE}).status_code == 403
    assert not Secret.objects.exists()


# --- the shell --------------------------------------------------------------------------------------------------------


def test_the_shell_keeps_those_of_the_team_and_prints_none(db: None, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{VALUE}\n")

    def run(*words: str) -> str:
        out = StringIO()
        call_command("secret", *words, stdout=out)
        return out.getvalue()

    assert VALUE not in run("keep", "hf-token", str(file))
    assert secret_store.values(["hf-token"], None) == {"hf-token": VALUE}
    assert run("list").split() == ["hf-token", "system"] and VALUE not in run("list", "--json")
    assert json.loads(run("list", "--json"))[0]["used_by"] == []
    with pytest.raises(CommandError):
        run("keep", "Not A Name", str(file))
    run("remove", "hf-token")
    assert not Secret.objects.exists() and VALUE not in everything()
    with pytest.raises(CommandError):
        run("remove", "hf-token")


@pytest.mark.django_db(transaction=True)
def test_two_who_keep_the_first_secret_of_the_team_at_once_replace_it() -> None:
    wrong: list[Exception] = []

    def second() -> None:
        try:
            secret_store.keep("hf-token", OTHER, team=True, actor=Actor.shell())
        except Exception as exc:
            wrong.append(exc)
        finally:
            connection.close()

    def waits() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
            return cursor.fetchone()[0] > 0

    thread = threading.Thread(target=second)
    with transaction.atomic():
        secret_store.keep("hf-token", VALUE, team=True, actor=Actor.shell())
        thread.start()
        until(waits, why="the second waits for the first")
    thread.join(30)
    assert wrong == [] and secret_store.values(["hf-token"], None) == {"hf-token": OTHER}
