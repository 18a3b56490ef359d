"""What the panel and its door are measured by: a bare Starlette that takes JSON and gives JSON."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def answer(request: Request) -> JSONResponse:
    """A small object; what was sent comes back with it."""
    sent = await request.json() if request.method == "POST" else None
    return JSONResponse({"id": 1, "object": "chat.completion", "text": "Paris", "sent": sent})


app = Starlette(routes=[Route("/json", answer, methods=["GET", "POST"])])
