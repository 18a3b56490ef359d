"""The first page of a panel without deployments, at each of its steps."""

from models_catalog.models import Artifact, CatalogModel, Copy
from panel.fleet.models import Host, Runtime
from tests.browser.cases import case
from tests.browser.cases_fleet import make_host


def add_model(host: Host, name: str = "SmolLM2-135M-Instruct") -> Copy:
    model, _made = CatalogModel.objects.get_or_create(name=name)
    artifact = Artifact.objects.create(
        model=model, format="hf", label="bfloat16", fingerprint=f"print of {name}", size_bytes=269_060_552
    )
    return Copy.objects.create(artifact=artifact, host=host, path=f"/data/models/{name}", root="/data/models")


@case("first-steps-nothing")
def nothing() -> str:
    return "/"


@case("first-steps-no-engine")
def no_engine() -> str:
    make_host("atlas", is_local=True)
    return "/"


@case("first-steps-broken-engine")
def broken_engine() -> str:
    host = make_host("atlas", is_local=True)
    Runtime.objects.create(
        host=host, engine="vllm", executable="/opt/vllm/bin/vllm", refusal={"code": "probe_timeout", "params": {}}
    )
    return "/"


@case("first-steps-ready", role="operator")
def ready() -> str:
    host = make_host("atlas", is_local=True)
    Runtime.objects.create(host=host, engine="vllm", executable="/opt/vllm/bin/vllm", version="0.32.0", device="cpu")
    add_model(host)
    return "/"
