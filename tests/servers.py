"""PostgreSQL and Valkey for one test run, and how tests and their child processes reach them."""

import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from panel.core.services_urls import database_settings
from panel.embedded import Embedded


@dataclass
class Servers:
    """Where the two servers of this run are. `embedded` is None for servers that the environment names."""

    database_url: str
    redis_url: str
    embedded: Embedded | None = None
    folder: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    @classmethod
    def start(cls) -> "Servers":
        """Use DATABASE_URL and REDIS_URL where given, else start them in a temporary folder.

        BERTH_TEST_PG_BIN names the binaries of another PostgreSQL to run on.
        """
        database, broker = os.environ.get("DATABASE_URL", ""), os.environ.get("REDIS_URL", "")
        if database and broker:
            return cls(database, broker)
        folder = tempfile.TemporaryDirectory(prefix="berth-db-")
        binaries = os.environ.get("BERTH_TEST_PG_BIN")
        embedded = Embedded(
            Path(folder.name),
            postgres=not database,
            valkey=not broker,
            binaries=Path(binaries) if binaries else None,
            durable=False,
            createdb=True,
        ).start(60)
        return cls(database or embedded.postgres.url(), broker or embedded.valkey.url(), embedded, folder)

    def stop(self) -> None:
        if self.embedded is not None and self.folder is not None:
            self.embedded.stop()
            self.folder.cleanup()

    def database_settings(self) -> dict[str, object]:
        return database_settings(self.database_url, Path("unused"))

    def url_of(self, database: str) -> str:
        """DATABASE_URL for another database of the same server."""
        return re.sub(r"^(\w+://[^/]*/)[^?]*", lambda found: found[1] + quote(database), self.database_url)

    def environment(self, data: Path, **extra: str) -> dict[str, str]:
        """For a child process of the panel that works on this test's database and broker, with its own data folder."""
        from django.conf import settings

        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("BERTH_")},
            "DJANGO_SETTINGS_MODULE": "panel.settings",
            "DATABASE_URL": self.url_of(str(settings.DATABASES["default"]["NAME"])),
            "REDIS_URL": self.redis_url,
            "BERTH_DATA": str(data),
            "BERTH_SECRET_KEY": settings.SECRET_KEY,
            **extra,
        }
