"""`manage.py inspect`: facts and findings of a path, for people and programs, without a database."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.models_catalog.builders import gguf_bytes, hf_folder
from tests.models_catalog.stores import TINY, ollama

ROOT = Path(__file__).resolve().parents[2]


def inspect(*words: str) -> subprocess.CompletedProcess[str]:
    """No database is named, and none is there."""
    env = {"PATH": os.environ["PATH"], "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "LANG": "C.UTF-8"}
    argv = [sys.executable, "manage.py", "inspect", *words]
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_facts_and_findings_of_a_folder(tmp_path: Path) -> None:
    done = inspect(str(hf_folder(tmp_path / "m")))
    assert done.returncode == 0, done.stderr
    for line in ("architecture       LlamaForCausalLM", "parameters         528", "tokenizer.json"):
        assert line in done.stdout
    (tmp_path / "m" / "model.safetensors").write_bytes(b"")
    broken = inspect(str(tmp_path / "m"))
    assert broken.returncode == 1
    assert "✗ model.safetensors is empty (0 bytes). Copy or download" in broken.stdout


def test_json_has_codes_sentences_and_all_facts(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(gguf_bytes()[:-50])
    ollama(tmp_path / "store", "llama3.2:3b", TINY)
    done = inspect(str(tmp_path), "--json")
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert [model["name"] for model in told["models"]] == ["a", "llama3.2:3b"]
    (problem,) = told["models"][0]["problems"]
    assert (problem["code"], problem["blocking"]) == ("truncated", True)
    assert problem["text"].startswith("a.gguf is cut off")
    assert told["models"][1]["facts"]["template_text"] == "{{ .Prompt }}"
    assert told["models"][1]["facts"]["heads_by_layer"] == []


def test_single_files_blobs_too(tmp_path: Path) -> None:
    ollama(tmp_path, "m", TINY)
    blob = next(file for file in (tmp_path / "blobs").iterdir() if file.stat().st_size > 1000)
    assert "architecture       llama" in inspect(str(blob)).stdout
    folder = hf_folder(tmp_path / "m")
    assert "context            2,048" in inspect(str(folder / "config.json")).stdout
    assert "parameters         528" in inspect(str(folder / "model.safetensors")).stdout


def test_no_model_is_said_in_one_sentence(tmp_path: Path) -> None:
    for path, text in ((tmp_path, "There is no model at"), (tmp_path / "gone", "cannot be read")):
        done = inspect(str(path))
        assert done.returncode == 2
        assert text in done.stderr
        assert "Traceback" not in done.stderr
