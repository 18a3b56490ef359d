"""What a new deployment is called and used for where nobody says: by its model. Reads only."""

from deployments.models import Deployment
from deployments.spec import NAME
from models_catalog.models import Artifact


def task_of(artifact: Artifact) -> str:
    """What the model is for, as far as the form offers it."""
    tasks = artifact.facts.get("tasks") or ["generate"]
    return tasks[0] if tasks[0] in ("generate", "embed", "score") else "generate"


def names_taken() -> set[str]:
    """By deployments that are not deleted. One query."""
    return set(Deployment.objects.filter(deleted_at=None).values_list("name", flat=True))


def free_name(model: str, taken: set[str]) -> str:
    """A deployment name from a model's name that nobody uses yet."""
    base = "".join(c if c.isascii() and c.isalnum() else "-" for c in model.lower().rpartition("/")[2])
    base = "-".join(part for part in base.split("-") if part)[:50].strip("-.") or "model"
    name = next(n for i in range(1, 10_000) if (n := base if i == 1 else f"{base}-{i}") not in taken)
    return name if NAME.match(name) else "model"
