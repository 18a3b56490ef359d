"""GGUF files: the ways to serve one, what a conversion takes, one at work, done, failed; a start that describes first."""

from models_catalog.models import Copy
from panel.fleet.models import Host, Runtime
from tests.browser.cases import case
from tests.browser.cases_fleet import make_host
from tests.deployments import builders

ROOMS = {
    "model_roots": ["/home/berth/.cache/huggingface/hub", "/srv/models", "/data/small"],
    "disks": [
        {"path": "/srv/models", "total_mib": 900_000, "free_mib": 120_000},
        {"path": "/data/small", "total_mib": 4_000, "free_mib": 900},
    ],
}
MEMORY = {"code": "convert.no_memory", "params": {"free_mib": 3_100, "need_mib": 21_400}}


def _vllm(host: Host, device: str, **more: str) -> Runtime:
    values = {"engine": "vllm", "executable": f"/opt/vllm-{device}/bin/vllm", "version": "0.32.0", "device": device}
    return Runtime.objects.create(
        host=host, python="3.12", flags=builders.FLAGS, **{**values, "origin": "path", **more}
    )


def _copy() -> Copy:
    """A GGUF on a host with GPUs whose vLLM lacks the plugin, with vLLM for the CPU, and with llama.cpp."""
    host = make_host("atlas", gpus=2, facts=ROOMS)
    host.runtimes.all().delete()
    _vllm(host, "cuda", origin="managed")
    _vllm(host, "cpu")
    Runtime.objects.create(host=host, engine="llamacpp", executable="/opt/llama.cpp/llama-server", version="b6123",
                           refusal={"code": "engine_not_used_yet", "params": {}}, origin="path")  # fmt: skip
    copy = builders.make_copy(host, "Qwen3-8B-Instruct-GGUF")
    copy.path, copy.root = "/srv/models/Qwen/Qwen3-8B-Instruct-GGUF/Qwen3-8B-Instruct-Q4_K_M.gguf", "/srv/models"
    copy.save()
    row = copy.artifact
    row.format, row.label, row.size_bytes = "gguf", "Q4_K_M", 5_027_783_872
    row.facts = {**row.facts, "format": "gguf", "parameters": 8_190_735_360, "weight_bytes": 5_000_000_000}
    row.save()
    return Copy.objects.select_related("host", "artifact__model").get(pk=copy.pk)


@case("model-gguf")
def model_gguf() -> str:
    return f"/models/{_copy().artifact.model_id}/"


@case("convert", role="operator")
def convert() -> str:
    return f"/models/copies/{_copy().pk}/convert"


@case("conversion", role="operator")
def conversion() -> str:
    made = {"name": "Qwen3-8B-Instruct-float16", "folder": "/srv/models", "bytes_total": 16_381_470_720}
    return f"/models/conversions/{builders.make_conversion(_copy(), **made).pk}/"


@case("conversion-failed", role="operator")
def conversion_failed() -> str:
    row = builders.make_conversion(
        _copy(), state="failed", refusal=MEMORY, progress={"phase": "checking", "passed": []}
    )
    return f"/models/conversions/{row.pk}/"


@case("conversion-done", role="operator")
def conversion_done() -> str:
    copy = _copy()
    found = builders.make_copy(copy.host, "Qwen3-8B-Instruct-float16")
    return f"/models/conversions/{builders.make_conversion(copy, state='done', made=found.path).pk}/"


@case("deployment-describing")
def deployment_describing() -> str:
    copy = _copy()
    reason = {"code": "preparing.sidecar", "params": {}}
    row = builders.make_deployment(copy, "assistant", state="preparing", reason=reason)
    run = builders.make_run(row, copy, phases=[], runtime=copy.host.runtimes.get(device="cuda"))
    run.job, run.placement = None, {**run.placement, "sidecar": {"job": str(run.job_id)}}
    run.save()
    return f"/deployments/{row.pk}/"
