"""One question with every default filled in: what all formulas of vLLM read."""

from __future__ import annotations

from dataclasses import dataclass

from models_catalog.estimate import gpus
from models_catalog.estimate.gpus import Gpu, Traits
from models_catalog.estimate.learned import Lesson
from models_catalog.estimate.options import Options
from models_catalog.estimate.schemes import Scheme
from models_catalog.estimate.units import round_up
from models_catalog.estimate.versions import RUNNER_V2_SINCE, Version
from models_catalog.facts import Geometry, LayerKind

VOCABULARY_STEP = 64  # the vocabulary is padded to a multiple of it
LONGEST_UNKNOWN = 8192  # context when neither the person nor the model names one


@dataclass(frozen=True)
class Case:
    geometry: Geometry
    scheme: Scheme
    options: Options
    gpu: Gpu
    traits: Traits
    version: Version
    context: int
    sequences: int
    batched_tokens: int
    utilisation: float
    family: str = ""  # model_type, for the few quantities that were measured by family
    lesson: Lesson | None = None  # what earlier launches of this kind taught

    @property
    def vocab(self) -> int:
        """Words with padding."""
        return round_up(self.geometry.vocab, VOCABULARY_STEP)

    @property
    def plain_bytes(self) -> int:
        """Bytes of a number that is not quantised."""
        return 4 if self.scheme.name == "fp32" else 2

    @property
    def hybrid(self) -> bool:
        """Some layers are recurrent."""
        return "linear" in self.geometry.layers or "mamba" in self.geometry.layers

    @property
    def runner_v2(self) -> bool:
        """Whether vLLM's second model runner has this model. Each asks for other memory, so it matters which."""
        if self.gpu.cpu or self.version.minor < RUNNER_V2_SINCE:
            return False
        dense = not (self.hybrid or self.geometry.experts or self.geometry.vision_parameters)
        packed = self.scheme.name not in ("none", "fp32")
        return self.version.runner_v2(self.family, dense=dense, packed=packed)

    @property
    def charges_graphs(self) -> bool:
        """CUDA graphs are taken out of the budget."""
        return self.version.runner_v2_graphs if self.runner_v2 else self.version.charges_graphs

    @property
    def saves_states(self) -> bool:
        """States of recurrent layers are kept for later requests, as told or by the version's default."""
        told = self.options.state_checkpoints
        return self.version.saves_states if told is None else told

    def stage_layers(self, stage: int) -> range:
        """The layers of a pipeline stage; what does not divide evenly goes to the middle, never to the last stage."""
        count, pp = len(self.geometry.layers), self.options.pp
        sizes = [count // pp] * pp
        for place in range(count % pp):
            sizes[-2 - place if pp > 1 else 0] += 1
        start = sum(sizes[:stage])
        return range(start, start + sizes[stage])

    def kinds(self, stage: int) -> list[LayerKind]:
        return [self.geometry.layers[index] for index in self.stage_layers(stage)]

    def has_experts(self, layer: int) -> bool:
        shape = self.geometry
        return bool(shape.experts) and layer >= shape.dense_layers and (layer + 1) % shape.moe_every == 0


def case_of(
    geometry: Geometry,
    scheme: Scheme,
    options: Options,
    gpu: Gpu,
    version: Version,
    *,
    longest: int | None = None,
    family: str = "",
    lesson: Lesson | None = None,
) -> Case:
    """Fill in the defaults of the API server. `longest` is the context that the model itself names."""
    context = options.context or longest or LONGEST_UNKNOWN
    tokens, sequences = default_batch(gpu, version)
    if version.profiles_longest:
        tokens = max(2048, context)
    tokens = options.batched_tokens or tokens
    return Case(
        geometry=geometry,
        scheme=scheme,
        options=options,
        gpu=gpu,
        traits=gpus.traits(gpu),
        version=version,
        context=context,
        sequences=min(options.sequences or sequences, tokens),
        batched_tokens=tokens,
        utilisation=options.utilisation or version.default_utilisation,
        family=family,
        lesson=lesson,
    )


def default_batch(gpu: Gpu, version: Version) -> tuple[int, int]:
    """(tokens, sequences) of one step, by the size of the GPU. An unknown GPU counts as a large one: it costs more."""
    total = gpus.total_gib(gpu)
    small = total is not None and (total < 70 or "A100" in gpu.name.upper())
    if gpu.cpu:
        return 4096, 256
    if version.minor <= 8 or small or gpus.traits(gpu).size_untold:
        return 2048, 256
    return (16384, 1024) if total is not None and total >= 160 else (8192, 1024)
