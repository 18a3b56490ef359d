"""The reasons of an estimate as sentences: English templates for whoever shows them, marked for translation.

Pure: the caller brings the translation (`say(reason, gettext)`). Places are %(name)s, filled from the parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from models_catalog.estimate.plan import Plan, Reason

_PLACE = re.compile(r"%\((\w+)\)s")


def gettext_noop(text: str) -> str:
    """Marks a text for collection, and changes nothing."""
    return text


WORDS: dict[str, str] = {
    # where a number comes from
    "weights.shape": gettext_noop("Counted from the model's shape, stored as %(scheme)s."),
    "weights.plain": gettext_noop("Counted from the model's shape, two bytes for each weight."),
    "weights.files": gettext_noop("Counted from the weight files."),
    "activation.profile": gettext_noop(
        "What the engine's trial run needs with %(tokens)s tokens and %(sequences)s requests at once."
    ),
    "activation.cpu": gettext_noop("Working memory for one step on the processor."),
    "activation.buffer": gettext_noop("The compute buffer of one micro batch."),
    "activation.outside": gettext_noop("Working memory, which this engine leaves outside its budget."),
    "overhead.single": gettext_noop("Libraries' memory as measured on such GPUs."),
    "overhead.family": gettext_noop("Libraries' memory as measured with this family of models."),
    "overhead.hybrid": gettext_noop("Libraries' memory as measured with recurrent layers."),
    "overhead.parallel": gettext_noop("Libraries' memory with %(tp)s GPUs side by side, mostly for their exchange."),
    "overhead.pipeline": gettext_noop("Libraries' memory of one stage of a pipeline."),
    "overhead.process": gettext_noop("The engine's own processes."),
    "overhead.context": gettext_noop("The driver's context on the GPU."),
    "graphs.none": gettext_noop("No CUDA graphs are recorded."),
    "graphs.inside": gettext_noop("CUDA graphs for up to %(sequences)s requests, taken out of the budget."),
    "graphs.outside": gettext_noop("This version records CUDA graphs outside its budget; they need room beside it."),
    "kv.left": gettext_noop("What is left of %(budget)s GiB, the GPU's total × %(utilisation)s."),
    "kv.learned": gettext_noop(
        "What is left of %(budget)s GiB, the GPU's total × %(utilisation)s, corrected by %(launches)s starts on this"
        " host (%(shift)s GiB)."
    ),
    "kv.static": gettext_noop("What the weights leave of %(budget)s GiB."),
    "kv.told": gettext_noop("The size that is set aside for it."),
    "kv.cpu_default": gettext_noop("The engine's own default on a processor."),
    "kv.layers": gettext_noop("Keys and values of all layers for the whole context."),
    "kv.blocks": gettext_noop("%(blocks)s blocks of %(bytes)s bytes each; groups of layers: %(groups)s."),
    "kv.tokens": gettext_noop("%(bytes)s bytes for each token."),
    "kv.requests": gettext_noop("Requests of %(context)s tokens each."),
    "kv.context": gettext_noop("A context of %(context)s tokens for each of %(slots)s requests."),
    "kv.longest": gettext_noop("The longest single request; the model itself takes %(limit)s tokens."),
    # why it fits or not
    "requests.fit": gettext_noop("%(requests)s requests of %(context)s tokens fit at the same time."),
    "kv.none": gettext_noop("Nothing is left for the KV cache: %(missing)s GiB are missing within %(wanted)s GiB."),
    "kv.little": gettext_noop("Only about %(kv)s GiB are left for the KV cache, less than the estimate may be off."),
    "context.too_long": gettext_noop(
        "One request of %(context)s tokens does not fit; the longest that does is about %(longest)s."
    ),
    "context.close": gettext_noop(
        "One request of %(context)s tokens fits only just; the longest that fits is about %(longest)s."
    ),
    "context.beyond_model": gettext_noop(
        "%(context)s tokens are more than the model takes by itself, which is %(longest)s."
    ),
    "free.too_small": gettext_noop(
        "Only %(free)s of %(total)s GiB are free, and the engine asks for %(wanted)s GiB at its start."
    ),
    "graphs.no_room": gettext_noop(
        "CUDA graphs need about %(graphs)s GiB outside the budget, and only %(beside)s GiB lie beside it."
    ),
    "graphs.lora": gettext_noop(
        "With %(loras)s adapters CUDA graphs multiply, and only %(beside)s GiB lie outside the budget."
    ),
    "static.no_room": gettext_noop(
        "Working memory and CUDA graphs need about %(outside)s GiB, and %(beside)s GiB lie outside the budget."
    ),
    "tp.vocabulary": gettext_noop("A vocabulary of %(vocab)s words cannot be divided among %(tp)s GPUs."),
    "tp.heads": gettext_noop("%(heads)s attention heads cannot be divided among %(tp)s GPUs."),
    "tp.kv_heads": gettext_noop("%(kv_heads)s heads for keys and values cannot be divided among %(tp)s GPUs."),
    "pp.layers": gettext_noop("%(layers)s layers are too few for %(pp)s stages."),
    "tp.groups": gettext_noop(
        "Layers %(width)s wide cannot be divided among %(tp)s GPUs: it would break groups of %(group)s weights that"
        " share a scale."
    ),
    "gpu.capability": gettext_noop(
        "These GPUs are too old for %(what)s: it takes compute capability %(need)s, and they have %(have)s."
    ),
    "ram.too_small": gettext_noop("About %(need)s GiB of memory are needed, and %(free)s GiB are there."),
    "ram.little": gettext_noop("About %(need)s of %(free)s GiB of memory are needed, which is close."),
    "offload.too_large": gettext_noop("About %(need)s GiB are needed on the GPU, and %(free)s GiB are there."),
    "offload.little": gettext_noop("About %(need)s of %(free)s GiB on the GPU are needed, which is close."),
    "weights.too_large": gettext_noop("The weights alone are about %(weights)s GiB per GPU, which has %(total)s GiB."),
    # what is worth knowing
    "weights.experts": gettext_noop("All %(experts)s experts are in memory, though a token uses %(used)s."),
    "weights.differ": gettext_noop(
        "The weight files hold %(files)s GiB, and the model's shape comes to %(shape)s GiB; the ranges hold both."
    ),
    "kv.windows_ignored": gettext_noop(
        "This engine keeps the whole context for the %(layers)s layers that see only a window of it."
    ),
    "kv.in_flight": gettext_noop(
        "Layers with a window keep up to %(tokens)s more tokens per request; fewer batched tokens save cache."
    ),
    "kv.copied": gettext_noop("%(kv_heads)s heads for keys and values are copied to %(tp)s GPUs, not divided."),
    "start.cold": gettext_noop("The very first start on a machine may leave up to 0.9 GiB less for the KV cache."),
    "cpu.slow": gettext_noop("On a processor this engine is for tests and for work that can wait."),
    "gpu.shared_memory": gettext_noop("Processor and GPU share their memory here; the estimate may be off by 3 GiB."),
    "gpu.by_label": gettext_noop("The GPU's size is taken from its name (%(gpu)s), a little less than that says."),
    "kv.type_unknown": gettext_noop(
        "The number format %(kv_type)s of the KV cache is not known; 16 bits are taken for it."
    ),
    "kv.unneeded": gettext_noop("This model keeps nothing of a request, so it needs no KV cache."),
    "gpu.unknown": gettext_noop("The size of the GPU is not known."),
    # what is not known
    "model.unknown": gettext_noop("The model's files say too little for an estimate."),
    "model.unchecked": gettext_noop(
        "The architecture %(architecture)s is not known here; the numbers hold only if it is a plain decoder."
    ),
    "scheme.unknown": gettext_noop("How the weights are packed is not known (%(scheme)s)."),
    "version.unknown": gettext_noop(
        "The engine's version is not known; the ranges hold for versions 0.11 to 0.32, the numbers are careful."
    ),
    "version.unchecked": gettext_noop("Version %(version)s was not checked; it is taken to count like %(rules)s."),
    "version.newer": gettext_noop(
        "Version %(version)s is newer than those that were checked; it is taken to count like %(rules)s."
    ),
    "engine.less_certain": gettext_noop("Estimates for %(engine)s were hardly checked against real launches."),
}


def say(reason: Reason, translate: Callable[[str], str] = gettext_noop) -> str:
    """The sentence of a reason; a code without one is shown as it is, never hidden."""
    template = WORDS.get(reason.code)
    if template is None:
        return reason.code
    return _PLACE.sub(lambda place: _shown(reason.params.get(place[1])), translate(template))


def _shown(value: object) -> str:
    if value is None or value == "":
        return "—"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def told(plan: Plan, translate: Callable[[str], str]) -> dict[str, Any]:
    """A plan for programs: its reasons and sources as codes, and as sentences."""
    answer = plan.to_dict()
    for reason in (*answer["reasons"], *answer["sources"].values()):
        reason["text"] = say(Reason(reason["code"], reason["params"]), translate)
    return answer
