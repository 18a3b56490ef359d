"""What is known of one model's files, as plain data: read by the agent, stored by the panel, used by the planner. Pure.

Nothing here is a sentence: problems are codes with parameters (models_catalog/wording.py turns them into words).
Sizes are bytes, counts are whole numbers, None means "the files do not say".
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

TaskKind = Literal["generate", "embed", "score"]
# What a model is made for, finer than what an engine is asked. "" is unknown.
Purpose = Literal[
    "", "generate", "embed", "rerank", "classify", "reward", "transcribe", "translate", "fill_mask", "classify_tokens"
]
Input = Literal["text", "image", "audio", "video"]

# A copy with one of these cannot be served. Everything else is worth knowing, but does not stand in the way.
BLOCKING = frozenset(
    {
        "adapter_only",  # a LoRA adapter: it needs its base model
        "bad_config",
        "bad_header",
        "bad_index",
        "bad_tokenizer",
        "broken_link",
        "byte_order",
        "cannot_read",
        "gguf_version",
        "header_too_large",
        "imatrix_only",  # notes for quantising another model
        "incomplete_download",
        "lfs_pointer",
        "link_outside",
        "missing_parts",
        "missing_tokenizer",
        "missing_weights",
        "mlx_only",  # packed for Apple's machines
        "not_gguf",
        "ollama_form",
        "presharded",
        "projector_only",  # the image part of another model
        "quantisation_not_in_config",
        "quantisation_not_in_weights",
        "split_mismatch",
        "trailing_bytes",
        "truncated",
        "unreadable_name",
        "wrong_shard",
        "zero_bytes",
    }
)


class _Plain(BaseModel):
    """Unknown fields are ignored, so that facts of a newer agent can be read by an older panel."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Problem(_Plain):
    """Something found, as a code with parameters; the same shape as wire.Refusal."""

    code: str
    params: dict[str, Any] = {}

    @property
    def blocking(self) -> bool:
        """True when a copy with this problem cannot be served."""
        return self.code in BLOCKING


class FileFact(_Plain):
    """One file that belongs to the model; `name` is relative to the model's folder. `sha256` is told for code alone."""

    name: str
    size: int
    kind: Literal["weights", "config", "tokenizer", "template", "code", "other"] = "other"
    sha256: str = ""


class Quantisation(_Plain):
    """How the weights are compressed. `label` is the name people know ("Q4_K_M", "AWQ 4-bit")."""

    method: str
    bits: int | None = None
    label: str = ""


LayerKind = Literal["full", "sliding", "chunked", "linear", "mamba", "mlp"]


class Latent(_Plain):
    """Multi-head latent attention (DeepSeek): widths of the compressed keys and values. `q_rank` 0: queries are not."""

    kv_rank: int
    q_rank: int = 0
    rope: int
    nope: int
    value: int


class Rope(_Plain):
    """How positions are turned, and how they are stretched beyond the context a model was trained with."""

    base: float | None = None
    scaling: str = ""  # "yarn", "linear", "llama3", "longrope", …; "" for none
    factor: float | None = None
    original_context: int | None = None


class Adapter(_Plain):
    """An adapter: the model it belongs to, and how large it is. `targets` are the layers it changes."""

    kind: str = "lora"
    base: str = ""
    rank: int | None = None
    alpha: float | None = None
    targets: list[str] = []


class State(_Plain):
    """A recurrent layer (gated delta net, Mamba 2): its projections and the state that one request keeps."""

    in_width: int
    gate_width: int  # a small projection that quantisation leaves alone
    out_width: int
    conv_width: int
    conv_steps: int
    elements: int
    element_bytes: int = 2


class Geometry(_Plain):
    """The shape of a model, as far as memory depends on it. Widths are elements, `layers` one kind a layer, in order.

    `known` is False for an architecture that Berth reads like a plain decoder without knowing that it is one.
    """

    known: bool = True
    hidden: int
    vocab: int
    tied: bool = False
    layers: list[LayerKind] = Field(max_length=1000)
    heads: int
    kv_heads: int
    head_dim: int
    global_head_dim: int | None = None  # of the full-attention layers, where it differs (Gemma 4)
    global_kv_heads: int | None = None
    kv_shared_layers: int = 0  # the last ones, which read the cache of earlier layers
    attention_gate: bool = False
    attention_bias: bool = False
    window: int | None = None  # tokens a sliding or chunked layer sees
    mlp_width: int
    mlp_matrices: int = 3
    experts: int = 0
    experts_used: int = 0
    expert_width: int = 0
    shared_width: int = 0
    dense_layers: int = 0  # the first ones have no experts
    moe_every: int = 1
    latent: Latent | None = None
    indexer_bytes: int = 0  # per token and layer, of sparse attention
    indexer_heads: int = 0
    indexer_dim: int = 0
    state: State | None = None
    per_layer_width: int = 0  # per-layer embeddings (Gemma 3n, 4)
    rope_rows: int = 0  # positions in the tables of cosines and sines, all tables together
    rope_width: int = 0
    vision_parameters: int = 0
    image_pixels: int = 0  # of one image, at most
    image_tokens: int = 0
    element_bytes: int = 2  # of a number as the configuration stores it
    single_layers: bool = False  # a layer is attention, recurrent or feed-forward alone, not two of them (Nemotron-H)


