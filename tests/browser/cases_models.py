"""The catalog's pages, as they look with models of all kinds."""

import tempfile
from pathlib import Path

from models_catalog import fits
from models_catalog.inspect.scan import scan_roots
from models_catalog.models import Artifact, CatalogModel, Copy
from models_catalog.services import record_scan
from panel.fleet.models import Gpu, Host, Runtime
from tests.browser.cases import case
from tests.deployments import builders
from tests.models_catalog.builders import gguf_bytes, hf_cache, hf_folder
from tests.models_catalog.estimate.builders import facts


def _shelf() -> None:
    """Real small files, really scanned; nothing of them is needed after that."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "models"
        hf_folder(root / "SmolLM2-135M-Instruct")
        hf_folder(root / "Qwen" / "Qwen3-30B-A3B-Instruct-2507", config={"num_experts": 128, "num_experts_per_tok": 8})
        hf_folder(root / "own-code", config={"auto_map": {"AutoModel": "modeling.M"}}, modeling__py="class M: pass")
        hf_folder(root / "千问-中文-模型", config={"num_hidden_layers": 3})
        (root / "gemma-3-27b-it-Q4_0.gguf").write_bytes(gguf_bytes())
        (root / "empty.gguf").write_bytes(b"")
        snapshot = hf_cache(root, "org/broken-off-download", incomplete=1)
        (snapshot / "model.safetensors").unlink()
        items = list(scan_roots([root]))
    added = "/data/a/very/long/path/of/models/that/the/agent/does/not/allow"
    disks = [{"path": "/", "total_mib": 900_000, "free_mib": 210_000}]
    facts = {"model_roots": [str(root)], "disks": disks}
    host = Host.objects.create(
        name="atlas", token_hash="atlas", facts=facts, model_roots=[added], ram_total_mib=64_000, is_local=True
    )
    for index in range(2):
        Gpu.objects.create(host=host, uuid=f"G{index}", index=index, name="NVIDIA L40S", total_mib=46_068)
    Host.objects.create(name="borealis", token_hash="borealis")
    Runtime.objects.create(host=host, engine="vllm", executable="/opt/vllm/bin/vllm", version="0.32.0", device="cpu")
    refused = [{"code": "root_not_allowed", "params": {"path": added}}]
    shape = {"format": "folder", "name": "x", "size_bytes": 0, "files": 0, "problems": refused}
    record_scan(host, [*items, {**shape, "path": added, "root": added}])
    fits.freshen()
    model = CatalogModel.objects.get(name="SmolLM2-135M-Instruct")
    model.tags, model.approved, model.approved_by = ["chat", "客服"], True, "Lin Wei"
    model.notes, model.notes_by = "Small and quick.\nFor trying things out.", "Mei Chen"
    model.approved_at = model.notes_at = model.created_at
    model.save()
    Copy.objects.create(artifact=model.artifacts.all()[0], host=host, path=f"{root}/backup/SmolLM2-135M-Instruct")
    row = builders.make_deployment(Copy.objects.filter(artifact__model=model)[0], "try-out", state="ready")
    builders.ready(row, builders.make_run(row, Copy.objects.filter(artifact__model=model)[0]))


LONG = "0-Org/" + "A-name-of-two-hundred-characters-" * 5 + "that-ends"


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
    return "/models/?format=hf&tag=chat&size=4"


@case("models-many")
def models_many() -> str:
    """A thousand models, with the longest names, tags, paths and hosts that fit into a row."""
    host = Host.objects.create(name="a-host-with-a-very-long-name-" + "x" * 30, token_hash="atlas", facts={})
    facts = {
        "format": "hf",
        "tasks": ["generate"],
        "parameters": 8_190_735_360,
        "context_length": 40960,
        "experts": 128,
    }
    models = CatalogModel.objects.bulk_create(CatalogModel(name=f"model-{n:04d}") for n in range(1000))
    models[0].name, models[0].tags = LONG, ["a tag of forty characters, no less: 40." for _ in range(1)]
    models[1].name, models[1].tags = "千问" * 40, [f"标签{n}" for n in range(20)]
    models[2].name = "0-a name with spaces " * 9
    CatalogModel.objects.bulk_update(models[:3], ["name", "tags"])
    artifacts = Artifact.objects.bulk_create(
        Artifact(model=m, format="hf", label="bfloat16", fingerprint=str(m.pk), size_bytes=17 << 30, facts=facts)
        for m in models
    )
    artifacts[0].label = "compressed-tensors-with-a-long-name-" * 5
    artifacts[0].save()
    Copy.objects.bulk_create(
        Copy(artifact=a, host=host, path=f"/data/{a.model.name}", extra={"own_bytes": 17 << 30}) for a in artifacts
    )
    copy = Copy.objects.get(artifact=artifacts[0])
    Copy.objects.create(artifact=artifacts[0], host=host, path="/backup" + "/a-long-part" * 40)
    for n in range(4):
        builders.make_deployment(copy, f"a-deployment-whose-name-is-as-long-as-it-may-be-{n}"[:60])
    return "/models/?sort=name"


@case("model-long-names")
def model_long_names() -> str:
    models_many()
    return f"/models/{CatalogModel.objects.get(name=LONG).pk}/"


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


@case("model-fits", role="operator")
def model_fits() -> str:
    """A model with a shape, and hosts of many kinds: cards that are too small or too old, pairs, a machine without any."""
    host = builders.make_host("atlas")
    kinds = [("NVIDIA L40S", 46_068, "8.9")] * 2 + [
        ("NVIDIA H100 80GB HBM3", 81_559, "9.0"),
        ("Tesla T4", 15_360, "7.5"),
    ]
    for index, (name, total, able) in enumerate([*kinds, ("Tesla P40", 24_576, "6.1")]):
        measured = {"compute_capability": able}
        Gpu.objects.create(
            host=host, uuid=f"G{index}", index=index, name=name, total_mib=total, used_mib=500, measured=measured
        )
    for name in ("borealis", "desk", "a-host-with-a-long-name"):
        builders.make_host(name)
    copy = builders.make_copy(host, "Qwen3-8B")
    shape = facts("Qwen--Qwen3-8B", max_position_embeddings=131_072)
    copy.artifact.facts = {**shape.to_dict(), "weight_bytes": 16_381_516_776}
    copy.artifact.save()
    return f"/models/{copy.artifact.model_id}/"


@case("model-elsewhere", role="viewer")
def model_elsewhere() -> str:
    return f"{model_fits()}elsewhere"


@case("model-unusable", role="operator")
def model_unusable() -> str:
    return damaged()


def damaged() -> str:
    """One of four weight files is too short, and the panel knows where it came from."""
    _shelf()
    host = Host.objects.get(name="atlas")
    made = builders.make_download(host, state="done", name="Tiny-1B-Instruct", folder="/models")
    copy = builders.make_copy(host, usable=False, problems=[
        {"code": "truncated", "params": {"file": "model-2.safetensors", "size": 900 << 20, "expected": 1 << 30}}
    ])  # fmt: skip
    files = [{"name": f"model-{n}.safetensors", "size": 1 << 30, "kind": "weights"} for n in range(1, 5)]
    copy.artifact.facts = {**copy.artifact.facts, "files": files}
    copy.artifact.save()
    assert made.repo in copy.path or made.name in copy.path
    return f"/models/{copy.artifact.model_id}/"


@case("model-own-code")
def model_own_code() -> str:
    """Its code changed, and an engine would take more of it from elsewhere."""
    where = _page_of("own-code")
    model = CatalogModel.objects.get(name="own-code")
    model.code_withdrawn = ["modeling.py", "configuration_of_a_model_with_a_long_name.py"]
    model.save()
    artifact = model.artifacts.all()[0]
    artifact.facts = {**artifact.facts, "code_elsewhere": ["org/code-of-a-model-with-a-very-long-name"]}
    artifact.save()
    return where


@case("model-delete")
def model_delete() -> str:
    """The last copy of a model that stopped deployments name."""
    return last_copy()


def last_copy() -> str:
    host = Host.objects.create(name="atlas", token_hash="atlas", facts={"model_roots": ["/models"]})
    copy = builders.make_copy(host)
    builders.make_deployment(copy)
    builders.make_deployment(copy, "reports-in-the-night")
    return f"/models/copies/{copy.pk}/delete"


@case("model-delete-running")
def model_delete_running() -> str:
    _shelf()
    return f"/models/copies/{Copy.objects.filter(artifact__model__name='SmolLM2-135M-Instruct')[0].pk}/delete"


@case("model-template", role="viewer")
def model_template() -> str:
    _shelf()
    artifact = CatalogModel.objects.get(name="SmolLM2-135M-Instruct").artifacts.all()[0]
    return f"/models/forms/{artifact.pk}/template"
