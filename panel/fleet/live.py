"""Names of the live topics, published after commit. Delivery is best effort: pages read the database."""

from functools import partial
from typing import Any

from django.db import transaction

from panel.core import sse


def work_topic(host_id: int) -> str:
    """A host's work changed; its long-poll wakes."""
    return f"work:{host_id}"


def job_topic(job_id: Any) -> str:
    """Log lines of one job."""
    return f"job:{job_id}"


def install_topic(install_id: Any) -> str:
    """One install of an engine moved."""
    return f"install:{install_id}"


HOSTS = "hosts"  # some host's facts or state changed
RUNTIMES = "runtimes"  # some install or removal of an engine moved


def publish_on_commit(topic: str, event: str = "changed", **data: Any) -> None:
    transaction.on_commit(partial(sse.publish, topic, event, data), robust=True)
