"""Live streams on a real web process: no database connection held, one broker connection for all, an end in time."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from django.db import connection
from django.test import Client

from panel.accounts import sessions
from panel.core import sse
from tests.servers import Servers
from tests.web import Web, web_process

APP = "tests.core.live_app:application"


@pytest.fixture
def web(transactional_db: None, servers: Servers, broker: Any, tmp_path: Any) -> Iterator[Web]:
    with web_process(servers, tmp_path, APP) as running:
        yield running


@pytest.fixture
def cookie(transactional_db: None, client: Any, django_user_model: Any) -> dict[str, str]:
    client.force_login(django_user_model.objects.create_user("mina"))
    return {name: morsel.value for name, morsel in client.cookies.items()}


class Page:
    """An open stream, read event by event."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def next(self) -> tuple[str, dict[str, Any]]:
        name, data = "", ""
        for line in self._lines:
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                data = line[6:]
            elif not line and name:
                return name, json.loads(data)
        raise EOFError


@contextmanager
def opened(web: Web, path: str, cookie: dict[str, str]) -> Iterator[Page]:
    limits = httpx.Limits(max_connections=None)
    with (
        httpx.Client(base_url=web.url, cookies=cookie, timeout=10, limits=limits, trust_env=False) as http,
        http.stream("GET", path) as response,
    ):
        yield Page(response)


