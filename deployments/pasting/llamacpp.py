"""The words of llama.cpp's server, as far as they mean something to vLLM. Pure."""

from __future__ import annotations

import re

from deployments.pasting import tables
from deployments.pasting.draft import Draft
from deployments.pasting.start import listed
from deployments.pasting.tables import LOST, LOST_SWITCH, MODEL, OWN, OWN_SWITCH, SECRET, Rule, call, same
from deployments.pasting.values import size_of


def _repository(draft: Draft, value: str) -> None:
    """`user/repo:quant`."""
    name, _sign, quant = value.partition(":")
    draft.set_model(name)
    draft.quant = quant or draft.quant


def _file(draft: Draft, value: str) -> None:
    draft.quant = value


def _address(draft: Draft, value: str) -> None:
    """`https://hub/user/repo/resolve/main/file.gguf`."""
    found = re.search(r"://[^/]{1,200}/([\w.-]{1,100}/[\w.-]{1,100})/(?:resolve|blob)/[^/]{1,100}/(.{1,300})", value)
    draft.set_model(found[1] if found else value)
    draft.quant = found[2].partition("?")[0] if found else ""


def _layers(draft: Draft, value: str) -> None:
    """0 is the CPU; all of them, or a large number, is what vLLM does anyway."""
    if value.strip() == "0":
        draft.set_device("-ngl", "cpu")
    elif value.isdecimal() and int(value[:6]) < 30:
        draft.tell("warning", "paste.some_layers", "left_out", "device", n=value[:6])
    else:
        draft.took("-ngl")


def _device(draft: Draft, value: str) -> None:
    names = [one for one in value.split(",") if one]
    numbers = [found[1] for one in names if (found := re.fullmatch(r"CUDA(\d{1,2})", one))]
    if value == "none":
        draft.set_device("--device", "cpu")
    elif numbers and len(numbers) == len(names):
        draft.start.gpus = numbers
        draft.took("--device")
    else:
        draft.tell("warning", "paste.device", "left_out", "device", flag="--device", value=value[:60])


def _embedding(draft: Draft, _value: str) -> None:
    draft.task = draft.task or "embed"
    draft.took("--embeddings")


def _rerank(draft: Draft, _value: str) -> None:
    draft.task = "score"
    draft.took("--reranking")


def _context(draft: Draft, value: str) -> None:
    if value.strip() != "0":  # 0: as long as the model says, which is what Berth does
        draft.set_field("--ctx-size", "max_model_len", value)


def _split(draft: Draft, value: str) -> None:
    parts = [one for one in re.split(r"[,/]", value) if one.strip(" 0.")]
    if 1 < len(parts) <= 64:
        draft.parts["tensor_parallel_size"] = len(parts)
        draft.took("--tensor-split")


def _name(draft: Draft, value: str) -> None:
    draft.set_name([one for one in value.split(",") if one][:1])


