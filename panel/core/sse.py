"""Live events: published by any process through the broker, fanned out to the open pages of a web process.

A topic names a thing ("job:5f…", "deployments"); the word before its colon is its family. One broker channel carries a
family, and one connection per web process (per event loop) subscribes to the families that its pages ask for, however
many pages are open. Delivery is best effort: an event says "look again", the database holds the truth.

A reader that is slower than the events loses the oldest ones and is told so (`skipped`), then it looks again.
"""

import asyncio
import contextlib
import json
import logging
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any

import redis
import redis.asyncio
import redis.backoff
import redis.retry
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections
from django.http import HttpRequest, StreamingHttpResponse
from django.utils.translation import gettext_lazy as _

from panel.core.errors import PanelError
from panel.core.stopping import when_server_stops

log = logging.getLogger(__name__)

CHANNEL = "berth:live:"
MAX_EVENTS, MAX_BYTES = 200, 1 << 20  # what waits for one slow reader at most
HEARTBEAT_S = 15.0  # keeps proxies from closing a quiet stream, and tells the page that it is still connected
LIFE_S = 600.0  # then the page connects again, and the person's rights are looked at anew
LINGER_S = 20.0  # the connection outlives the last reader a little: people walk from page to page
CONFIRM_S = 1.0  # how long a new reader waits for the broker's word
DOWN_S = 2.0  # after a failed publish, how long no other is tried


class Stopping(PanelError):
    """The web process is on its way out; whoever waits here asks again elsewhere."""

    code = "web.stopping"
    message = _("The panel is restarting.")
    status = 503


@dataclass(frozen=True)
class Event:
    topic: str
    name: str
    data: str  # JSON

    def frame(self) -> bytes:
        return f"event: {self.name}\ndata: {self.data}\n\n".encode()


# --- publishing: any process, any thread ----------------------------------------------------------------------------

_broker: redis.Redis | None = None
_broker_lock = threading.Lock()
_down_until = 0.0


def broker() -> redis.Redis:
    """This process's client for what must not wait: a second at most, without a pause between two tries."""
    global _broker
    with _broker_lock:
        if _broker is None:
            once_more = redis.retry.Retry(redis.backoff.NoBackoff(), 1)  # for a connection that an earlier broker left
            _broker = redis.Redis.from_url(
                settings.REDIS_URL, socket_timeout=1, socket_connect_timeout=1, retry=once_more
            )
    return _broker


def let_go_of_broker() -> None:
    """Close its connections; the next word opens one."""
    if _broker is not None:
        _broker.close()


def publish(topic: str, event: str = "changed", data: dict[str, Any] | None = None) -> bool:
    """Tell open pages; never raises. False when the broker is away: pages see the change when they look again."""
    if broker_away():
        return False
    body = json.dumps({"topic": topic, "event": event, "data": {**(data or {}), "topic": topic}})
    try:
        broker().publish(_channel(topic), body)
    except redis.RedisError as exc:
        broker_failed()
        log.warning("live event %s of %s was not sent: %s", event, topic, exc)
        return False
    return True


def broker_away() -> bool:
    """Whether the broker failed this process a moment ago: whoever only sends news need not wait for it again."""
    return time.monotonic() < _down_until


def broker_failed() -> None:
    """Remember that it did not answer in time."""
    global _down_until
    _down_until = time.monotonic() + DOWN_S


def _channel(topic: str) -> str:
    return CHANNEL + topic.partition(":")[0]


# --- readers --------------------------------------------------------------------------------------------------------


class Subscription:
    """What one reader has not read yet; bounded, the oldest goes first. Of the topic `urgent` none is ever lost."""

    def __init__(self, topics: frozenset[str], urgent: str = "", breaks: bool = False) -> None:
        self.topics, self.urgent, self.breaks = topics, urgent, breaks
        self.sure = False  # whether what is published reaches this reader now
        self._urgent: Event | None = None
        self._events: deque[Event] = deque()
        self._bytes = 0
        self._skipped = 0
        self._closed = False
        self._wake = asyncio.Event()

    def put(self, event: Event) -> None:
        if event.topic == self.urgent:
            self._urgent = event
            self._wake.set()
            return
        if self._events and self._events[-1] == event:  # the same word twice says no more
            return
        self._events.append(event)
        self._bytes += len(event.data)
        while len(self._events) > MAX_EVENTS or (self._bytes > MAX_BYTES and len(self._events) > 1):
            self._bytes -= len(self._events.popleft().data)
            self._skipped += 1
        self._wake.set()

    def missed(self) -> None:
        """Events may have passed unseen (the broker was away)."""
        self._skipped += 1
        self._wake.set()

    def close(self) -> None:
        self._closed = True
        self._wake.set()

    async def next(self, timeout: float) -> Event | None:
        """The next event, or None after `timeout` seconds. Raises Stopping when the process ends."""
        if not await self._something(timeout):
            return None
        if self._urgent is not None:
            event, self._urgent = self._urgent, None
            return event
        if self._skipped:
            count, self._skipped = self._skipped, 0
            return Event("", "skipped", json.dumps({"n": count}))
        event = self._events.popleft()
        self._bytes -= len(event.data)
        return event

    async def wait(self, timeout: float) -> bool:
        """True when anything came within `timeout` seconds; all of it is then read. Raises Stopping."""
        came = await self._something(timeout)
        self._events.clear()
        self._bytes = self._skipped = 0
        return came

    async def _something(self, timeout: float) -> bool:
        if not (self._events or self._skipped or self._urgent or self._closed):
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), timeout)
        if self._closed:
            raise Stopping
        return bool(self._events or self._skipped or self._urgent)


