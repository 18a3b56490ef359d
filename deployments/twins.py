"""Other forms of a model that lie on a host: what the planner may propose where the wanted one does not fit."""

import re
from collections.abc import Iterable

from deployments.fleet_now import copy_view
from deployments.planner import Twin
from models_catalog.models import Artifact, Copy

# What a form adds to a model's name: "Qwen3-8B-AWQ", "Qwen3-8B-FP8-dynamic", "Qwen3-8B-Instruct-GPTQ-Int4".
_FORM = re.compile(r"[-_.](awq|gptq|fp8|int[48]|w\d+a\d+|nvfp4|mxfp4|bnb|[48]-?bit|gguf|quantized|autoround).*$", re.I)
LOOKED_AT = 20
SHAPE = ("hidden", "vocab", "heads", "kv_heads", "head_dim", "layers")


def twins_of(artifact: Artifact) -> list[Twin]:
    """Smaller artifacts of the same shape, the largest first. One query, two where there are any."""
    stem = _FORM.sub("", artifact.model.name.rpartition("/")[2])
    shape = _shape(artifact)
    if not stem or shape is None:
        return []
    near = Artifact.objects.filter(model__name__icontains=stem, copies__present=True, copies__usable=True)
    rows = near.exclude(pk=artifact.pk).select_related("model").distinct().order_by("-size_bytes", "pk")[:LOOKED_AT]
    found = [row for row in rows if row.size_bytes < artifact.size_bytes and _shape(row) == shape]
    copies = Copy.objects.filter(artifact__in=found, present=True, usable=True).order_by("pk") if found else []
    return [_twin(row, copies) for row in found]


def _shape(artifact: Artifact) -> tuple[object, ...] | None:
    """What quantisation leaves as it is; None where the files say too little."""
    geometry = artifact.facts.get("geometry")
    return tuple(str(geometry.get(name)) for name in SHAPE) if isinstance(geometry, dict) else None


def _twin(artifact: Artifact, copies: Iterable[Copy]) -> Twin:
    own = {copy.host_id: copy_view(copy, artifact) for copy in copies if copy.artifact_id == artifact.pk}
    return Twin(artifact.pk, str(artifact), artifact.facts, own)
