"""News that travels upward, as data. Receivers only nudge their own loop; they never do the work here."""

from django.dispatch import Signal

job_changed = Signal()  # job_id: UUID, kind: str, state: str, log_grew: bool
host_lost = Signal()  # host_id: int
host_back = Signal()  # host_id: int
host_forgotten = Signal()  # host_id: int
