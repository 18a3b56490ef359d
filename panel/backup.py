"""One file with everything a panel cannot make again: its database, the logs of all runs, its secret key.

    manifest.json    what it is, of which version, with which migrations, a fingerprint of the secret key, and a sum of
                     the rows of each table
    secret.key       only when the key is the data folder's own; a key from BERTH_SECRET_KEY is kept by whoever set it
    database.dump    pg_dump's own format: pg_restore reads it without Berth too
    logs/, files/    the folders of the data folder
    sums.json        the SHA-256 of each of them

The database comes first, so every log that it names is in the file; engines and models are not. The file is written
beside its place, 0600, and gets its name when it is whole. A restore looks at the whole file before it begins, and at
every table before what was there goes (backup_proof.py).
"""

import contextlib
import hashlib
import hmac
import json
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.template.defaultfilters import filesizeformat
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from panel import backup_proof
from panel.children import OwnerLock
from panel.core import checks, env
from panel.core.database import own_connection
from panel.core.errors import PanelError
from panel.embedded import Embedded, EmbeddedError, postgres_folders
from panel.fleet.agent.version import VERSION

FORMAT = 2
READABLE = (1, 2)  # the first had no sums
FOLDERS = ("logs", "files")
MOST_KEY = 4096  # characters
KEPT_FREE = 64 << 20  # bytes of the disk that a restore leaves alone
AHEAD = 1_000_000  # more changes of work than any host saw since the backup
GONE_S = 3.0
ASIDE = "berth_before_restore"  # what the schema of the present data is called while the backup comes in


class BackupError(PanelError):
    code = "backup"
    status = 500


# --- what both need ---------------------------------------------------------------------------------------------------
@contextlib.contextmanager
def database() -> Iterator[None]:
    """The panel's database answers inside; an embedded one that does not run is started for so long."""
    data: Path = settings.BERTH_DATA
    runs = OwnerLock(data / "up.lock").owner() is not None if data.exists() else False
    if env.raw("DATABASE_URL") or runs:
        checks.database_answers()
        yield
        return
    with Embedded(data, valkey=False):
        yield


def tool(name: str, server: int) -> str:
    """pg_dump or pg_restore for a server of this major version: of the same one, else of the next newer one."""
    found: dict[int, str] = {}
    with contextlib.suppress(EmbeddedError):  # the wheel is not installed where other servers are used
        found = {major: str(folder / name) for major, folder in postgres_folders().items()}
    for path in [*map(str, Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), shutil.which(name)]:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout if path else ""
        if path and (version := re.search(r"PostgreSQL\) (\d+)", said)):
            found.setdefault(int(version[1]), path)
    if fitting := [major for major in sorted(found) if major >= server]:
        return found[fitting[0]]
    raise BackupError(
        "backup_no_tool",
        _("There is no %(name)s for PostgreSQL %(server)s on this machine."),
        _("Install postgresql-client of that version or of a newer one."),
        params={"name": name, "server": server},
    )


def run_tool(name: str, *args: str) -> None:
    """Run it on the panel's database; its last line is the reason when it fails. The password is in no command line."""
    with own_connection() as connection:
        info, server = connection.info, connection.info.server_version // 10000
        where = {"PGHOST": info.host, "PGPORT": str(info.port), "PGUSER": info.user, "PGPASSWORD": info.password}
        base = info.dbname
    options = settings.DATABASES["default"]["OPTIONS"]
    tls = {f"PG{key.upper()}": str(value) for key, value in options.items() if key.startswith("ssl")}
    argv = [tool(name, server), "--no-password", "--dbname", base, *args]
    environment = {**os.environ, **where, **tls, "PGOPTIONS": "-c statement_timeout=0"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if "error" in line] or ["?"]
        raise BackupError("backup_tool", _("%(name)s failed: %(why)s"), params={"name": name, "why": lines[0]})


def fingerprint(key: str) -> str:
    """Tells one secret key from another and gives nothing of it away."""
    return hmac.new(key.encode(), b"berth backup", hashlib.sha256).hexdigest()


def applied() -> list[str]:
    """The migrations of the database, `app.name`; none for an empty one."""
    with own_connection() as connection:
        there = connection.execute("SELECT to_regclass('django_migrations')").fetchone()
        if there is None or there[0] is None:
            return []
        return [
            f"{app}.{name}" for app, name in connection.execute("SELECT app, name FROM django_migrations ORDER BY id")
        ]


