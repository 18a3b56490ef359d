"""What a new password ends, that guesses take equal work, and that nothing of a secret is told."""

import time
from statistics import median
from typing import Any

import pytest
from django.test import Client

from panel.accounts import limits, links, tokens
from panel.accounts.models import ApiToken, User
from panel.accounts.services import create_token
from panel.audit.models import Event

pytestmark = pytest.mark.django_db
OLD, NEW = "harbour lights at nine", "nine lights on the quay"


@pytest.fixture
def mina() -> User:
    return User.objects.create_user(username="mina", password=OLD, role="operator")


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def change(client: Client, **more: Any) -> int:
    values = {"current": OLD, "password": NEW, "again": NEW, **more}
    status: int = client.post("/account/password", values).status_code
    return status


def test_the_page_says_that_tokens_go_on_and_offers_to_end_them(mina: User) -> None:
    client = signed_in(mina)
    assert 'name="end_tokens"' not in client.get("/account").content.decode(), "there is none to end"
    _row, kept = create_token(mina, "kept", actor=mina)
    omar = User.objects.create_user(username="omar", role="viewer")
    create_token(omar, "another's", actor=omar)
    assert "1 token goes on working" in client.get("/account").content.decode()
    assert change(client) == 302
    assert tokens.find_token(kept)


def test_a_changed_password_ends_the_tokens_where_that_is_wished(mina: User) -> None:
    _row, plain = create_token(mina, "a", actor=mina)
    omar = User.objects.create_user(username="omar", role="viewer")
    _row, others = create_token(omar, "b", actor=omar)
    assert change(signed_in(mina), current="wrong", end_tokens="on") == 422
    assert tokens.find_token(plain)
    assert change(signed_in(mina), end_tokens="on") == 302
    assert not tokens.find_token(plain) and tokens.find_token(others)
    assert Event.objects.filter(verb="token.revoked", actor="mina").count() == 1


def test_a_reset_offers_the_same(mina: User) -> None:
    admin = User.objects.create_user(username="ada", role="admin")
    plain = [create_token(mina, name, actor=mina)[1] for name in "ab"]
    _link, url = links.make_reset(mina, actor=admin)
    path = url[url.index("/new-password") :]
    assert "2 tokens go on working" in Client().get(path).content.decode()
    assert Client().post(path, {"password": NEW, "again": NEW, "end_tokens": "on"}).status_code == 302
    assert not any(map(tokens.find_token, plain))


def test_a_disabled_persons_tokens_open_nothing(mina: User) -> None:
    _row, plain = create_token(mina, "a", actor=mina)
    User.objects.filter(pk=mina.pk).update(is_active=False)
    assert not tokens.find_token(plain)
    assert Client(headers={"Authorization": f"Bearer {plain}"}).get("/api/v1/me").status_code == 401


def test_no_secret_is_kept_as_it_is(mina: User) -> None:
    """A copy of the database opens nothing: tokens, links, codes and keys are there as hashes, or sealed."""
    from django.db import connection

    from panel.fleet import doors, services
    from panel.fleet.joining import services as joining
    from tests.deployments import builders

    admin = User.objects.create_user(username="ada", role="admin")
    _row, token = create_token(mina, "a", actor=mina)
    _link, url = links.invite(label="Omar", role="viewer", actor=admin)
    _code, code = joining.make_code(admin, "atlas")
    builders.make_host("quay")
    host = builders.make_host("rota", is_local=False)
    host_token, key = "a token of a host", doors.order_for(host) and doors.keys_of(host)[0]
    type(host).objects.filter(pk=host.pk).update(token_hash=services.digest(host_token))
    change(signed_in(mina))
    secrets = [
        token,
        token.removeprefix("berth_"),
        url.rsplit("/", 1)[1],
        code,
        joining.plain(code),
        host_token,
        key,
        OLD,
        NEW,
    ]
    with connection.cursor() as cursor:
        cursor.execute("SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()")
        for (table,) in cursor.fetchall():
            cursor.execute(f'SELECT t::text FROM "{table}" t')
            held = "\n".join(text for (text,) in cursor.fetchall())
            for secret in secrets:
                assert secret and secret not in held, table


def test_who_guesses_tokens_learns_nothing(mina: User, django_assert_max_num_queries: Any) -> None:
    """Wrong ones of every kind get the same answer; a look-up is by hash, so that no byte of the secret is compared."""
    _row, plain = create_token(mina, "a", actor=mina, scope="api:read")
    ended = create_token(mina, "b", actor=mina, scope="api:read")
    tokens.revoke_token(ended[0], actor=mina)
    wrong = [plain[:-1] + ("A" if plain[-1] != "A" else "B"), plain + "x", plain.upper(), "berth_" + "x" * 40, ended[1],
             plain.replace("berth_", ""), f" {plain}x", "berth_" + "x" * 5000, "é" * 40]  # fmt: skip
    answers = set()
    for guess in wrong:
        with django_assert_max_num_queries(3):
            answer = Client(headers={"Authorization": f"Bearer {guess}"}).get("/api/v1/me")
        answers.add((answer.status_code, answer.content))
    assert len(answers) == 1 and answers.pop()[0] == 401
    assert Client(headers={"Authorization": f"Bearer {plain}"}).get("/api/v1/me").status_code == 200


def test_no_name_is_told_by_the_time_of_a_sign_in(mina: User) -> None:
    def took(name: str) -> float:
        limits.LoginAttempt.objects.all().delete()
        began = time.perf_counter()
        assert Client().post("/login", {"name": name, "password": "wrong words at night"}).status_code == 422
        return time.perf_counter() - began

    took("mina")
    known, unknown = median(took("mina") for _ in range(5)), median(took("nobody") for _ in range(5))
    assert 0.4 < known / unknown < 2.5, "one of them is not hashed"


@pytest.mark.parametrize("path", ["/invite/", "/new-password/", "/first-admin/"])
def test_one_time_links_cannot_be_guessed_and_all_wrong_ones_are_alike(path: str, mina: User) -> None:
    guesses = ["x", "A" * 43, "../../login", "%00", "é"]
    answers = {
        (answer.status_code, len(answer.content) // 200)
        for answer in (Client().get(path + g) for g in guesses if "/" not in g)
    }
    assert {status for status, _size in answers} <= {404, 400}


def test_a_token_opens_no_page_and_a_session_no_api(mina: User) -> None:
    _row, plain = create_token(mina, "a", actor=mina, scope="api:write")
    program = Client(headers={"Authorization": f"Bearer {plain}"})
    for path in ("/", "/account", "/hosts/", "/models/", "/activity"):
        assert program.get(path).status_code in (302, 401), path
    assert signed_in(mina).get("/api/v1/deployments").status_code == 401
    assert ApiToken.objects.get().revoked_at is None


def test_a_session_that_was_fixed_before_the_sign_in_is_not_the_one_after(mina: User) -> None:
    client = Client()
    client.cookies["berth_session"] = "x" * 32
    client.get("/login")
    assert client.post("/login", {"name": "mina", "password": OLD}).status_code == 302
    key = client.cookies["berth_session"].value
    assert key != "x" * 32
    thief = Client()
    thief.cookies["berth_session"] = "x" * 32
    assert thief.get("/account").status_code == 401
    client.post("/logout")
    thief.cookies["berth_session"] = key
    assert thief.get("/account").status_code == 401, "what was signed out stays out"