class ModelFacts(_Plain):
    """All that the headers and configuration of one model say.

    `parameters` is counted from the tensors' shapes (packed formats are unpacked first), so it is exact.
    `context_source`, `template_source` and `tokenizer` name where the value was found (a file and a key).
    `heads_by_layer` lists KV heads where layers differ. `own_bytes` leaves out what a model listed before holds too.
    `fingerprint` is equal for equal models on two hosts; `label` tells the forms of one model apart.
    """

    format: Literal["hf", "gguf"]
    label: str = ""
    fingerprint: str = ""
    architectures: list[str] = []
    model_type: str = ""
    parameters: int | None = None
    weight_bytes: int | None = None
    layers: int | None = None
    hidden_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    key_length: int | None = None
    value_length: int | None = None
    heads_by_layer: list[int] = Field(default=[], max_length=1000)
    rope: Rope | None = None
    vocab_size: int | None = None
    context_length: int | None = None
    context_source: str = ""
    context_named: int | None = None  # before any stretching; None where the files do not settle what engines take
    sliding_window: int | None = None
    experts: int | None = None
    experts_used: int | None = None
    dtype: str = ""
    dtype_bytes: dict[str, int] = {}  # bytes of the weights by number format, e.g. {"BF16": 1234}
    quantisation: Quantisation | None = None
    tasks: list[TaskKind] = []
    purpose: Purpose = ""
    inputs: list[Input] = []
    adapter: Adapter | None = None
    projector: str = ""  # GGUF: the file beside it that sees or hears for it
    tokenizer: str = ""  # its main file or, in a GGUF, the tokenizer's kind; empty when there is none
    tokenizer_kind: str = ""  # bpe, unigram, wordpiece, sentencepiece, tekken, tiktoken, …
    chat_template: bool = False
    template_source: str = ""
    templates: list[str] = []  # names of all templates, e.g. ["default", "tool_use"]
    template_text: str = ""  # of the one that engines use; "" also where it is too long to be kept
    generation: dict[str, float] = {}  # the makers' defaults: temperature, top_p, …
    needs_remote_code: bool = False
    code_files: list[str] = []
    code_elsewhere: list[str] = []  # repositories whose code a loader would fetch
    config_beside: bool = False  # GGUF: config.json and a tokenizer lie in the same folder
    config_format: Literal["", "mistral"] = ""  # "mistral": params.json instead of config.json
    sharded_for: int | None = None  # tensor-parallel size that the files were cut for
    licence: str = ""
    source: Literal["", "hf-cache", "ollama", "lmstudio"] = ""
    origin: str = ""  # the repository or name it came by, where its place tells
    own_bytes: int | None = None
    revision: str = ""  # of the Hugging Face cache
    refs: list[str] = []  # branches and tags of the cache, or names in Ollama, that point to it
    geometry: Geometry | None = None  # None when the files say too little for an estimate
    weight_scheme: str = ""  # how compressed tensors are laid out, a name of estimate/schemes.py; "" plain
    kv_scheme: str = ""  # how the files' own packing wants the KV cache, "fp8" or "nvfp4"; "" it does not say
    plain_parts: list[str] = []  # parts that a quantisation leaves in 16 bits, e.g. ["attention"]
    files: list[FileFact] = Field(default=[], max_length=1000)
    file_count: int = 0
    missing: list[str] = []  # names of files that should be there

    @property
    def architecture(self) -> str:
        """The first architecture, which decides how engines load it."""
        return self.architectures[0] if self.architectures else ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready dict; `from_dict` reads it back."""
        return self.model_dump(mode="json")

    def to_short_dict(self) -> dict[str, Any]:
        """The same without what is not known; `from_dict` reads it back too."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> ModelFacts:
        """Raises pydantic.ValidationError when the dict was not made by `to_dict`."""
        return cls.model_validate(value)
