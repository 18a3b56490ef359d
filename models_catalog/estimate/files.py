"""What the headers of the weight files add to a shape: the layout of a packing that has no formula, and a check.

The files hold every tensor once and whole; a GPU holds fused, padded and sharded ones. So the files' size does not
replace the shape, but it tells how many bytes a packed weight takes on average.
"""

from __future__ import annotations

from models_catalog.estimate.case import Case, case_of
from models_catalog.estimate.gpus import Gpu
from models_catalog.estimate.options import Options
from models_catalog.estimate.schemes import PLAIN, Scheme
from models_catalog.estimate.units import GIB
from models_catalog.estimate.versions import NEWEST, Version
from models_catalog.estimate.weights import Stage
from models_catalog.facts import Geometry, ModelFacts

FAR = 0.05  # files and shape may differ by a drafter's layers or a second copy of tied words
LEAST_BYTES, MOST_BYTES = 0.1, 4.5  # per weight, of any packing there is
NOTHING = Scheme("nothing", weight=0.0)


def file_bytes(geometry: Geometry, scheme: Scheme) -> float:
    """Bytes of the files that a model of this shape and packing has."""
    case = case_of(geometry, scheme, Options(), Gpu(), Version(NEWEST))
    return sum(Stage(case, 0).tensors()) - _only_in_memory(case)


def _only_in_memory(case: Case) -> float:
    """Copies that decoding needs, and padding."""
    shape = case.geometry
    padding = (case.vocab - shape.vocab) * shape.hidden * (1 if shape.tied else 2) * case.plain_bytes
    latent = shape.latent
    copies = len(shape.layers) * latent.kv_rank * shape.heads * (latent.nope + latent.value) * 2 if latent else 0
    return padding + copies


def scheme_of_files(facts: ModelFacts) -> Scheme | None:
    """The bytes that a packed weight takes on average; None without headers or a shape, or when it makes no sense."""
    if facts.geometry is None or not facts.weight_bytes or facts.missing:
        return None
    unpacked = file_bytes(facts.geometry, NOTHING)
    packed_weights = (file_bytes(facts.geometry, PLAIN) - unpacked) / PLAIN.weight
    each = (facts.weight_bytes - unpacked) / packed_weights if packed_weights else 0.0
    if not LEAST_BYTES <= each <= MOST_BYTES:
        return None
    label = facts.quantisation.label if facts.quantisation else facts.dtype
    return Scheme(label or "files", weight=each, exact=False)


def far_from_files(facts: ModelFacts, geometry: Geometry, scheme: Scheme) -> bool:
    """Whether the files hold clearly more or less than shape and packing say. float32 files are loaded in 16 bits."""
    if not facts.weight_bytes or facts.missing or "F32" in facts.dtype_bytes:
        return False
    return abs(file_bytes(geometry, scheme) / facts.weight_bytes - 1) > FAR


def difference(facts: ModelFacts, geometry: Geometry, scheme: Scheme) -> dict[str, float]:
    """Both sizes, GiB."""
    return {"files": round((facts.weight_bytes or 0) / GIB, 2), "shape": round(file_bytes(geometry, scheme) / GIB, 2)}
