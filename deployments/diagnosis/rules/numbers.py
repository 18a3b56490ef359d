"""The numbers of classes: which of them the root line tells, and the sentence that says them. Pure.

A sentence has %(name)s places for the named parts of the rule's own patterns, for those of `reads`, and for what is
known beside the log (`told.known_values`). The first whose places are all known is said. A part X with a part X_unit
is said with its unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from re import Pattern
from re import compile as compiled

from deployments.diagnosis.rule import gettext_noop as _


@dataclass(frozen=True)
class Numbers:
    """What a root line of one class tells in numbers.

    `bars` are (needed, there is, unit): two bars, of the first pair whose numbers are known. `limit`: they compare what
    was asked for with what is allowed. `adds`: the sentence stands after the rule's own `why`, else in its place.
    """

    say: tuple[str, ...]
    reads: tuple[str, ...] = ()
    bars: tuple[tuple[str, str, str], ...] = ()
    limit: bool = False
    adds: bool = False

    @cached_property
    def patterns(self) -> tuple[Pattern[str], ...]:
        """What is looked for in the root line beside the rule's own patterns."""
        return tuple(compiled(pattern) for pattern in self.reads)


GIB, TOKENS, NONE = "GiB", "tokens", ""
# PyTorch's words since 1.9; since 2.1 the free part stands after the total.
_ALLOCATE = r"Tried to allocate (?P<need>\d+(?:\.\d+)?) (?P<need_unit>[KMGT]iB)"
_CAPACITY = (
    r"total capaci?ty of (?P<total>\d+(?:\.\d+)?) (?P<total_unit>[KMGT]iB) of which (?P<left>\d+(?:\.\d+)?) "
    r"(?P<left_unit>[KMGT]iB) is free"
)
_CAPACITY_2 = (
    r"(?P<total>\d+(?:\.\d+)?) (?P<total_unit>[KMGT]iB) total capacity; .*?"
    r"(?P<left>\d+(?:\.\d+)?) (?P<left_unit>[KMGT]iB) free"
)
_OWN = r"this process has (?P<own>\d+(?:\.\d+)?) (?P<own_unit>[KMGT]iB) memory in use"
OOM = Numbers(
    (
        _("This GPU has %(total)s. The engine held %(own)s of it, %(left)s were free, and it asked for %(need)s more."),
        _("This GPU has %(total)s. %(left)s of it were free, and the engine asked for %(need)s more."),
        _("The engine asked for %(need)s more."),
    ),
    (_ALLOCATE, _CAPACITY, _CAPACITY_2, _OWN),
    (("need", "left", GIB),),
    adds=True,
)
LENGTH = Numbers(
    (
        _("%(asked)s tokens (pieces of words) were asked for. The model was made for %(derived)s; beyond that its "
          "answers would fall apart."),
    ),
    bars=(("asked", "derived", TOKENS),),
    limit=True,
)  # fmt: skip
CONTEXT = Numbers(
    (_("The request and its answer take %(asked)s tokens (pieces of words), and %(length)s is the most here."),),
    (r"(?:resulted in|requested|contains at least|your prompt contains) (?P<asked>\d+)",),
    (("asked", "length", TOKENS),),
    limit=True,
)
ROOM = Numbers(
    (
        _("The model's weights take %(weights)s of the GPU's %(gpu_total)s GiB, and the engine may use a share of "
          "%(share)s of it for everything."),
        _("The model's weights take %(weights)s of the GPU's %(gpu_total)s GiB."),
    ),
    adds=True,
)  # fmt: skip
ARCH = Numbers(
    (
        _("config.json names the kind of model (its architecture) %(arch)s. It is not among those that version "
          "%(version)s can run."),
        _("config.json names the kind of model (its architecture) %(arch)s. It is not among those that this version "
          "can run."),
        _("The kind of model (its architecture) is %(name)s. It is not among those that this version can run."),
    ),
    (r"[Aa]rchitectures? \[(?P<arch>[^\]]+)\]", r"(?P<name>\w+) has no \w+ implementation"),
)  # fmt: skip
FILE_ARCH = Numbers((_("The file names the kind of model (its architecture) %(arch)s."),), adds=True)
TYPE = Numbers((_("config.json names the kind of model %(type)s."),), adds=True)
PACKAGE = Numbers((_("The package is called %(package)s."), _("The package is called %(name)s.")), adds=True)
VALUE = Numbers((_("It was asked for “%(value)s”."),), adds=True)
PLACE = Numbers((_("The engine looked for it in %(path)s."),), adds=True)
PORT = Numbers(
    (
        _("Port %(port)s was held by %(holder)s."),
        _("It was held by %(holder)s."),
        _("It is port %(port)s."),
    ),
    (r"\bport (?P<port>\d+) is\b",),
    adds=True,
)
QUANT_MISMATCH = Numbers((_("The files are quantised as %(have)s, and %(asked)s was asked for."),), adds=True)
SHM = Numbers((_("%(shm)s GiB of shared memory were free on this machine."),), adds=True)