def backends() -> int:
    """Connections of others to the test database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return int(cursor.fetchone()[0]) - 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_open_streams_hold_no_database_connection(web: Web, cookie: dict[str, str], kind: str) -> None:
    """More streams than the pool has connections, and an ordinary page still answers at once."""
    before = backends()  # this process's own pool may hold some
    with ExitStack() as stack:
        pages = [stack.enter_context(opened(web, f"/{kind}/job:{n}", cookie)) for n in range(20)]
        assert [page.next()[0] for page in pages] == ["hello"] * 20
        began = time.monotonic()
        assert httpx.get(f"{web.url}/who", cookies=cookie, timeout=5, trust_env=False).text == "mina"
        assert time.monotonic() - began < 2
        assert backends() <= before + 2


def test_one_broker_connection_serves_all_streams(web: Web, cookie: dict[str, str], broker: Any) -> None:
    with ExitStack() as stack:
        pages = [stack.enter_context(opened(web, f"/sync/job:{n}", cookie)) for n in range(6)]
        for page in pages:
            page.next()
        assert dict(broker.pubsub_numsub("berth:live:job", "berth:live:all")) == {
            b"berth:live:job": 1,
            b"berth:live:all": 1,
        }
        assert len(broker.client_list(_type="pubsub")) == 1
        sse.publish("job:3", "changed", {"state": "ready"})
        sse.publish("all")
        assert pages[3].next() == ("changed", {"state": "ready", "topic": "job:3"})
        assert pages[3].next() == ("changed", {"topic": "all"})
        assert pages[0].next() == ("changed", {"topic": "all"})


def test_stream_needs_a_signed_in_person(web: Web) -> None:
    assert httpx.get(f"{web.url}/sync/job:1", trust_env=False).status_code == 401
    assert httpx.get(f"{web.url}/async/job:1", trust_env=False).status_code == 401


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_streams_of_one_person_end_when_that_person_may_no_more(
    web: Web, cookie: dict[str, str], django_user_model: Any, kind: str
) -> None:
    client = Client()
    client.force_login(django_user_model.objects.create_user("olaf"))
    other = {name: morsel.value for name, morsel in client.cookies.items()}
    mina = django_user_model.objects.get(username="mina")
    with opened(web, f"/{kind}/job:1", cookie) as hers, opened(web, f"/{kind}/job:1", other) as his:
        assert (hers.next()[0], his.next()[0]) == ("hello", "hello")
        sessions.end_all(mina, actor=mina)
        assert hers.next()[0] == "bye"
        with pytest.raises(EOFError):
            hers.next()
        sse.publish("job:1")
        assert his.next()[0] == "changed"
    assert httpx.get(f"{web.url}/sync/job:1", cookies=cookie, trust_env=False).status_code == 401


def test_headers_keep_proxies_and_browsers_from_storing_it(web: Web, cookie: dict[str, str]) -> None:
    with opened(web, "/sync/job:1", cookie) as page:
        assert page.response.headers["content-type"] == "text/event-stream"
        assert page.response.headers["cache-control"] == "no-store"
        assert page.response.headers["x-accel-buffering"] == "no"


def test_term_ends_open_streams_at_once(web: Web, cookie: dict[str, str]) -> None:
    with opened(web, "/sync/job:1", cookie) as one, opened(web, "/async/job:2", cookie) as two:
        one.next(), two.next()
        assert web.stop() < 2.5, "it waited for its grace of 3 s"
        with pytest.raises(EOFError):
            one.next()
        with pytest.raises(EOFError):
            two.next()
    assert "Traceback" not in web.log.read_text()


def test_a_page_that_left_is_forgotten(web: Web, cookie: dict[str, str], broker: Any) -> None:
    """The reader count in the broker does not grow, and the process says nothing of a broken pipe."""
    for n in range(5):
        with opened(web, f"/sync/job:{n}", cookie) as page:
            page.next()
    for n in range(50):
        sse.publish("all", "changed", {"n": n})
    with opened(web, "/sync/job:9", cookie) as page:
        page.next()
        assert len(broker.client_list(_type="pubsub")) == 1
    assert web.stop() < 2.5
    assert "Traceback" not in web.log.read_text()


# --- the hub in this process ------------------------------------------------------------------------------------------


@pytest.fixture
async def hub(broker: Any) -> Any:
    yield sse.hub
    await sse.hub.aclose()


async def test_events_reach_only_their_topic(hub: sse.Hub) -> None:
    async with hub.subscribe(["job:1"]) as one, hub.subscribe(["job:2", "hosts"]) as two:
        sse.publish("job:1", "log", {"offset": 0, "end": 3, "text": "ä\n"})
        sse.publish("hosts")
        event = await one.next(5)
        assert event is not None
        assert (event.name, json.loads(event.data)["text"]) == ("log", "ä\n")
        event = await two.next(5)
        assert event is not None and event.topic == "hosts"
        assert await one.next(0.05) is None


async def test_slow_reader_loses_the_oldest_and_is_told(hub: sse.Hub) -> None:
    async with hub.subscribe(["job:1"]) as slow, hub.subscribe(["job:1"]) as quick:
        total = sse.MAX_EVENTS + 57
        for n in range(total):
            sse.publish("job:1", "changed", {"n": n})
            assert await quick.next(5) is not None  # the quick one gets each, so all have arrived
        first = await slow.next(5)
        assert first is not None and first.name == "skipped" and json.loads(first.data) == {"n": 57}
        numbers = []
        while event := await slow.next(0.05):
            numbers.append(json.loads(event.data)["n"])
        assert numbers == list(range(57, total))


async def test_waiting_bytes_are_bounded_too(hub: sse.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_BYTES", 10_000)
    reader = sse.Subscription(frozenset(["job:1"]))
    for n in range(100):
        reader.put(sse.Event("job:1", "log", json.dumps({"n": n, "text": "x" * 990})))
    assert sum(len(e.data) for e in reader._events) <= 10_000
    event = await reader.next(1)
    assert event is not None and event.name == "skipped"


async def test_the_urgent_word_is_read_first_and_never_lost(hub: sse.Hub) -> None:
    reader = sse.Subscription(frozenset(["job:1", "person:7"]), urgent="person:7")
    reader.put(sse.Event("person:7", "changed", "{}"))
    for n in range(3 * sse.MAX_EVENTS):
        reader.put(sse.Event("job:1", "log", json.dumps({"n": n})))
    event = await reader.next(1)
    assert event is not None and event.topic == "person:7"
    assert (await reader.next(1)).name == "skipped"  # type: ignore[union-attr]


async def test_same_word_twice_waits_once(hub: sse.Hub) -> None:
    reader = sse.Subscription(frozenset(["hosts"]))
    for _ in range(5):
        reader.put(sse.Event("hosts", "changed", "{}"))
    assert await reader.next(1) is not None
    assert await reader.next(0.01) is None


async def test_wait_reads_everything(hub: sse.Hub) -> None:
    async with hub.subscribe(["work:1"]) as news:
        assert await news.wait(0.02) is False
        sse.publish("work:1")
        sse.publish("work:1", data={"n": 2})
        assert await news.wait(5) is True
        await asyncio.sleep(0)
        while await news.wait(0.05):
            pass


async def test_broker_that_dropped_us_is_found_again(hub: sse.Hub, broker: Any) -> None:
    """After a broken connection readers are told that they may have missed something, and events come again."""
    async with hub.subscribe(["job:1"]) as reader:
        broker.client_kill_filter(_type="pubsub")
        event = await reader.next(10)
        assert event is not None and event.name == "skipped"
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            sse.publish("job:1", "changed", {"n": 1})
            event = await reader.next(0.2)
            if event and event.name == "changed":
                return
        raise AssertionError("no event after the reconnection")


async def test_new_family_joins_the_open_connection(hub: sse.Hub, broker: Any) -> None:
    async with hub.subscribe(["job:1"]), hub.subscribe(["deployment:4"]) as late:
        sse.publish("deployment:4", "changed", {"state": "ready"})
        assert await late.next(5) is not None
        assert len(await asyncio.to_thread(broker.client_list, _type="pubsub")) == 1


async def test_connection_closes_some_time_after_the_last_reader(
    hub: sse.Hub, broker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "LINGER_S", 0.05)
    async with hub.subscribe(["job:1"]):
        pass
    deadline = time.monotonic() + 5
    while await asyncio.to_thread(broker.client_list, _type="pubsub"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    async with hub.subscribe(["job:1"]) as again:
        sse.publish("job:1")
        assert await again.next(5) is not None


async def test_stop_wakes_everyone(hub: sse.Hub) -> None:
    async with hub.subscribe(["work:1"]) as news:
        asyncio.get_running_loop().call_later(0.05, hub.stop)
        with pytest.raises(sse.Stopping):
            await news.wait(10)


def test_publish_without_a_broker_never_raises(settings: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.REDIS_URL = f"unix://{tmp_path}/nobody.sock"
    monkeypatch.setattr(sse, "_broker", None)
    monkeypatch.setattr(sse, "_down_until", 0.0)
    assert sse.publish("job:1") is False
    began = time.monotonic()
    assert sse.publish("job:1") is False
    assert time.monotonic() - began < 0.01, "after a failure it does not try each time"


async def test_subscribe_without_a_broker_does_not_hang(settings: Any, tmp_path: Any) -> None:
    settings.REDIS_URL = f"unix://{tmp_path}/nobody.sock"
    began = time.monotonic()
    async with sse.hub.subscribe(["work:1"]) as news:
        assert await news.wait(0.05) is False
    assert time.monotonic() - began < 3
    await sse.hub.aclose()
