"""What moves on the deployments' pages: the event streams, and logs by offset. No state is decided here."""

import uuid
from collections.abc import AsyncIterator

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.views.decorators.http import require_GET

from deployments import events, queries
from panel.accounts.guard import right
from panel.core import sse
from panel.core.errors import Invalid, NotFound
from panel.fleet import live, logstore


@require_GET
@right("deployments.view")
def all_live(request: HttpRequest) -> StreamingHttpResponse:
    """Changes of any deployment or host, for the list."""
    return sse.stream(request, [events.ALL, live.HOSTS])


@require_GET
@right("deployments.view")
def one_live(request: HttpRequest, pk: int) -> StreamingHttpResponse:
    """Changes of one deployment and the log lines of its newest run."""
    row = queries.one(pk)
    topics = [events.topic(pk)]
    if row.run is not None and row.run.job_id:
        topics.append(live.job_topic(row.run.job_id))
    return sse.stream(request, topics)


def _job_of(run_id: uuid.UUID) -> uuid.UUID:
    run = queries.run(run_id)
    if run.job_id is None:
        raise NotFound
    return run.job_id


@require_GET
@right("deployments.view")
def log_part(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """Bytes from `offset` on, as text. X-Log-Start tells where they begin (later than asked after a gap)."""
    job_id = _job_of(run_id)
    try:
        offset = int(request.GET.get("offset", 0))
    except ValueError as exc:
        raise Invalid({"offset": "offset is a number of bytes"}) from exc
    part = logstore.read(job_id, offset if offset >= 0 else logstore.tail_offset(job_id, -offset))
    answer = HttpResponse(part.data, content_type="text/plain; charset=utf-8")
    answer["X-Log-Start"], answer["X-Log-Size"] = str(part.start), str(part.size)
    answer["X-Content-Type-Options"] = "nosniff"
    answer["Cache-Control"] = "no-store"
    return answer


@require_GET
@right("deployments.view")
def log_file(request: HttpRequest, run_id: uuid.UUID) -> StreamingHttpResponse:
    """The whole stored log as a file; what the disk bound removed is marked in its place."""
    run = queries.run(run_id)
    job_id = _job_of(run_id)

    async def parts() -> AsyncIterator[bytes]:
        offset = 0  # asynchronous, since Django would first collect all that a plain iterator gives
        while (part := await sync_to_async(logstore.read)(job_id, offset)).data:
            if part.gap:
                yield f"\n[{part.gap} bytes were removed here to bound the log]\n".encode()
            yield part.data
            offset = part.end

    answer = StreamingHttpResponse(parts(), content_type="text/plain; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{run.deployment.name}-{run.number}.log"'
    return answer
