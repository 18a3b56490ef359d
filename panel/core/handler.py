"""Django's handler for views that wait for nothing but the database: one hop into a thread for a whole request.

Django's own one asks each piece of middleware in a turn of its own, twenty hops for a page: a third of every answer.
Views and middleware are sync here; streams come out of sync views and are sent by the event loop.
"""

from typing import Any

import django
from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.base import BaseHandler


class OneHop(ASGIHandler):
    """Everything between the request and its answer runs in the request's one thread."""

    def __init__(self) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)

    async def get_response_async(self, request: Any) -> Any:
        # Sensitive to the thread: what a stream does first must meet the database connection that its view used.
        return await sync_to_async(self.get_response, thread_sensitive=True)(request)


def application() -> OneHop:
    """What django.core.asgi.get_asgi_application() makes, with this handler."""
    django.setup(set_prefix=False)
    return OneHop()
