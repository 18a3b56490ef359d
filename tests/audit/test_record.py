"""What a record holds: who, what, bounded sizes, no secrets; refusals are counted and survive."""

import json
import math
import threading
import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from panel import audit
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.audit.bounds import DOCUMENT, bounded, line
from panel.audit.models import Event
from panel.audit.services import MANY, REFUSAL_ROWS_PER_MINUTE, network


@pytest.mark.django_db
def test_who_and_what() -> None:
    user = User.objects.create(username="ada", role="admin")
    by_user = audit.record("user.created", user, actor=user, after={"role": "admin"})
    assert (by_user.actor, by_user.actor_id, by_user.target_kind, by_user.target_id, by_user.target) == (
        "ada", user.pk, "user", str(user.pk), "ada",
    )  # fmt: skip
    actor = Actor.from_user(user, address="192.0.2.7", via="browser")
    by_actor = audit.record("deployment.started", ("deployment", 3, "chat"), actor=actor, gpus=[0, 1])
    assert (by_actor.actor, by_actor.address, by_actor.target_id) == ("ada", "192.0.2.7", "3")
    assert by_actor.facts == {"gpus": [0, 1], "via": "browser"}
    by_loop = audit.record("run.ready", None, actor=None)
    assert (by_loop.actor, by_loop.actor_id, by_loop.target) == ("system", None, "")
    user.delete()
    assert Event.objects.filter(actor="ada").count() == 2


@pytest.mark.django_db
def test_a_record_goes_with_the_change_it_tells_of() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        audit.record("deployment.started", None, actor=None)
        1 / 0  # noqa: B018
    assert not Event.objects.exists()


@pytest.mark.django_db
def test_secrets_and_sizes() -> None:
    event = audit.record(
        "deployment.edited",
        ("deployment", 1, "n" * 500 + "\0\ud800"),
        actor=None,
        before={"env": {"HF_TOKEN": "hf_abcdefghijklmnopqrstuvwx", "A": "b"}},
        after={"args": ["--api-key", "s3cret", "--port", "1"], "log": "x" * 100_000, "many": list(range(5000))},
        url="https://me:hunter22@example.org/x",
        odd={UUID(int=1): datetime(2026, 1, 1, tzinfo=UTC), "nan": math.nan, "big": 1 << 80, "nul": "a\0b\ud800"},
    )
    event = Event.objects.get(pk=event.pk)
    text = json.dumps([event.before, event.after, event.facts])
    for secret in ("abcdefghijkl", "s3cret", "hunter22"):
        assert secret not in text
    assert event.before == {"env": {"HF_TOKEN": "••••", "A": "b"}}
    assert len(text) < 3 * DOCUMENT
    assert len(event.target) == 200


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet=st.characters()), inner),
    max_leaves=30,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(alphabet=st.characters()), json_like))
def test_any_document_becomes_storable_json(document: dict[str, Any]) -> None:
    text = json.dumps(bounded(document), allow_nan=False)
    assert "\\u0000" not in text and len(text) <= DOCUMENT + 100


@given(st.text(alphabet=st.characters()))
def test_lines_are_lines(text: str) -> None:
    made = line(text, 64)
    assert len(made) <= 64 and made.isprintable()
    made.encode()


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_ten_thousand_refusals_are_few_rows() -> None:
    begin = time.monotonic()
    for n in range(10_000):
        stranger = Actor(address=f"2001:db8::{n:x}")  # one machine, many addresses
        audit.record("deployments.operate", actor=stranger, outcome="denied")
    rows = list(Event.objects.values_list("address", "count"))
    assert sum(count for _, count in rows) == 10_000
    assert len(rows) <= 2 + (time.monotonic() - begin) // 60  # one a minute
    assert {address for address, _ in rows} == {"2001:db8::/64"}


@pytest.mark.django_db
def test_a_crowd_of_addresses_shares_one_row() -> None:
    for n in range(REFUSAL_ROWS_PER_MINUTE + 300):
        audit.record("login.failed", actor=Actor(address=f"198.51.{n // 250}.{n % 250}"), outcome="denied")
    assert Event.objects.count() <= 2 * REFUSAL_ROWS_PER_MINUTE + 2
    assert Event.objects.filter(address=MANY).exists()


@pytest.mark.django_db
def test_each_person_and_right_has_a_row() -> None:
    one, two = (Actor(name, pk, "192.0.2.1", "viewer") for name, pk in (("ada", 1), ("ben", 2)))
    for actor, right in ((one, "hosts.manage"), (one, "users.manage"), (two, "hosts.manage"), (one, "hosts.manage")):
        event = audit.record(right, actor=actor, outcome="denied")
    assert Event.objects.count() in (3, 4)
    assert event.pk and event.minute


@pytest.mark.django_db(transaction=True)
def test_a_refusal_outlives_the_transaction_that_it_ends() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        audit.record("hosts.manage", actor=Actor("ada", 1, "192.0.2.1", "viewer"), outcome="denied")
        audit.record("host.joined", actor=None)
        1 / 0  # noqa: B018
    assert list(Event.objects.values_list("verb", flat=True)) == ["hosts.manage"]


@pytest.mark.django_db(transaction=True)
def test_refusals_at_the_same_time_are_all_counted() -> None:
    def refuse() -> None:
        try:
            for _ in range(25):
                audit.record("hosts.manage", actor=Actor(address="192.0.2.1"), outcome="denied")
        finally:
            connection.close()

    threads = [threading.Thread(target=refuse) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(Event.objects.values_list("count", flat=True)) == 100
    assert Event.objects.count() <= 2


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("", ""),
        ("x", "x"),
    ],
)
def test_counted_by_network(address: str, counted: str) -> None:
    assert network(address) == counted
