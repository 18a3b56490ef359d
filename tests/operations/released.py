"""A panel of an earlier release, from its file in tests/data/releases, brought to the version of today."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from django.conf import settings
from django.db import connections
from django.test import override_settings

from tests.e2e import stack as stacks
from tests.e2e.stack import ROOT, Stack
from tests.servers import Servers

FILES = sorted((ROOT / "tests/data/releases").glob("*.tar.gz"))


@dataclass
class Released:
    """What the file says, and its database before any migration of today."""

    known: dict[str, Any]
    database: str
    url: str
    stack: Stack

    def query(self, text: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(text).fetchall()  # type: ignore[call-overload,no-any-return]

    def tables(self) -> dict[str, list[str]]:
        """Columns of every table with rows of the panel, in their order."""
        rows = self.query(
            "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid"
            " WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
            " AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, a.attnum"
        )
        found: dict[str, list[str]] = {}
        for table, column in rows:
            found.setdefault(table, []).append(column)
        return found

    def rows(self, table: str, columns: list[str]) -> list[tuple[Any, ...]]:
        names = ", ".join(f'"{column}"::text' for column in columns)
        return sorted(self.query(f'SELECT {names} FROM "{table}"'), key=repr)

    def migrate(self) -> str:
        """As a person does it, in a process of its own."""
        argv = [sys.executable, "manage.py", "migrate"]
        done = subprocess.run(argv, cwd=ROOT, env=self.stack.env, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextmanager
def released(servers: Servers, folder: Path, file: Path) -> Iterator[Released]:
    """The panel of the file in a database of its own; this process's ORM works on that one meanwhile."""
    name = f"release_{os.getpid()}_{re.sub(r'[^a-z0-9]+', '_', folder.name.lower())}"[:60]
    before = settings.DATABASES["default"]["NAME"]
    stacks._admin(f'CREATE DATABASE "{name}"')
    connections["default"].settings_dict["NAME"] = settings.DATABASES["default"]["NAME"] = name
    stack = None
    try:
        with tarfile.open(file) as archive:
            archive.extractall(folder, filter="data")
        known = json.loads((folder / "release.json").read_text())
        with override_settings(SECRET_KEY=known["key"]):
            stack = Stack(servers, folder)
            if (folder / "logs").exists():
                shutil.move(folder / "logs", stack.data / "logs")
            found = Released(known, name, servers.url_of(name), stack)
            load(found, (folder / "dump.sql").read_text(), folder)
            with stack.settings():
                yield found
    finally:
        if stack is not None:
            stack.stop()
        connections.close_all()
        stacks._close_pool()
        connections["default"].settings_dict["NAME"] = settings.DATABASES["default"]["NAME"] = before
        stacks._admin(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def load(release: Released, text: str, folder: Path) -> None:
    for word, real in {"@FOLDER@": str(folder), "@CHECKOUT@": str(ROOT), "@VENV@": sys.prefix}.items():
        text = text.replace(word, real)
    with psycopg.connect(release.url, autocommit=True) as connection:
        connection.execute(text)  # type: ignore[call-overload]  # SQL from a file of ours