# --- backup -----------------------------------------------------------------------------------------------------------
def write(target: Path) -> Path:
    """Write a backup to this file, or into this folder; the file. The panel may run meanwhile. Raises BackupError."""
    target = target.expanduser().absolute()
    if target.is_dir():
        target /= f"berth-{timezone.now():%Y%m%d-%H%M%S}.tar.gz"
    if target.exists():
        raise BackupError("backup_exists", _("%(path)s exists already."), params={"path": target})
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            with (
                backup_proof.snapshot() as (snapshot, tables),
                tarfile.open(fileobj=file, mode="w:gz", compresslevel=3) as archive,
            ):
                _fill(backup_proof.Writer(archive), target.parent, snapshot, tables)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(target)
    except OSError as exc:
        raise BackupError(
            "backup_write",
            _("%(path)s cannot be written: %(why)s."),
            params={"path": target, "why": exc.strerror or exc},
        ) from exc
    finally:
        draft.unlink(missing_ok=True)
    return target


def _fill(archive: backup_proof.Writer, beside: Path, snapshot: str, tables: backup_proof.Tables) -> None:
    data: Path = settings.BERTH_DATA
    now = int(timezone.now().timestamp())
    manifest = {
        "format": FORMAT,
        "berth": VERSION,
        "made_at": timezone.now().isoformat(),
        "migrations": applied(),
        "key": fingerprint(settings.SECRET_KEY),
        "tables": tables,
    }
    archive.text("manifest.json", json.dumps(manifest, indent=1).encode(), now)
    if (key := _own_key()) is not None:
        archive.text("secret.key", key.encode(), now)
    with tempfile.NamedTemporaryFile(dir=beside, prefix=".berth-", suffix=".dump") as dump:
        same = ("--format=custom", "--compress=0", "--no-owner", "--no-privileges")
        run_tool("pg_dump", *same, f"--snapshot={snapshot}", f"--file={dump.name}")
        archive.file(Path(dump.name), "database.dump")
    for folder in FOLDERS:
        for path in sorted((data / folder).rglob("*")):
            if path.is_file() and not path.is_symlink():
                with contextlib.suppress(FileNotFoundError):  # an old log may go meanwhile
                    archive.file(path, str(path.relative_to(data)))
    archive.close(now)


def _own_key() -> str | None:
    """The data folder's key, when that is the one in use."""
    path = settings.BERTH_DATA / "secret.key"
    key = path.read_text(encoding="ascii").strip() if path.exists() else ""
    return key if key and key == settings.SECRET_KEY else None


# --- restore ----------------------------------------------------------------------------------------------------------
def restore(source: Path, *, replace: bool) -> dict[str, Any]:
    """Put the backup into this panel, which must not run; its manifest. Raises BackupError and changes nothing then."""
    try:
        path = source.expanduser()
        manifest = _manifest(backup_proof.manifest(path))
        backup_proof.check(path, room())
        with tarfile.open(path, "r:gz") as archive:
            _check_key(archive, manifest)
            with database():
                _check_empty(replace)
                _check_unused()
                _bring_in(archive, manifest)
            return manifest
    except backup_proof.Changed as exc:
        raise BackupError(
            "backup_changed",
            _("%(path)s was cut or changed after it was made (%(what)s)."),
            _("Nothing was restored. Use another copy of it, or an earlier backup."),
            params={"path": source, "what": exc},
        ) from exc
    except backup_proof.TooLarge as exc:
        params = {"path": source, "size": filesizeformat(exc.bytes), "free": filesizeformat(room())}
        raise BackupError(
            "backup_too_large",
            _("%(path)s needs at least %(size)s when it is unpacked; %(free)s are free here."),
            _("Nothing was restored. Free some space, or put the data folder on a larger disk (BERTH_DATA)."),
            params=params,
        ) from exc
    except (OSError, tarfile.TarError, EOFError, zlib.error) as exc:
        raise BackupError(
            "backup_read", _("%(path)s cannot be read: %(why)s."), params={"path": source, "why": exc}
        ) from exc


def room() -> int:
    """Bytes that a backup may take here when it is unpacked."""
    return max(0, shutil.disk_usage(settings.BERTH_DATA).free - KEPT_FREE)


def _manifest(raw: bytes) -> dict[str, Any]:
    from django.db.migrations.loader import MigrationLoader

    try:
        manifest: dict[str, Any] = json.loads(raw)
    except (ValueError, RecursionError):
        manifest = {}
    if not isinstance(manifest, dict) or manifest.get("format") not in READABLE:
        raise BackupError("backup_foreign", _("This file is no backup that this version of Berth can read."))
    ours = {f"{app}.{name}" for app, name in MigrationLoader(None).disk_migrations}
    if unknown := sorted(set(manifest["migrations"]) - ours):
        raise BackupError(
            "backup_newer",
            _("The backup was made by Berth %(version)s, which is newer: it has %(names)s."),
            _("Install that version and restore there."),
            params={"version": manifest["berth"], "names": ", ".join(unknown[:3])},
        )
    return manifest