_OWN_SWITCHES = listed(
    """
    --jinja --mlock --no-mmap --mmap -fa --flash-attn -cb --cont-batching --metrics --slots --no-slots --props
    --no-webui -v --verbose --log-disable --log-colors --log-prefix --log-timestamps --no-warmup --warmup
    --no-perf --perf --offline --context-shift --no-context-shift -kvu --kv-unified --swa-full --no-display-prompt
    -co --color --no-kv-offload -nkvo --embd-normalize --api-key-file
    """
)
_OWN = listed(
    """
    --host --port -to --timeout --threads-http -t --threads -tb --threads-batch -lv --verbosity --path
    --api-prefix --numa --prio --prio-batch --poll -C --cpu-mask -Cr --cpu-range --cache-reuse
    --slot-prompt-similarity --log-verbosity --ssl-key-file --ssl-cert-file --alias-host --fit -ub --ubatch-size
    --cache-ram -cram
    """
)
_LOST = listed(
    """
    --temp --top-k --top-p --min-p -n --predict --n-predict --repeat-penalty --presence-penalty
    --frequency-penalty -s --samplers -mg --main-gpu -sm --split-mode -ot --override-tensor --n-cpu-moe -ncmoe -md
    --model-draft --draft-max --draft-min --draft --mmproj -mm --grammar --grammar-file --rope-scaling
    --rope-scale --rope-freq-base --rope-freq-scale --yarn-orig-ctx --keep --slot-save-path --log-file
    --reasoning-format --reasoning-budget --chat-template --chat-template-kwargs --pooling --lora --lora-scaled
    --control-vector --override-kv --cache-type-k -ctk --cache-type-v -ctv -ngld --gpu-layers-draft -cd
    --ctx-size-draft --media-path --defrag-thold -dt --dry-multiplier -hfd -hfrd --hf-repo-draft
    """
)
TABLE: dict[str, Rule] = {
    **dict.fromkeys(_OWN_SWITCHES, OWN_SWITCH),
    **dict.fromkeys(_OWN, OWN),
    **dict.fromkeys(_LOST, LOST),
    "--api-key-file": OWN, "--embd-normalize": OWN,
    "-m": MODEL, "--model": MODEL,
    "-hf": call(_repository), "-hfr": call(_repository), "--hf-repo": call(_repository),
    "-hff": call(_file), "--hf-file": call(_file), "-mu": call(_address), "--model-url": call(_address),
    "-a": call(_name), "--alias": call(_name), "--model-alias": call(_name),
    "-c": call(_context), "--ctx-size": call(_context), "--n-ctx": call(_context),
    "-np": same("max_num_seqs"), "--parallel": same("max_num_seqs"),
    "-ngl": call(_layers), "--gpu-layers": call(_layers), "--n-gpu-layers": call(_layers),
    "-dev": call(_device), "--device": call(_device), "-ts": call(_split), "--tensor-split": call(_split),
    "-b": same("max_num_batched_tokens"), "--batch-size": same("max_num_batched_tokens"),
    "--seed": same("seed"), "--chat-template-file": same("chat_template"),
    "--embedding": call(_embedding, 0), "--embeddings": call(_embedding, 0),
    "--rerank": call(_rerank, 0), "--reranking": call(_rerank, 0),
    "--api-key": SECRET, "-hft": SECRET, "--hf-token": SECRET,
    "--cpu-moe": LOST_SWITCH, "-cmoe": LOST_SWITCH, "--no-jinja": LOST_SWITCH, "--verbose-prompt": OWN_SWITCH,
}  # fmt: skip
_FLASH = ("on", "off", "auto", "0", "1")


def read(draft: Draft) -> None:
    words = list(draft.start.words)
    rest = tables.read(draft, words, TABLE, engine="llama.cpp")
    rest = [word for word in rest if word not in _FLASH]  # newer releases: -fa on
    if not draft.model and rest:
        draft.set_model(rest[0])
    context, people = draft.options.get("max_model_len"), draft.options.get("max_num_seqs")
    if isinstance(context, int) and isinstance(people, int) and people > 1 and context // people >= 16:
        draft.options["max_model_len"] = context // people  # its context is shared by all that run at once
        draft.tell(
            "note", "paste.shared_context", "changed", "max_model_len", total=context, n=people, each=context // people
        )
    for name in ("LLAMA_ARG_CTX_SIZE", "LLAMA_ARG_N_PARALLEL", "LLAMA_ARG_N_GPU_LAYERS", "LLAMA_ARG_MODEL"):
        value = draft.start.env.pop(name, "")
        flag = {"LLAMA_ARG_MODEL": "-m", "LLAMA_ARG_CTX_SIZE": "-c", "LLAMA_ARG_N_PARALLEL": "-np"}.get(name, "-ngl")
        if (value and size_of(value) is not None) or (value and name == "LLAMA_ARG_MODEL"):
            tables.read(draft, [flag, value], TABLE, engine="llama.cpp")
