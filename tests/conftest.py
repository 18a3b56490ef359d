"""For all tests: servers that start when the first test asks for a database, and no way out to the network.

Fixtures: `servers` (both servers, started once), `broker` (an emptied Valkey; a redis.Redis), and pytest-django's
`db`, `transactional_db`, `client` …, which start the servers by themselves.
"""

import ipaddress
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers import Servers

REQUIRE_ALL = os.environ.get("BERTH_TEST_ALL") == "1"


# --- servers --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """PostgreSQL and Valkey; the Django settings and the Celery app of this process point to them."""
    from django.conf import settings

    from panel.celery import app
    from panel.core.services_urls import redis_urls

    running = Servers.start()
    with_memory(running.redis_url)
    settings.HF_ENDPOINT = settings.BERTH_MODELSCOPE_ENDPOINT = "http://127.0.0.1:1"  # no hub, unless a test has one
    settings.DATABASES["default"].update(running.database_settings())
    settings.REDIS_URL, settings.CELERY_BROKER_URL = redis_urls(running.redis_url, settings.BERTH_DATA)
    app.conf.broker_url = settings.CELERY_BROKER_URL
    try:
        yield running
    finally:
        running.stop()


def with_memory(redis_url: str) -> None:
    """As if the broker had run for long: in one that has just begun, no host's silence counts yet."""
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.set("berth:fleet:since", 0)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(django_db_modify_db_settings_parallel_suffix: None, servers: Servers) -> None:
    """pytest-django asks for this just before it makes the test database: only then are servers needed."""


@pytest.fixture(autouse=True)
def language() -> Iterator[None]:
    """A page asked for in Chinese leaves this thread in Chinese; the next test begins in English."""
    yield
    from django.utils import translation

    translation.deactivate()


def _may_be_emptied(word: str) -> str:
    """Switch the trigger of the record's table and of its months that refuses TRUNCATE."""
    return f"""DO $$ DECLARE part regclass; BEGIN
        FOR part IN SELECT relid FROM pg_partition_tree('audit_event') LOOP
            EXECUTE format('ALTER TABLE %s {word} TRIGGER audit_no_truncate', part);
        END LOOP;
    END $$"""


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """The test database may be emptied between tests, which the audit's trigger refuses elsewhere."""
    from django.db import connection

    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(_may_be_emptied("DISABLE"))


@pytest.fixture(scope="session", autouse=True)
def _tables_can_be_emptied() -> Iterator[None]:
    """The record of acts refuses TRUNCATE, with which Django empties all tables after a `transactional_db` test."""
    from django.db.backends.postgresql.operations import DatabaseOperations

    original = DatabaseOperations.sql_flush
    patch = pytest.MonkeyPatch()

    def sql_flush(self: Any, style: Any, tables: Any, **options: Any) -> list[str]:
        statements = original(self, style, tables, **options)
        if "audit_event" not in tables or not statements:
            return statements
        return [_may_be_emptied("DISABLE"), *statements, _may_be_emptied("ENABLE")]

    patch.setattr(DatabaseOperations, "sql_flush", sql_flush)
    yield
    patch.undo()


@pytest.fixture
def broker(servers: Servers) -> Iterator[Any]:
    """An empty Valkey, as a redis.Redis that is closed at the end."""
    import redis

    client = redis.Redis.from_url(servers.redis_url)
    client.flushall()
    with_memory(servers.redis_url)
    yield client
    client.close()


# --- no network -----------------------------------------------------------------------------------------------------
class NetworkBlocked(RuntimeError):
    """A test tried to leave this machine. RuntimeError, so that code which forgives OSError does not hide it."""


def _is_local(host: Any) -> bool:
    if isinstance(host, bytes):
        host = host.decode()
    if host in (None, "", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(str(host).split("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Sockets reach this machine only, and names of others are not looked up."""
    patch = pytest.MonkeyPatch()

    def guarded(original: Any) -> Any:
        def connect(self: socket.socket, address: Any, *args: Any) -> Any:
            if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_local(address[0]):
                raise NetworkBlocked(f"A test tried to connect to {address!r}.")
            return original(self, address, *args)

        return connect

    look_up = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_local(host):
            raise NetworkBlocked(f"A test tried to look up {host!r}.")
        return look_up(host, *args, **kwargs)

    patch.setattr(socket.socket, "connect", guarded(socket.socket.connect))
    patch.setattr(socket.socket, "connect_ex", guarded(socket.socket.connect_ex))
    patch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield
    patch.undo()


# --- parts that may be absent ---------------------------------------------------------------------------------------
SERVERS = {"servers", "broker", "db", "transactional_db", "live_server"}
SLOW = ("tests/e2e/", "tests/browser/", "tests/engine/", "tests/panel/test_up.py", "tests/panel/test_embedded.py")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what asks for servers, and what starts whole process trees; run the cheap tests first."""
    for item in items:
        if SERVERS & set(getattr(item, "fixturenames", ())) or item.get_closest_marker("django_db"):
            item.add_marker(pytest.mark.integration)
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    items.sort(key=_cost)


def _cost(item: pytest.Item) -> int:
    """Order of a run: no servers, servers, process trees, browser, engine."""
    if item.get_closest_marker("engine") or item.nodeid.startswith("tests/engine/"):
        return 4
    if item.nodeid.startswith("tests/browser/"):
        return 3
    return 2 if item.get_closest_marker("slow") else 1 if item.get_closest_marker("integration") else 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """With BERTH_TEST_ALL=1 nothing may be left out: a skipped test fails and says why it was skipped."""
    report: pytest.TestReport = yield
    if REQUIRE_ALL and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"left out although BERTH_TEST_ALL=1: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say loudly what was left out: nobody should take a green line for more than it is."""
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        terminalreporter.write_line(f"LEFT OUT: {report.nodeid}: {reason}", red=True, bold=True)
