"""Django's migrate, which first makes sure that the database answers and is not a newer version's."""

from typing import Any

from django.core.management.commands.migrate import Command as Migrate
from django.db import connection

from panel.core import checks


class Command(Migrate):
    def execute(self, *args: Any, **options: Any) -> Any:
        checks.database_answers()  # before Django's own checks, which would wait for the pool's time limit
        return super().execute(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        checks.pending_migrations()
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = 0")  # a change to a long table may take longer than a page may
        super().handle(*args, **options)
