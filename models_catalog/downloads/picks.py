"""Which files of a repository make a model: one choice per GGUF quantisation, and one of the Hugging Face kind. Pure.

Left out are the same weights in another program's form (`.bin` and `.pth` beside safetensors, ONNX, TensorFlow,
Flax, OpenVINO), training leftovers, pictures, and folders that hold the originals once more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from models_catalog.downloads.catalogue import HubFile

SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.I)
QUANT = re.compile(
    r"(?:^|[-_./])((?:UD-)?(?:I?Q\d+(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|F16|F32|BF16|FP16|FP32))(?=$|[-_./])",
    re.I,
)
PROJECTOR = re.compile(r"(?:^|/)mmproj[^/]*\.gguf$", re.I)
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".onnx_data", ".ot", ".gguf", ".tflite",
           ".mlmodel", ".ckpt", ".npz")  # fmt: skip
SMALL = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".vocab", ".bpe", ".py", ".spm", ".wordpiece")
PAPERS = ("readme.md", "license", "license.txt", "license.md", "notice", "usage_policy.md", "model_card.md")
LEFT_FOLDERS = ("original", "onnx", "openvino", "coreml", "tflite", "runs", "logs", "images", "assets", "metal", ".git",
                "training", "checkpoint", "examples", "figures")  # fmt: skip
LEFT_FILES = ("optimizer.pt", "scheduler.pt", "training_args.bin", "trainer_state.json", "rng_state.pth",
              "consolidated.safetensors.index.json", ".gitattributes", ".gitignore")  # fmt: skip


@dataclass(frozen=True)
class Choice:
    """Files that together are one model. `key` names the choice in a form; `format` is hf or gguf."""

    key: str
    label: str
    format: str
    files: tuple[HubFile, ...]
    weights: int = 0  # bytes of the weight files
    missing: tuple[str, ...] = field(default=())  # parts that the repository lacks

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def complete(self) -> bool:
        return not self.missing and all(file.sha256 or file.etag for file in self.files)


def choices(files: Iterable[HubFile]) -> list[Choice]:
    """What can be fetched of a repository: the Hugging Face kind first, then GGUF from the smallest on."""
    known = list(files)
    ggufs = [file for file in known if file.path.lower().endswith(".gguf")]
    found = [choice for choice in [_folder(known)] if choice is not None]
    return found + _ggufs(ggufs, known)


def one(files: Iterable[HubFile], key: str) -> Choice | None:
    return next((choice for choice in choices(files) if choice.key == key), None)


def _left_out(path: str) -> bool:
    *folders, name = path.lower().split("/")
    if any(folder.startswith(LEFT_FOLDERS) or folder.startswith(".") for folder in folders):
        return True
    return name in LEFT_FILES or name.startswith((".", "events.out"))


def _folder(known: list[HubFile]) -> Choice | None:
    """config.json, tokenizer and one kind of weights."""
    files = [file for file in known if not _left_out(file.path)]
    weights = [file for file in files if file.path.lower().endswith(".safetensors")]
    if not weights:
        weights = [
            file for file in files if re.search(r"(?:^|/)(pytorch_model|model|adapter_model)[^/]*\.bin$", file.path)
        ]
    shards = [file for file in weights if not re.search(r"(?:^|/)consolidated[^/]*\.safetensors$", file.path)]
    weights = shards or weights  # Mistral's own form only where there is no other
    if not weights:
        return None
    rest = [file for file in files if _is_small(file.path)]
    params_only = {"params.json", "consolidated.safetensors.index.json"} if shards else set()
    rest = [file for file in rest if file.path not in params_only]
    chosen = sorted({file.path: file for file in [*weights, *rest]}.values(), key=lambda file: file.path)
    return Choice("hf", "", "hf", tuple(chosen), sum(file.size for file in weights), _gaps(weights))


def _is_small(path: str) -> bool:
    name = path.lower().rsplit("/", 1)[-1]
    return not name.endswith(WEIGHTS) and (name.endswith(SMALL) or name in PAPERS)


def _gaps(weights: list[HubFile]) -> tuple[str, ...]:
    """Shards that their own names promise and that are not there."""
    groups: dict[tuple[str, str, str], set[int]] = {}
    for file in weights:
        found = re.fullmatch(r"(.+)-(\d{5})-of-(\d{5})\.(safetensors|bin)", file.path)
        if found:
            groups.setdefault((found[1], found[3], found[4]), set()).add(int(found[2]))
    return tuple(
        f"{stem}-{number:05d}-of-{count}.{ending}"
        for (stem, count, ending), there in groups.items()
        for number in range(1, min(int(count), 1000) + 1)
        if number not in there
    )


def _ggufs(ggufs: list[HubFile], known: list[HubFile]) -> list[Choice]:
    groups: dict[str, list[HubFile]] = {}
    for file in ggufs:
        if not PROJECTOR.search(file.path):
            groups.setdefault(SPLIT.sub("", file.path).removesuffix(".gguf"), []).append(file)
    projector = sorted((file for file in ggufs if PROJECTOR.search(file.path)), key=lambda file: file.size)
    beside = [file for file in known if file.path.lower() in ("config.json", "tokenizer.json", "tokenizer_config.json",
              "generation_config.json", "special_tokens_map.json", *PAPERS)]  # fmt: skip
    made = []
    for name, parts in groups.items():
        label = quantisation(name) or name.rsplit("/", 1)[-1][:80]
        files = sorted([*parts, *projector[:1], *beside], key=lambda file: file.path)
        weights = sum(file.size for file in parts)
        made.append(Choice(f"gguf:{name}"[:300], label, "gguf", tuple(files), weights, _missing_parts(parts)))
    return sorted(made, key=lambda choice: (choice.weights, choice.key))


def _missing_parts(parts: list[HubFile]) -> tuple[str, ...]:
    numbers = {int(found[1]): found for file in parts if (found := SPLIT.search(file.path))}
    if not numbers:
        return ()
    first = next(iter(numbers.values()))
    stem = first.string[: first.start()]
    count = min(int(first[2]), 1000)
    return tuple(f"{stem}-{n:05d}-of-{int(first[2]):05d}.gguf" for n in range(1, count + 1) if n not in numbers)


def quantisation(name: str) -> str:
    """Q4_K_M of "model-Q4_K_M" or "Q4_K_M/model"; "" when the name does not say."""
    found = QUANT.findall(name)
    return found[-1].upper() if found else ""
