"""An engine's own start, until its configuration stands, and no further. Run by that engine's Python, not by ours:

    PYTHON check_script.py EXECUTABLE serve MODEL …

It runs the executable as a start does, so that the engine's own parser, defaults and rules decide, in whatever version
it is, and ends the process where the engine would go on to load weights. `create_engine_config` is the place: every
vLLM builds its configuration there, before it begins an engine process and before a GPU is touched. Then two things
that a start finds out only after minutes, and which are cheap: the tokenizer is loaded, adapters (LoRA) are looked at.
What the engine has to say it says on stdout and stderr, as in a start; the verdict is one line of its own.

Standard library and vLLM only.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

SAYS = "berth-check: "
CONFIG = "vllm.engine.arg_utils"
TOKENIZERS = ("vllm.tokenizers.registry", "vllm.transformers_utils.tokenizer")


def leave(verdict: str, code: int = 0) -> None:
    """Say it and go at once: threads and helpers that the engine began must not keep this alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    sys.stdout.write(SAYS + json.dumps({"verdict": verdict}) + "\n")
    sys.stdout.flush()
    os._exit(code)


def arm() -> None:
    """Put the end where the configuration stands. Without that place nothing may be run: it would be a start."""
    try:
        args = importlib.import_module(CONFIG)
    except ModuleNotFoundError as exc:
        if exc.name in ("vllm.engine", CONFIG):
            leave("unknown")
        raise
    kinds = [kind for kind in (args.EngineArgs, args.AsyncEngineArgs) if "create_engine_config" in vars(kind)]
    if not kinds or not hasattr(args.AsyncEngineArgs, "from_cli_args"):
        leave("unknown")
    seen: dict[str, Any] = {}
    for kind in kinds:
        kind.create_engine_config = ending(kind.create_engine_config, seen)
    read = args.AsyncEngineArgs.from_cli_args.__func__

    def from_cli_args(cls: Any, cli: Any) -> Any:
        seen["cli"], seen["args"] = cli, read(cls, cli)
        return seen["args"]

    args.AsyncEngineArgs.from_cli_args = classmethod(from_cli_args)
    no_processes(seen)


def ending(make: Any, seen: dict[str, Any]) -> Any:
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = make(self, *args, **kwargs)
        look_at_tokenizer(config)
        look_at_adapters(config, seen.get("cli"))
        leave("passed")

    return create_engine_config


def no_processes(seen: dict[str, Any]) -> None:
    """Old releases begin the engine's process first and build the configuration beside it: build it, and end."""
    process: Any = importlib.import_module("multiprocessing.process").BaseProcess

    def start(self: Any) -> None:
        if "args" in seen:
            seen["args"].create_engine_config()
        leave("unknown")

    process.start = start


def called(function: Any, *args: Any) -> Any:
    """Call something whose signature may be another in another release; then it is passed over."""
    try:
        return function(*args)
    except TypeError as exc:
        trace = exc.__traceback__
        if trace is not None and trace.tb_next is not None:  # raised inside: the engine's own word
            raise
    return None


def found(name: str, *modules: str) -> Any:
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    return None


def look_at_tokenizer(config: Any) -> None:
    model = getattr(config, "model_config", config)
    load = found("cached_tokenizer_from_config", *TOKENIZERS)
    if load is not None and not getattr(model, "skip_tokenizer_init", False):
        called(load, model)


def look_at_adapters(config: Any, cli: Any) -> None:
    limits, model = getattr(config, "lora_config", None), getattr(config, "model_config", None)
    helper = found("PEFTHelper", "vllm.lora.peft_helper")
    if limits is None or helper is None:
        return
    for module in getattr(cli, "lora_modules", None) or []:
        path = getattr(module, "path", "")
        if not Path(path, "adapter_config.json").is_file():
            raise ValueError(f"Loading lora {getattr(module, 'name', '')} failed: No adapter found for {path}")
        known = called(helper.from_local_dir, path, getattr(model, "max_model_len", None))
        if known is not None and hasattr(known, "validate_legal"):
            called(known.validate_legal, limits)


def main() -> None:
    # A start has the executable's folder first; ours would put our modules before the engine's.
    sys.path[0] = str(Path(sys.argv[1]).absolute().parent)
    sys.argv = sys.argv[1:]
    try:
        arm()
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        leave("refused", 1)
    leave("unknown")  # it ended by itself without a word of its configuration


if __name__ == "__main__":
    main()
