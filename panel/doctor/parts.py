"""What the doctor looks at of the running panel: web, database, clocks, message server, workers, the loop's pace."""

import http.client
import secrets
import time
from datetime import timedelta

from django.conf import settings
from django.db import connection
from django.utils import timezone
from django.utils.translation import gettext as _

from panel.children import OwnerLock
from panel.core import checks, env, network
from panel.core.checks import NotReady
from panel.doctor import Check, Idle

QUEUES = ("loop", "probe")
ANSWER_S = 3.0
SKEW_S = 5.0  # between this machine and the database's: leases count by the one, deadlines by the other
BEHIND = timedelta(seconds=60)  # past a deadline without anyone moving on


def running() -> int | None:
    """Pid of the `up` that owns this data folder."""
    return OwnerLock(settings.BERTH_DATA / "up.lock").owner()


def log_of(name: str) -> str:
    return _("Its log is %(log)s.") % {"log": settings.BERTH_DATA / "log" / f"{name}.log"}


def needs_up(name: str) -> None:
    """An embedded server lives only while `up` does."""
    if not env.raw(name) and running() is None:
        raise Idle(_("embedded, not running; `make up` starts it"))


def needs_tables() -> None:
    """Rows can be asked only where the database answers and is of this version; another finding says what it lacks."""
    needs_up("DATABASE_URL")
    try:
        checks.database_answers()
        waiting = checks.pending_migrations()
    except NotReady:
        raise Idle(_("cannot be looked up without the database")) from None
    if waiting:
        raise Idle(_("cannot be looked up before the migrations are applied"))


def web() -> str:
    address = f"{network.bracketed(settings.BERTH_BIND_HOST)}:{settings.BERTH_PORT}"
    if running() is None:
        checks.port_free(settings.BERTH_BIND_HOST, settings.BERTH_PORT)
        raise Idle(_("not running; the address %(address)s is free. `make up` starts it.") % {"address": address})
    host, _colon, port = settings.BERTH_INTERNAL_URL.rpartition("//")[2].rpartition(":")
    asked = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=5)
    try:
        asked.request("GET", "/healthz")
        status = asked.getresponse().status
    except OSError as exc:
        status = 0
        why = exc.strerror or str(exc)
    else:
        why = f"HTTP {status}"
    finally:
        asked.close()
    if status != 200:
        text = _("The web process does not answer at %(address)s: %(why)s")
        raise NotReady("web_away", text, log_of("web"), params={"address": address, "why": why})
    return settings.BERTH_PUBLIC_URL


def database() -> str:
    needs_up("DATABASE_URL")
    version = checks.database_answers()
    if waiting := checks.pending_migrations():
        raise NotReady(
            "migrations_wait",
            _("%(count)s migrations wait."),
            _("`make up` applies them, or run `manage.py migrate`."),
            params={"count": waiting},
        )
    return _("PostgreSQL %(version)s, all migrations applied") % {"version": version}


def clock() -> str:
    """The database may be on another machine; its clock and ours decide together who has a row, and until when."""
    needs_up("DATABASE_URL")
    try:
        checks.database_answers()
    except NotReady:
        raise Idle(_("cannot be looked up without the database")) from None
    began = time.time()
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())")
        (there,) = cursor.fetchone() or (0.0,)
    off = (began + time.time()) / 2 - float(there)
    if abs(off) > SKEW_S:
        raise NotReady(
            "clock_skew",
            _("The clock of this machine is %(seconds)s s off that of the database's machine."),
            _("Set both right, for example with an NTP service: timedatectl set-ntp true."),
            params={"seconds": f"{off:+.0f}"},
        )
    return _("as the database's")


def broker() -> str:
    """It answers, and takes what it is given: one that is full, or a copy that only reads, answers as well."""
    import redis

    needs_up("REDIS_URL")
    version = checks.broker_answers()
    client = redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)
    key = f"berth:doctor:{secrets.token_hex(8)}"
    try:
        client.set(key, "1", ex=10)
        client.publish(key, "1")
        client.delete(key)
    except redis.RedisError as exc:
        raise NotReady(
            "broker_refuses",
            _("The message server answers, and takes nothing: %(why)s"),
            _("Look at its memory, its disk, and whether REDIS_URL names the main one and not a copy. Clicks work "
              "meanwhile, more slowly."),
            params={"why": str(exc).splitlines()[0]},
        ) from exc  # fmt: skip
    finally:
        client.close()
    return _("answers and takes messages, version %(version)s") % {"version": version}


def workers() -> str:
    """Each queue has a worker that answers; on any machine that shares the message server."""
    needs_up("REDIS_URL")
    try:
        checks.broker_answers()
    except NotReady:
        raise Idle(_("cannot be asked without the message server")) from None
    names = answering()
    missing = [queue for queue in QUEUES if not any(name.split("@")[0] == queue for name in names)]
    if not missing:
        return ", ".join(sorted(names))
    if running() is None and not names:
        raise Idle(_("none is running; `make up` starts them"))
    text = _("No worker answers for: %(queues)s. Nothing is started or stopped without the loop, nor asked whether it "
             "answers without the probe.")  # fmt: skip
    hint = _("`make up` starts it again by itself unless it hangs: then end that process. %(log)s")
    raise NotReady(
        "worker_away", text, hint, params={"queues": ", ".join(missing), "log": log_of(f"worker-{missing[0]}")}
    )


def answering() -> set[str]:
    """Names of the workers that answer a ping now, such as loop@machine."""
    from celery import Celery

    with Celery("doctor", broker=settings.CELERY_BROKER_URL, set_as_current=False) as app:
        app.conf.broker_transport_options = {"socket_timeout": ANSWER_S, "socket_connect_timeout": ANSWER_S}
        try:
            answers = app.control.ping(timeout=ANSWER_S / 2) or []
        except Exception as exc:  # every broker library has errors of its own; all of them mean the same here
            raise Idle(_("cannot be asked: the message server does not take the question")) from exc
    return {name for answer in answers for name in answer}


def loop() -> str:
    """Every state that passes has a deadline, at which the loop moves on; one long past was forgotten."""
    from deployments.models import Deployment

    needs_tables()
    late = Deployment.objects.filter(deadline_at__lt=timezone.now() - BEHIND).order_by("deadline_at")
    first = late.first()
    if first is None or first.deadline_at is None:
        return _("nothing is past its deadline")
    if running() is None and not answering():
        raise Idle(_("none is running; `make up` starts them"))
    raise NotReady(
        "loop_behind",
        _("%(count)s deployments are past their deadline, the longest by %(seconds)s s (%(name)s)."),
        _("Look at the workers above. %(log)s"),
        params={
            "count": late.count(),
            "seconds": round((timezone.now() - first.deadline_at).total_seconds()),
            "name": first.name,
            "log": log_of("worker-loop"),
        },
    )


CHECKS: list[tuple[str, Check]] = [
    ("web", web),
    ("database", database),
    ("clock", clock),
    ("message server", broker),
    ("workers", workers),
    ("loop", loop),
]
