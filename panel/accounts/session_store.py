"""Django's session store over our session rows, so that a person's sessions are found without reading all of them."""

from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore as Database

from panel.accounts.models import PersonSession


class SessionStore(Database):
    """`row` is what was read of this session; None before it was read, and for a session that does not exist."""

    row: PersonSession | None = None

    @classmethod
    def get_model_class(cls) -> Any:
        return PersonSession

    def _get_session_from_db(self) -> Any:
        self.row = super()._get_session_from_db()
        return self.row

    def create_model_instance(self, data: Any) -> Any:
        row = super().create_model_instance(data)
        row.user_id = _person(data)
        return row

    async def acreate_model_instance(self, data: Any) -> Any:
        row = await super().acreate_model_instance(data)
        row.user_id = _person(data)
        return row


def _person(data: Any) -> int | None:
    """Whose session this is; None while nobody is signed in."""
    value = data.get(SESSION_KEY)
    return None if value is None else int(value)
