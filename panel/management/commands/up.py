"""Everything in one process tree: database, broker, web, workers and the agent of this machine."""

import threading
import time
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connection
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from panel import forked
from panel.children import AlreadyHeld, OwnerLock
from panel.core import checks, env, network, sse
from panel.embedded import Embedded
from panel.supervisor import Tree, load_programs, programs

WEB_READY_S = 120.0


class Command(BaseCommand):
    help = "Start the panel: database, broker, web, workers and the local agent. Ctrl-C stops all but running engines."
    requires_system_checks = []

    def handle(self, *args: Any, **options: Any) -> None:
        begin = time.monotonic()
        data: Path = settings.BERTH_DATA
        checks.folder_writable(data)
        lock = OwnerLock(data / "up.lock")
        self._take(lock)
        checks.port_free(settings.BERTH_BIND_HOST, settings.BERTH_PORT)
        tree = Tree(self.say)
        tree.until_told()
        embedded = Embedded(data, postgres=not env.raw("DATABASE_URL"), valkey=not env.raw("REDIS_URL"))
        try:
            self._start(tree, embedded, data)
            self._greet(time.monotonic() - begin)
            tree.watch()
        except KeyboardInterrupt:
            self.say(_("Stopping …"))
        finally:
            running = self._running_engines() if tree.children else 0
            tree.stop()
            embedded.stop()
            lock.release()
        self.say(self._farewell(running))

    def say(self, text: str) -> None:
        try:
            self.stdout.write(text)
            self.stdout.flush()
        except OSError:  # the terminal is gone; stopping goes on
            return

    def _take(self, lock: OwnerLock) -> None:
        try:
            lock.take()
        except AlreadyHeld as held:
            raise checks.NotReady(
                "already_up",
                _("Berth already runs in %(folder)s (process %(pid)s)."),
                _("Open %(url)s, or stop it with `make down`."),
                params={"folder": settings.BERTH_DATA, "pid": held.pid, "url": settings.BERTH_PUBLIC_URL},
            ) from None

    def _start(self, tree: Tree, embedded: Embedded, data: Path) -> None:
        from panel.accounts.services import first_admin_link

        if env.raw("DATABASE_URL"):
            checks.database_answers()
        if env.raw("REDIS_URL"):
            checks.broker_answers()
        # Beside the servers' start; it has ended before the first copy is made.
        loading = threading.Thread(target=load_programs, name="loading")
        loading.start()
        embedded.start()
        tree.add(embedded.servers, started=True)
        if waiting := checks.pending_migrations():
            self.say(_("Preparing the database (%(count)s steps) …") % {"count": waiting})
            call_command("migrate", verbosity=0, interactive=False)
        if settings.BERTH_LOCAL_AGENT:
            from panel.fleet.services import ensure_local_host

            ensure_local_host(data / "agent")
        self.link = first_admin_link()  # None once there is an admin
        _let_go_of_servers()
        loading.join()
        forked.settle()
        web, *others = programs(settings, data)
        tree.add([web])  # alone, so that the first page does not wait for the imports of the others
        web.wait_ready(time.monotonic() + WEB_READY_S)
        tree.add(others)

    def _greet(self, seconds: float) -> None:
        self.say(_("Berth is ready after %(seconds).1f s:  %(url)s") % self._facts(seconds=seconds))
        host, port = settings.BERTH_BIND_HOST, settings.BERTH_PORT
        others = network.other_urls(host, port) if network.public_url(host, port) == settings.BERTH_PUBLIC_URL else []
        if others:  # a machine's name is not known everywhere
            self.say(_("The same by number:  %(urls)s") % {"urls": "  ".join(others)})
        if self.link:
            self.say(_("Create the first admin (this link works once):  %(link)s") % self._facts(link=self.link))
        if not network.is_loopback(settings.BERTH_BIND_HOST) and not settings.SESSION_COOKIE_SECURE:
            self.say(_("Passwords travel unencrypted. Put a proxy with TLS in front and set BERTH_URL to it."))
        self.say(_("Ctrl-C stops it; running engines go on. Logs: %(logs)s") % self._facts())

    def _facts(self, **more: Any) -> dict[str, Any]:
        return {"url": settings.BERTH_PUBLIC_URL, "logs": settings.BERTH_DATA / "log", **more}

    def _running_engines(self) -> int:
        """How many runs are under way; 0 when the database can no longer say."""
        from django.db import DatabaseError

        from deployments.models import Run

        try:
            return Run.objects.filter(ended_at=None).count()
        except DatabaseError:
            return 0
        finally:
            _let_go_of_servers()

    def _farewell(self, running: int) -> str:
        if not running:
            return _("Stopped.")
        text = ngettext(
            "Stopped. %(count)s engine goes on running; `make down` stops it too.",
            "Stopped. %(count)s engines go on running; `make down` stops them too.",
            running,
        )
        return text % {"count": running}


def _let_go_of_servers() -> None:
    """This process hardly needs them; a copy of it (panel/forked.py) that closes a connection closes it for both."""
    connection.close()  # which closing the pool does not do: it is lent to this thread
    connection.close_pool()
    sse.let_go_of_broker()
