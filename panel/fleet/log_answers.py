"""A job's stored log as answers: a part by offset, and the whole as a file. The views have checked the right."""

import uuid
from collections.abc import AsyncIterator

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse

from panel.core.errors import Invalid
from panel.fleet import logstore


def part(request: HttpRequest, job_id: uuid.UUID) -> HttpResponse:
    """Bytes from `?offset=` on (`?limit=` of them at most), as text; from the end when it is negative.

    X-Log-Start tells where they begin (later than asked after a gap), X-Log-Size how many there are.
    """
    try:
        offset, limit = int(request.GET.get("offset", 0)), int(request.GET.get("limit", logstore.MAX_READ))
    except ValueError as exc:
        raise Invalid({"offset": "offset is a number of bytes"}) from exc
    found = logstore.read(job_id, offset if offset >= 0 else logstore.tail_offset(job_id, -offset), limit)
    answer = HttpResponse(found.data, content_type="text/plain; charset=utf-8")
    answer["X-Log-Start"], answer["X-Log-Size"] = str(found.start), str(found.size)
    answer["X-Content-Type-Options"] = "nosniff"
    answer["Cache-Control"] = "no-store"
    return answer


def removed(gap: int) -> bytes:
    """What the file says in the place of bytes that are not kept; two lines, as who counts its lines must know."""
    return f"\n[{gap} bytes were removed here to bound the log]\n".encode()


def whole(job_id: uuid.UUID, name: str) -> StreamingHttpResponse:
    """The whole stored log as a file `name`; what the disk bound removed is marked in its place."""

    async def parts() -> AsyncIterator[bytes]:
        offset = 0  # asynchronous, since Django would first collect all that a plain iterator gives
        while (found := await sync_to_async(logstore.read)(job_id, offset)).data:
            if found.gap:
                yield removed(found.gap)
            yield found.data
            offset = found.end

    answer = StreamingHttpResponse(parts(), content_type="text/plain; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer
