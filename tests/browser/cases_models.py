"""The catalog's pages, as they look with models of all kinds."""

import tempfile
from pathlib import Path

from models_catalog.inspect.scan import scan_roots
from models_catalog.models import CatalogModel
from models_catalog.services import record_scan
from panel.fleet.models import Host, Runtime
from tests.browser.cases import case
from tests.models_catalog.builders import gguf_bytes, hf_cache, hf_folder


def _shelf() -> None:
    """Real small files, really scanned; nothing of them is needed after that."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "models"
        hf_folder(root / "SmolLM2-135M-Instruct")
        hf_folder(root / "Qwen" / "Qwen3-30B-A3B-Instruct-2507", config={"num_experts": 128, "num_experts_per_tok": 8})
        hf_folder(root / "own-code", config={"auto_map": {"AutoModel": "modeling.M"}}, modeling__py="")
        hf_folder(root / "千问-中文-模型", config={"num_hidden_layers": 3})
        (root / "gemma-3-27b-it-Q4_0.gguf").write_bytes(gguf_bytes())
        (root / "empty.gguf").write_bytes(b"")
        snapshot = hf_cache(root, "org/broken-off-download", incomplete=1)
        (snapshot / "model.safetensors").unlink()
        items = list(scan_roots([root]))
    added = "/data/a/very/long/path/of/models/that/the/agent/does/not/allow"
    host = Host.objects.create(
        name="atlas", token_hash="atlas", facts={"model_roots": [str(root)]}, model_roots=[added]
    )
    Host.objects.create(name="borealis", token_hash="borealis")
    Runtime.objects.create(host=host, engine="vllm", executable="/opt/vllm/bin/vllm", version="0.32.0", device="cpu")
    refused = [{"code": "root_not_allowed", "params": {"path": added}}]
    shape = {"format": "folder", "name": "x", "size_bytes": 0, "files": 0, "problems": refused}
    record_scan(host, [*items, {**shape, "path": added, "root": added}])


def _page_of(name: str) -> str:
    _shelf()
    return f"/models/{CatalogModel.objects.get(name=name).pk}/"


@case("models")
def models() -> str:
    _shelf()
    return "/models/"


@case("models-viewer", role="viewer")
def models_viewer() -> str:
    _shelf()
    return "/models/"


@case("models-empty", role="operator")
def models_empty() -> str:
    Host.objects.create(name="atlas", token_hash="atlas", facts={"model_roots": ["/home/berth/models"]})
    return "/models/"


@case("models-nothing-matches")
def models_nothing_matches() -> str:
    _shelf()
    return "/models/?q=nothing&show=gone"


@case("model")
def model() -> str:
    return _page_of("SmolLM2-135M-Instruct")


@case("model-unusable", role="operator")
def model_unusable() -> str:
    return _page_of("org/broken-off-download")


@case("model-own-code")
def model_own_code() -> str:
    return _page_of("own-code")
