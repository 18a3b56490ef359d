"""The deployments that a token may be limited to, for the room of tokens."""

from deployments.models import Deployment


def names() -> dict[int, str]:
    """Number → name of those that are not deleted, by name. One query."""
    return dict(Deployment.objects.filter(deleted_at=None).order_by("name").values_list("pk", "name"))
