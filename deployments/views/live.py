"""What moves on the deployments' pages: the event streams, and logs by offset. No state is decided here."""

import uuid

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.views.decorators.http import require_GET

from deployments import checking, events, queries
from panel.accounts.guard import right
from panel.core import sse
from panel.core.errors import NotFound
from panel.fleet import live, log_answers


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
    job = checking.log_job_of(queries.run(run_id))
    if job is None:
        raise NotFound
    return job.pk


@require_GET
@right("deployments.view")
def log_part(request: HttpRequest, run_id: uuid.UUID) -> HttpResponse:
    """The stored log by offset, as live.js asks for it."""
    return log_answers.part(request, _job_of(run_id))


@require_GET
@right("deployments.view")
def log_file(request: HttpRequest, run_id: uuid.UUID) -> StreamingHttpResponse:
    """The whole stored log as a file."""
    run = queries.run(run_id)
    return log_answers.whole(_job_of(run_id), f"{run.deployment.name}-{run.number}.log")