NUMBERS: dict[str, Numbers] = {
    # memory
    "mem.gpu_busy": Numbers(
        (
            _("%(free)s of %(total)s GiB were free when it started. It was told to take %(want)s GiB "
              "(a share of %(util)s)."),
        ),
        bars=(("want", "free", GIB),),
    ),
    "mem.kv_lt_len": Numbers(
        (
            _("After the model was loaded, %(have)s GiB were left for conversations (KV cache). One of %(length)s "
              "tokens (pieces of words) needs %(need)s GiB."),
            _("The memory left for conversations (KV cache) holds %(estimate)s tokens (pieces of words). One "
              "conversation may have %(length)s."),
        ),
        bars=(("need", "have", GIB), ("length", "estimate", TOKENS)),
    ),
    "mem.auto_fit": ROOM,
    "mem.kv_none": ROOM,
    "sglang.kv_none": ROOM,
    "mem.mamba_blocks": Numbers(
        (_("Up to %(seqs)s requests at once were asked for. The memory holds the state of %(blocks)s."),),
        bars=(("seqs", "blocks", NONE),),
    ),
    "mem.profile_changed": Numbers(
        (_("%(before)s GiB were free when it began to measure, and %(after)s GiB a moment later."),),
        (r"Initial free memory (?P<before>[\d.]+) GiB, current free memory (?P<after>[\d.]+) GiB",),
        adds=True,
    ),
    "mem.oom_sampler": Numbers((_("It tried %(seqs)s requests at once."),), adds=True),
    "mem.oom_compile": OOM,
    "mem.oom_load": OOM,
    "mem.oom_profile": OOM,
    "mem.oom_graph": OOM,
    "mem.oom_runtime": OOM,
    "sglang.oom": OOM,
    "sglang.graph_oom": OOM,
    "mem.cpu_kv_space": Numbers(
        (
            _("%(free)s of %(total)s GiB of main memory were free, and the memory for conversations (KV cache) was to "
              "take %(want)s GiB."),
            _("%(free)s of %(total)s GiB of main memory were free, and the memory for conversations (KV cache) was to "
              "take %(cpu_kv)s GiB."),
        ),
        (r"requested memory for kv \((?P<want>[\d.]+)", r"less than (?:expected )?(?P<want>[\d.]+) ?GiB"),
        (("want", "free", GIB), ("cpu_kv", "free", GIB)),
    ),
    "mem.host_oom_killed": Numbers(
        (
            _("%(ram_free)s of the machine's %(ram_total)s GiB were free before the start."),
            _("%(ram_free)s GiB of the machine's memory were free before the start."),
        ),
        adds=True,
    ),
    "ollama.mem_required": Numbers(
        (_("It needs %(need)s of main memory, and %(have)s are free."),),
        (r"system memory \((?P<need>[\d.]+) (?P<need_unit>[KMGT]iB)\) than is available \((?P<have>[\d.]+) (?P<have_unit>[KMGT]iB)\)",),
        (("need", "have", GIB),),
        adds=True,
    ),
    # settings
    "config.len_gt_derived": LENGTH,
    "sglang.ctx_gt_derived": LENGTH,
    "run.ctx_too_long": CONTEXT,
    "config.batched_lt_len": Numbers(
        (
            _("The engine works on %(batched)s tokens (pieces of words) at a time, and one request may have %(length)s. "
              "Long prompts are not cut into parts here, so the longest must fit into one step."),
        ),
        bars=(("length", "batched", TOKENS),),
        limit=True,
    ),
    "config.batched_lt_seqs": Numbers(
        (
            _("The engine works on %(batched)s tokens at a time, for up to %(seqs)s requests. Each of them needs at "
              "least one token in every step."),
        ),
        bars=(("seqs", "batched", NONE),),
        limit=True,
    ),
    "config.block_size": Numbers(
        (_("Blocks of %(block)s tokens were asked for, and it takes multiples of %(multiple)s."),), adds=True
    ),
    "mm.tokens_gt_batched": Numbers(
        (_("One picture or sound takes up to %(need)s tokens, and the engine works on %(batched)s at a time."),),
        (r"max_num_batched_tokens[ =:(]{1,3}(?P<batched>\d+)",),
        (("need", "batched", TOKENS),),
        limit=True,
    ),
    "lora.rank": Numbers(
        (
            _("The adapter (LoRA) has rank %(rank)s, and the engine keeps room for rank %(max)s. The rank says how much "
              "an adapter can change."),
        ),
        bars=(("rank", "max", NONE),),
        limit=True,
    ),
    "lora.rank_invalid": Numbers((_("Rank %(rank)s was asked for."),), adds=True),
    "lora.not_found": PLACE,
    # several GPUs
    "tp.heads": Numbers(
        (
            _("The model has %(heads)s attention heads, the parts that look at a text side by side. They cannot be "
              "shared out evenly among %(tp)s GPUs or processes."),
        ),
    ),
    "tp.vocab": Numbers(
        (_("One of them counts %(size)s, which cannot be shared out evenly among %(tp)s."),), adds=True
    ),
    "tp.exceeds_gpus": Numbers(
        (_("%(tp)s GPUs were asked for, and the engine sees %(gpus)s."),),
        bars=(("tp", "gpus", NONE),),
        limit=True,
        adds=True,
    ),
    "tp.exceeds_numa": Numbers((_("%(tp)s parts were asked for."),), adds=True),
    # kinds of models and files
    "arch.unsupported": ARCH,
    "sglang.arch_unsupported": ARCH,
    "arch.transformers_old": TYPE,
    "gguf.arch_unsupported": FILE_ARCH,
    "llamacpp.unknown_arch": FILE_ARCH,
    "ollama.arch": FILE_ARCH,
    "load.missing_shard": Numbers((_("It is %(file)s."),), adds=True),
    "load.no_weights": PLACE,
    "load.unexpected_key": Numbers((_("The first of them is called %(key)s."),), adds=True),
    "llamacpp.tensor_count": Numbers((_("It should hold %(want)s parts and holds %(have)s."),), adds=True),
    "config.json_missing": PLACE,
    "config.remote_file_missing": Numbers((_("The first is %(file)s."),), adds=True),
    "hub.repo_id_invalid": PLACE,
    "gguf.dir": PLACE,
    # formats of numbers
    "quant.mismatch": QUANT_MISMATCH,
    "sglang.quant_mismatch": QUANT_MISMATCH,
    "quant.unknown": VALUE,
    "quant.gpu_capability": Numbers(
        (
            _("NVIDIA numbers the generations of GPUs: %(value)s needs %(capability)s, and this GPU is %(found)s."),
            _("NVIDIA numbers the generations of GPUs: %(value)s needs %(capability)s or newer."),
        ),
        (r"Current capability: (?P<current>\d+)",),
        adds=True,
    ),
    "quant.dtype": Numbers(
        (_("%(value)s works in %(want)s, and %(have)s was asked for."),), adds=True
    ),
    "dtype.mismatch": Numbers((_("One part is in %(have)s, another in %(want)s."),), adds=True),
    # what was asked for by name
    "args.unrecognized": Numbers((_("It does not know: %(flags)s."),), adds=True),
    "args.invalid_value": Numbers((_("The option is %(flag)s."),), adds=True),
    "args.invalid_json": Numbers((_("The option is %(flag)s."),), adds=True),
    "args.tool_parser_unknown": VALUE,
    "args.reasoning_parser_unknown": VALUE,
    "attn.backend_unavailable": VALUE,
    # the machine
    "env.missing_dep": PACKAGE,
    "sglang.missing_dep": PACKAGE,
    "env.driver_old": Numbers(
        (
            _("The driver that it met goes up to CUDA %(cuda_found)s."),
            _("Driver %(driver_now)s of this machine goes up to CUDA %(cuda_now)s."),
        ),
        adds=True,
    ),
    "env.sigill": Numbers(
        (
            _("This processor has no %(lacks)s."),
            _("This processor has %(has)s, so it must be others that it lacks, or the program is damaged."),
        ),
        adds=True,
    ),
    "env.disk_full": Numbers((_("%(disk_free)s GiB were free on %(disk)s after it."),), adds=True),
    "env.ulimit": Numbers((_("%(files)s files are allowed."),), adds=True),
    "env.shm": SHM,
    "sglang.shm": SHM,
    "http.port_in_use": PORT,
    "sglang.port_in_use": PORT,
    "llamacpp.port_in_use": PORT,
    "run.shm_wait": Numbers((_("It has waited for %(seconds)s seconds."),), adds=True),
}  # fmt: skip