class _Line:
    """The one broker connection of an event loop, and its readers."""

    def __init__(self, on_idle: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._on_idle = on_idle
        self.readers: set[Subscription] = set()
        self._by_topic: dict[str, set[Subscription]] = {}
        self._channels: dict[str, asyncio.Event] = {}  # set once the broker has confirmed
        self._lock = asyncio.Lock()
        self._pubsub: redis.asyncio.client.PubSub | None = None
        self._task: asyncio.Task[None] | None = None
        self._was_connected = False
        self._linger: asyncio.TimerHandle | None = None

    async def want(self, channels: Iterable[str]) -> None:
        """Subscribe; waits for the broker's word, but not for ever: without it, readers live by looking again."""
        if self._linger:
            self._linger.cancel()
            self._linger = None
        fresh = [c for c in channels if c not in self._channels]
        self._channels.update({c: asyncio.Event() for c in fresh})
        if self._task is None:
            self._task = self.loop.create_task(self._read(), name="live events")
        elif fresh and self._pubsub is not None:
            async with self._lock:
                with contextlib.suppress(redis.RedisError):  # the reading task connects again and subscribes to all
                    await self._pubsub.subscribe(*fresh)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CONFIRM_S):
                for channel in channels:
                    await self._channels[channel].wait()

    def add(self, reader: Subscription) -> None:
        self.readers.add(reader)
        for topic in reader.topics:
            self._by_topic.setdefault(topic, set()).add(reader)

    def drop(self, reader: Subscription) -> None:
        """A reader left; without readers the connection closes after a while."""
        self.readers.discard(reader)
        for topic in reader.topics:
            here = self._by_topic[topic]
            here.discard(reader)
            if not here:
                del self._by_topic[topic]
        if not self.readers and self._linger is None:
            self._linger = self.loop.call_later(LINGER_S, self._on_idle)

    async def _read(self) -> None:
        pause = 0.2
        while True:
            began = time.monotonic()
            try:
                await self._connected()
            except (redis.RedisError, OSError) as exc:
                pause = 0.2 if time.monotonic() - began > 10 else min(5.0, pause * 2)
                log.warning("live events stopped, trying again in %.1f s: %s", pause, exc)
            await asyncio.sleep(pause)

    async def _connected(self) -> None:
        client = redis.asyncio.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=2, health_check_interval=30)
        try:
            async with client.pubsub() as pubsub:
                async with self._lock:
                    self._pubsub = pubsub  # before the subscription: a channel wanted meanwhile waits for the lock
                    await pubsub.subscribe(*self._channels)
                if self._was_connected:
                    for reader in self.readers:
                        reader.missed()
                self._was_connected = True
                while True:
                    message = await pubsub.get_message(timeout=30)
                    if message:
                        self._take(message)
        finally:
            self._pubsub = None
            for confirmed in self._channels.values():
                confirmed.clear()
            for reader in self.readers:
                reader.sure = False
                if reader.breaks:
                    reader.missed()
            await client.aclose()

    def _take(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            confirmed = self._channels[message["channel"].decode()]
            if confirmed.is_set():  # redis-py connected again by itself
                for reader in self.readers:
                    reader.missed()
            confirmed.set()
            for reader in self.readers:
                reader.sure = self.has({_channel(topic) for topic in reader.topics})
            return
        if message["type"] != "message":
            return
        body = json.loads(message["data"])
        event = Event(body["topic"], body["event"], json.dumps(body["data"], ensure_ascii=False))
        for reader in self._by_topic.get(event.topic, ()):
            reader.put(event)

    def has(self, channels: Iterable[str]) -> bool:
        """Whether the broker has confirmed all of these."""
        return all(self._channels[channel].is_set() for channel in channels)

    def cancel(self) -> None:
        if self._linger:
            self._linger.cancel()
        if self._task is not None:
            self._task.cancel()

    async def aclose(self) -> None:
        self.cancel()
        if self._task is not None:
            await asyncio.wait([self._task])


class Hub:
    """Readers of this process; `hub` is the only one. Each event loop has its own line to the broker."""

    def __init__(self) -> None:
        self._lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = weakref.WeakKeyDictionary()
        self._watched: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

    @contextlib.asynccontextmanager
    async def subscribe(
        self, topics: Iterable[str], urgent: str = "", *, breaks: bool = False
    ) -> AsyncIterator[Subscription]:
        """Read events of these topics; whatever is published after this returned is seen, while the reader is `sure`.

        `breaks`: it wakes when it is not any more.
        """
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            line = self._lines[loop] = _Line(lambda: self._idle(loop))
        if loop not in self._watched:
            self._watched.add(loop)
            when_server_stops(loop, self.stop)
        reader = Subscription(frozenset(topics), urgent, breaks)
        line.add(reader)
        try:
            await line.want(channels := {_channel(topic) for topic in reader.topics})
            reader.sure = line.has(channels)
            yield reader
        finally:
            line.drop(reader)

    def _idle(self, loop: asyncio.AbstractEventLoop) -> None:
        line = self._lines.get(loop)
        if line is not None and not line.readers:
            del self._lines[loop]
            line.cancel()

    def stop(self) -> None:
        """End every stream and wait of this process at once."""
        for line in list(self._lines.values()):
            for reader in line.readers:
                reader.close()

    async def aclose(self) -> None:
        """Close the broker connection of the running loop; a later reader opens another."""
        if line := self._lines.pop(asyncio.get_running_loop(), None):
            await line.aclose()


hub = Hub()


# --- the stream of a page ---------------------------------------------------------------------------------------------


def stream(request: HttpRequest, topics: Iterable[str]) -> StreamingHttpResponse:
    """The answer of a live view, sync or async; the view has checked the person's right before it calls this.

    From the first byte on the request holds no database connection. The page gets `hello` (look now: everything from
    here on is seen), then events as they come, `skipped`, `ping`, and `bye` when it should connect again.
    """
    response = StreamingHttpResponse(_frames(request, tuple(topics)), content_type="text/event-stream")
    response.headers["Cache-Control"] = "no-store"
    response.headers["X-Accel-Buffering"] = "no"
    return response


def person_topic(pk: int | None) -> str:
    """Whoever changes what a person may see publishes here: all their streams end, and their pages ask again."""
    return f"person:{pk}"


def _whose(request: HttpRequest) -> str:
    who = person_topic(request.user.pk)
    # Sync code of one request runs in one thread, so this closes the connection that the view and the middleware used.
    connections.close_all()
    return who


async def _frames(request: HttpRequest, topics: tuple[str, ...]) -> AsyncIterator[bytes]:
    who = await sync_to_async(_whose, thread_sensitive=True)(request)
    end = time.monotonic() + LIFE_S * random.uniform(0.8, 1.2)
    try:
        async with hub.subscribe((*topics, who), urgent=who) as news:
            yield b"event: hello\ndata: {}\n\n"
            while time.monotonic() < end:
                event = await news.next(HEARTBEAT_S)
                if event and event.topic == who:
                    break
                yield event.frame() if event else b"event: ping\ndata: {}\n\n"
            yield b"event: bye\ndata: {}\n\n"
    except Stopping:
        return