def _check_key(archive: tarfile.TarFile, manifest: dict[str, Any]) -> None:
    """Without its key the backup's stored secrets could not be opened."""
    carries = "secret.key" in archive.getnames()
    if (env.raw("BERTH_SECRET_KEY") or not carries) and fingerprint(settings.SECRET_KEY) != manifest["key"]:
        raise BackupError(
            "backup_key",
            _("The backup belongs to another secret key."),
            _("Set BERTH_SECRET_KEY to the one of the panel that made it.")
            if not carries
            else _("Leave BERTH_SECRET_KEY unset, or set it to the one of the panel that made it."),
        )


def _check_empty(replace: bool) -> None:
    """What people made here is not thrown away by mistake."""
    if replace or not applied():
        return
    with own_connection() as connection:
        row = connection.execute("SELECT count(*) FROM accounts_user").fetchone()
    if row and row[0]:
        raise BackupError(
            "backup_not_empty",
            _("This panel is in use: it has %(count)s accounts."),
            _("Restore into an empty one, or say --replace to throw away what is here."),
            params={"count": row[0]},
        )


def _check_unused() -> None:
    """Web and workers that run as processes of their own hold no lock, but a connection."""
    end = time.monotonic() + GONE_S  # the server may take a moment to end a connection that was closed, also our own
    while (count := _connections()) and time.monotonic() < end:
        time.sleep(0.1)
    if count:
        raise BackupError(
            "backup_in_use",
            _("The database is in use: %(count)s connections."),
            _("Stop web and workers first; engines go on."),
            params={"count": count},
        )


def _connections() -> int:
    """How many others there are to this database."""
    with own_connection() as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        ).fetchone()
    return row[0] if row else 0


def _bring_in(archive: tarfile.TarFile, manifest: dict[str, Any]) -> None:
    data: Path = settings.BERTH_DATA
    with tempfile.TemporaryDirectory(dir=data, prefix=".restore-") as name:
        aside = Path(name)
        archive.extract("database.dump", aside, filter="data")
        # All files before the database: a disk that gets full must not leave half of each.
        files = [entry for entry in archive.getmembers() if _wanted(entry)]
        archive.extractall(aside, files, filter="data")
        _replace_database(aside / "database.dump", manifest.get("tables"))
        for file in dict.fromkeys(entry.name for entry in files):
            (data / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(aside / file, data / file)
    if not env.raw("BERTH_SECRET_KEY") and "secret.key" in archive.getnames():
        key = archive.extractfile("secret.key")
        if key is not None:
            _put_key(data / "secret.key", key.read(MOST_KEY))


def _wanted(entry: tarfile.TarInfo) -> bool:
    parts = entry.name.split("/")
    return entry.isfile() and parts[0] in FOLDERS and ".." not in parts


def _replace_database(dump: Path, tables: backup_proof.Tables | None = None) -> None:
    """All or nothing: what is here steps aside and comes back when the dump cannot be read, or gives other rows."""
    _statement(f"DROP SCHEMA IF EXISTS {ASIDE} CASCADE")
    _statement(f"ALTER SCHEMA public RENAME TO {ASIDE}")
    try:
        _statement("CREATE SCHEMA public")
        run_tool("pg_restore", "--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction", str(dump))
        if tables is not None and (wrong := backup_proof.differing(tables, backup_proof.sums())):
            text = _("After the restore these tables are not what they were: %(names)s.")
            hint = _("What was here before is here again. Use another copy of the file, or an earlier backup.")
            raise BackupError("backup_differs", text, hint, params={"names": ", ".join(wrong[:6])})
    except BaseException:
        _statement("DROP SCHEMA IF EXISTS public CASCADE")
        _statement(f"ALTER SCHEMA {ASIDE} RENAME TO public")
        raise
    _statement(f"DROP SCHEMA {ASIDE} CASCADE")


def _statement(text: str) -> None:
    with own_connection() as connection:
        connection.execute("SET statement_timeout = 0")
        connection.execute(text)  # type: ignore[arg-type]  # constants of this module


def _put_key(path: Path, key: bytes) -> None:
    draft = path.with_name(".secret.restored")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(key)
    draft.rename(path)


def go_ahead() -> None:
    """Hosts saw orders that this database does not know: its next ones count only with a higher number than theirs."""
    from django.db.models import F

    from panel.fleet.models import Host

    Host.objects.update(work_rev=F("work_rev") + AHEAD)
