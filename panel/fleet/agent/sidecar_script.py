"""Runs in an engine's own Python, never in the agent's: what a GGUF file says of its model, as Hugging Face files.

    python -I sidecar_script.py describe '["/models/x.gguf"]' OUT
    python -I sidecar_script.py convert '["/models/x-00001-of-00002.gguf", …]' OUT float16

Both write config.json, the tokenizer with its chat template, and generation_config.json to OUT, an empty folder;
`convert` writes the weights too, unpacked. Only standard library, transformers, torch and gguf of that Python; no code
of a model is loaded. Each line on stdout that begins with SAYS is JSON: {"phase", "done", "total"} or {"error", …}.
"""

from __future__ import annotations

import importlib
import json
import re
import resource
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

SAYS = "berth: "
FAILED = 3  # exit code of a failure that was told
MOST_DESCRIBED = 1 << 30  # bytes of one file of a description
SHARD = "4GB"
# Ends of a turn beside the end of a text; an engine that knows only the latter talks on and on.
ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
UNWANTED = ("_name_or_path", "_model_name_or_path", "auto_map", "quantization_config")


class Told(Exception):
    """A failure with a code and parameters for the panel."""

    def __init__(self, error: str, **params: Any) -> None:
        super().__init__(error)
        self.error, self.params = error, params


def say(**fact: Any) -> None:
    sys.stdout.write(SAYS + json.dumps(fact) + "\n")
    sys.stdout.flush()


def module(name: str) -> Any:
    """A module of this Python. Raises Told where it is missing or broken."""
    try:
        return importlib.import_module(name)
    except Exception as exc:
        raise Told("no_reader", package=name.partition(".")[0], detail=_line(exc)) from exc


def _line(exc: BaseException) -> str:
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return f"{type(exc).__name__}: {lines[0] if lines else ''}"[:500]


def attempt(error: str, act: Callable[[], Any]) -> Any:
    """Do it, and tell what went wrong; an architecture that transformers does not read has an error of its own."""
    try:
        return act()
    except (MemoryError, Told):
        raise
    except Exception as exc:
        unknown = re.search(r"architecture (\S+) is not supported", str(exc))
        if unknown:
            raise Told("unknown_architecture", architecture=unknown[1][:100]) from exc
        raise Told(error, detail=_line(exc)) from exc


# --- what both do -----------------------------------------------------------------------------------------------------


class Header:
    """The metadata of the first part."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def number(self, key: str) -> int | None:
        field = self.reader.fields.get(key)
        if field is None or not len(field.data):
            return None
        value = field.parts[field.data[0]][0]
        return int(value)


def describe(first: Path, out: Path, header: Header) -> Any:
    """Write configuration and tokenizer; returns the configuration."""
    transformers = module("transformers")
    source = {"gguf_file": first.name, "local_files_only": True}
    config = attempt("config", lambda: transformers.AutoConfig.from_pretrained(first.parent, **source))
    say(phase="describing", done=1, total=3)
    tokenizer = attempt("tokenizer", lambda: transformers.AutoTokenizer.from_pretrained(first.parent, **source))
    say(phase="describing", done=2, total=3)
    if config.max_position_embeddings if hasattr(config, "max_position_embeddings") else 0:
        tokenizer.model_max_length = int(config.max_position_embeddings)
    begin_as_told(tokenizer, header)
    attempt("tokenizer", lambda: tokenizer.save_pretrained(out))
    attempt("config", lambda: config.save_pretrained(out))
    plain(out, config, header)
    say(phase="describing", done=3, total=3)
    return config


def begin_as_told(tokenizer: Any, header: Header) -> None:
    """Where the file says that texts begin with a token of their own, the tokenizer made of it has to put it there."""
    first = header.number("tokenizer.ggml.add_bos_token")
    begin = header.number("tokenizer.ggml.bos_token_id")
    fast = getattr(tokenizer, "backend_tokenizer", None)
    if not first or begin is None or fast is None or tokenizer("a")["input_ids"][:1] == [begin]:
        return
    name = tokenizer.convert_ids_to_tokens(begin)
    template = module("tokenizers.processors").TemplateProcessing(
        single=[name, "$A"], pair=[name, "$A", name, "$B"], special_tokens=[(name, begin)]
    )
    fast.post_processor = template


def plain(out: Path, config: Any, header: Header) -> None:
    """What engines of several ages read: no code, no traces of the file, the names of transformers 4 beside the new."""
    path = out / "config.json"
    found = json.loads(path.read_text())
    for name in UNWANTED:
        found.pop(name, None)
    rope = found.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        found.setdefault("rope_theta", rope["rope_theta"])
        if rope.get("rope_type", "default") != "default":
            found.setdefault("rope_scaling", {key: value for key, value in rope.items() if key != "rope_theta"})
    found.setdefault("architectures", architectures(str(found.get("model_type", ""))))
    write(path, found)
    path = out / "tokenizer_config.json"
    if path.exists():
        kept = json.loads(path.read_text())
        for name in ("auto_map", "is_local", "local_files_only", "name_or_path"):
            kept.pop(name, None)
        if kept.get("tokenizer_class") == "TokenizersBackend":
            kept["tokenizer_class"] = "PreTrainedTokenizerFast"
        write(path, kept)
    ends = list(dict.fromkeys(end for key in ENDS if (end := header.number(key)) is not None))
    if isinstance(known := found.get("eos_token_id"), list):
        ends = list(dict.fromkeys([*known, *ends]))
    begin, pad = found.get("bos_token_id"), found.get("pad_token_id")
    told = {"bos_token_id": begin, "eos_token_id": ends or found.get("eos_token_id"), "pad_token_id": pad}
    write(out / "generation_config.json", {name: value for name, value in told.items() if value is not None})


def architectures(kind: str) -> list[str]:
    """The class that transformers would generate text with."""
    names = module("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    found = names.get(kind)
    return [found] if isinstance(found, str) else []


def write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


# --- weights ----------------------------------------------------------------------------------------------------------


def told_of(total: int) -> Callable[..., Iterator[Any]]:
    """In the place of transformers' own progress bar: tell how many tensors have been read, of all parts."""

    def walk(items: Iterable[Any], **_known: Any) -> Iterator[Any]:
        for done, item in enumerate(items):
            if done % 8 == 0:
                say(phase="reading", done=done, total=total)
            yield item
        say(phase="reading", done=total, total=total)

    return walk


