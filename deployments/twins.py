"""Other forms of a model in the catalog: what the planner may propose where the wanted one does not fit."""

import re
from collections.abc import Iterable
from typing import Any

from django.db.models import Exists, OuterRef

from deployments.fleet_now import copy_view
from deployments.planner import Twin
from models_catalog.models import Artifact, Copy
from models_catalog.shelf import may_deploy
from panel.accounts.actor import Actor

# What a form adds to a model's name: "Qwen3-8B-AWQ", "Qwen3-8B-FP8-dynamic", "Qwen3-8B-Instruct-GPTQ-Int4".
_FORM = re.compile(r"[-_.](awq|gptq|fp8|int[48]|w\d+a\d+|nvfp4|mxfp4|bnb|[48]-?bit|gguf|quantized|autoround).*$", re.I)
LOOKED_AT = 20
SHAPE = ("hidden", "vocab", "heads", "kv_heads", "head_dim", "layers")
NOBODY = Actor()  # who may use no more than everybody may


def stem(model: str) -> str:
    """A model's name without its owner and its form: "Qwen/Qwen3-8B-AWQ" → "Qwen3-8B"."""
    return _FORM.sub("", model.rpartition("/")[2])


def twins_of(artifact: Artifact, actor: Any = None) -> list[Twin]:
    """Smaller artifacts of the same shape that this person may deploy: those that lie on a host, the largest first,
    then those that no host has. One query, two where there are any.
    """
    name, shape = stem(artifact.model.name), _shape(artifact)
    if not name or shape is None:
        return []
    copies = Copy.objects.filter(artifact=OuterRef("pk"), present=True)
    near = Artifact.objects.filter(model__name__icontains=name).exclude(pk=artifact.pk)
    near = near.annotate(here=Exists(copies.filter(usable=True)), there=Exists(copies)).select_related("model")
    rows = near.exclude(here=False, there=True).order_by("-here", "-size_bytes", "pk")[:LOOKED_AT]
    smaller = [row for row in rows if row.size_bytes < artifact.size_bytes and _shape(row) == shape]
    found = [row for row in smaller if may_deploy(row.model, actor if actor is not None else NOBODY)]
    lying = Copy.objects.filter(artifact__in=found, present=True, usable=True).order_by("pk") if found else []
    return [_twin(row, lying) for row in found]


def _shape(artifact: Artifact) -> tuple[object, ...] | None:
    """What quantisation leaves as it is; None where the files say too little."""
    geometry = artifact.facts.get("geometry")
    return tuple(str(geometry.get(name)) for name in SHAPE) if isinstance(geometry, dict) else None


def _twin(artifact: Artifact, copies: Iterable[Copy]) -> Twin:
    own = {copy.host_id: copy_view(copy, artifact) for copy in copies if copy.artifact_id == artifact.pk}
    return Twin(artifact.pk, str(artifact), artifact.facts, own, artifact.size_bytes, artifact.model_id)
