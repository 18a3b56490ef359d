"""What of a repository lies on hosts already, by its name and its files' names. Reads only."""

from django.db.models import Q

from models_catalog.downloads.picks import Choice
from models_catalog.models import Copy

NEAR = 0.05  # of its size: what a file of the same name may differ by and still be the one that is offered


def of(repo: str, choice: Choice) -> list[Copy]:
    """The usable copies that look like this choice, wherever they came from; the catalog does not compare them here."""
    rows = Copy.objects.filter(present=True, usable=True, host__forgotten_at=None, artifact__format=choice.format)
    rows = rows.select_related("host").order_by("host__name", "path")
    if choice.format == "hf":
        store = f"/models--{repo.replace('/', '--')}/"
        return list(rows.filter(Q(path__contains=store) | Q(path__endswith=f"/{repo}")))
    names = Q()
    for file in choice.files:
        if file.path.lower().endswith(".gguf"):
            names |= Q(path__endswith="/" + file.path.rsplit("/", 1)[-1])
    size = (choice.weights * (1 - NEAR), choice.weights * (1 + NEAR))
    return list(rows.filter(names, artifact__size_bytes__range=size)) if names else []
