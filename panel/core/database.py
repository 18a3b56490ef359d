"""The panel's database without Django's pool."""

from typing import Any

import psycopg
from django.db import connections


def own_connection(**more: Any) -> psycopg.Connection:
    """A connection in autocommit: for a lock that lives as long as it does, and to hear why a server refuses.

    A pool says only that it waited in vain. `more` are psycopg's parameters; the database is the panel's.
    """
    known = connections["default"].get_connection_params()
    plain = {key: value for key, value in known.items() if isinstance(value, str | int) and key != "client_encoding"}
    return psycopg.connect(**{**plain, **more}, autocommit=True)
