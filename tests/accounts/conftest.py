"""People of each role, and browsers that are signed in as them, with CSRF checked as in real life."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from panel.accounts import limits
from panel.accounts.models import Role, User

PASSWORD = "harbour lights at nine"


@pytest.fixture(autouse=True)
def _home(settings: Any) -> None:
    settings.LOGIN_REDIRECT_URL = "/account"


@pytest.fixture
def people(db: None) -> dict[str, User]:
    made = {}
    for role in Role.values:
        made[role] = User.objects.create_user(username=f"{role}-1", password=PASSWORD, role=role)
    return made


@pytest.fixture
def browser(people: dict[str, User]) -> Callable[[str], Client]:
    """A browser signed in with this role; "stranger" is signed in as nobody."""

    def make(role: str, **kwargs: Any) -> Client:
        client = Client(headers={"Sec-Fetch-Mode": "navigate", "Accept": "text/html"}, **kwargs)
        if role != "stranger":
            client.force_login(people[role])
        return client

    return make


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The clock of the rate limit, set by hand."""

    class Clock:
        now = datetime(2026, 11, 30, 12, 0, 30, tzinfo=UTC)

        def pass_(self, **kwargs: int) -> None:
            self.now += timedelta(**kwargs)

    made = Clock()
    monkeypatch.setattr(limits, "now", lambda: made.now)
    yield made