def join(gguf: Any, parts: list[Path]) -> int:
    """Have transformers find the tensors of all parts in the reader of the first; returns how many there are."""
    one = gguf.GGUFReader
    rest = [one(str(part)) for part in parts[1:]]

    def joined(path: Any, *more: Any) -> Any:
        reader = one(path, *more)
        for other in rest:
            reader.tensors.extend(other.tensors)
        return reader

    gguf.GGUFReader = joined
    return len(joined(str(parts[0])).tensors)


def convert(parts: list[Path], out: Path, dtype: str, header: Header) -> None:
    torch, transformers, gguf = module("torch"), module("transformers"), module("gguf")
    transformers.utils.logging.disable_progress_bar()  # the log would be full of them
    config = describe(parts[0], out, header)
    reading = module("transformers.modeling_gguf_pytorch_utils")
    reading.tqdm = told_of(join(gguf, parts))
    more = {}
    if hasattr(module("transformers.utils.quantization_config"), "GgufConfig"):  # else it always unpacks
        more = {"quantization_config": transformers.utils.quantization_config.GgufConfig(dequantize=True)}
    auto = transformers.AutoModelForCausalLM
    number = getattr(torch, dtype)
    told = {"gguf_file": parts[0].name, "local_files_only": True, "trust_remote_code": False}
    model = attempt("convert", lambda: auto.from_pretrained(parts[0].parent, dtype=number, **told, **more))
    packed = [name for name, value in model.named_parameters() if value.is_floating_point() and value.dtype != number]
    if packed or not all(value.is_floating_point() for value in model.parameters()):
        raise Told("convert", detail=f"weights are still packed: {packed[:3]}")
    say(phase="writing", done=0, total=0)
    attempt("convert", lambda: model.save_pretrained(out, max_shard_size=SHARD))
    plain(out, config, header)
    path = out / "config.json"
    write(path, json.loads(path.read_text()) | {"dtype": dtype, "torch_dtype": dtype})


# --- the beginning ----------------------------------------------------------------------------------------------------


def work(kind: str, parts: list[Path], out: Path, dtype: str) -> None:
    gguf = module("gguf")
    if kind == "describe":
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_DESCRIBED, MOST_DESCRIBED))
    header = Header(attempt("header", lambda: gguf.GGUFReader(str(parts[0]))))
    if kind == "describe":
        describe(parts[0], out, header)
    else:
        convert(parts, out, dtype, header)
    for path in out.iterdir():
        path.chmod(0o644)  # the engine may run as another user


def main(argv: list[str]) -> int:
    kind, parts, out, *more = argv
    try:
        work(kind, [Path(part) for part in json.loads(parts)], Path(out), more[0] if more else "")
    except Told as exc:
        say(error=exc.error, **exc.params)
        return FAILED
    except MemoryError:
        say(error="no_memory")
        return FAILED
    except OSError as exc:
        say(error="disk_full" if exc.errno in (27, 28, 122) else "system", detail=_line(exc))
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
