"""Downloads: on the way and over, one in every state, the search, a model with its forms, tokens, no network."""

import atexit
from functools import cache

from django.utils import timezone

from models_catalog.downloads.models import HubAccess
from panel.core.crypto import seal
from panel.fleet.models import Host, Runtime
from tests.browser.cases import case
from tests.browser.cases_fleet import make_host
from tests.deployments import builders
from tests.fakes.hub import Hub

FOLDERS = {
    "model_roots": ["/home/berth/.cache/huggingface/hub", "/srv/models"],
    "disks": [{"path": "/home/berth/.cache/huggingface/hub", "total_mib": 900_000, "free_mib": 120_000}],
}
OFFLINE = {"code": "download.offline", "params": {"host": "hub.example"}}
SPACE = {"code": "download.no_space", "params": {"path": "/srv/models", "free_mib": 900, "need_mib": 1800}}


@cache
def hub() -> str:
    """The address of a hub with a few models, for as long as the tests run; the web process of the tests knows it."""
    serving = Hub()
    serving.__enter__()
    atexit.register(serving.__exit__)
    serving.add("acme/Tiny-1B-Instruct", {"config.json": b"{}", "model.safetensors": b"w" * 9000, "tokenizer.json": b"{}"},
            license="apache-2.0", downloads=1_234_567, tags=["safetensors"])  # fmt: skip
    files = {
        f"Tiny-1B-Instruct-{name}.gguf": b"g" * size
        for name, size in (("Q4_K_M", 4000), ("Q8_0", 9000), ("F16", 18000))
    }
    serving.add("acme/Tiny-1B-Instruct-GGUF", files, license="apache-2.0", downloads=45_678, tags=["gguf"])
    serving.add("acme/A-model-with-a-very-long-name-that-has-to-be-broken-somewhere", {"model.safetensors": b"w"},
            gated="manual", downloads=12, license="a-licence-of-its-own")  # fmt: skip
    return serving.url


def _host() -> Host:
    return make_host("atlas", gpus=2, facts=FOLDERS)


def vllm(host: Host) -> None:
    Runtime.objects.create(host=host, engine="vllm", executable="/opt/vllm/bin/vllm", version="0.32.0", device="cuda",
                           python="3.12", flags={}, origin="path")  # fmt: skip


@case("downloads")
def downloads() -> str:
    host = _host()
    builders.make_download(host)
    builders.make_download(host, repo="acme/Other-7B", progress={"phase": "verifying", "done": 900 << 20, "rate": 0.0})
    builders.make_download(host, state="paused", repo="acme/Third-7B", label="Q4_K_M")
    builders.make_download(host, state="waiting", repo="acme/Fourth-7B", job=None, tries=0, bytes_done=0)
    builders.make_download(host, state="done", repo="acme/Fifth-7B")
    builders.make_download(
        host, state="failed", repo="acme/A-model-with-a-very-long-name-that-has-to-be-broken", refusal=SPACE
    )
    builders.make_download(host, state="cancelled", repo="acme/Seventh-7B")
    return "/models/downloads/"


@case("downloads-none", role="viewer")
def downloads_none() -> str:
    return "/models/downloads/"


@case("download-running")
def download_running() -> str:
    return f"/models/downloads/{builders.make_download(_host()).pk}/"


@case("download-silent")
def download_silent() -> str:
    still = {"silent_s": 75.0, "rate": 0.0, "trouble": "connection_lost"}
    return f"/models/downloads/{builders.make_download(_host(), progress=still).pk}/"


@case("download-failed")
def download_failed() -> str:
    return f"/models/downloads/{builders.make_download(_host(), state='failed', refusal=OFFLINE).pk}/"


COMPARED = {"phase": "placing", "done": 0, "total": 0, "rate": 0.0, "passed": ["checking", "downloading", "verifying"]}


@case("download-done", role="viewer")
def download_done() -> str:
    return f"/models/downloads/{builders.make_download(_host(), state='done', progress=COMPARED).pk}/"


@case("download-arrived", role="operator")
def download_arrived() -> str:
    """The catalog has the model, and it can be deployed."""
    host = _host()
    copy = builders.make_copy(host)
    vllm(host)
    row = builders.make_download(host, state="done", progress=COMPARED, made=[copy.path])
    return f"/models/downloads/{row.pk}/"


@case("download-paused")
def download_paused() -> str:
    row = builders.make_download(_host(), state="paused", moved_by="olga", tries=2)
    return f"/models/downloads/{row.pk}/"


@case("download-away")
def download_away() -> str:
    host = _host()
    row = builders.make_download(host)
    Host.objects.filter(pk=host.pk).update(lost_at=timezone.now())
    return f"/models/downloads/{row.pk}/"


@case("download-find")
def download_find() -> str:
    _host()
    return "/models/downloads/find"


@case("download-found")
def download_found() -> str:
    _host()
    return "/models/downloads/find?q=acme"


@case("download-new")
def download_new() -> str:
    _host()
    make_host("quay", facts=FOLDERS)
    return "/models/downloads/new?source=huggingface&repo=acme/Tiny-1B-Instruct-GGUF"


@case("download-new-gated", role="operator")
def download_new_gated() -> str:
    _host()
    return (
        "/models/downloads/new?source=huggingface"
        "&repo=acme/A-model-with-a-very-long-name-that-has-to-be-broken-somewhere"
    )


@case("download-unreachable")
def download_unreachable() -> str:
    _host()
    return "/models/downloads/new?source=modelscope&repo=acme/Tiny-1B-Instruct"


@case("download-access")
def download_access() -> str:
    _host()
    HubAccess.objects.create(source="huggingface", endpoint=hub(), token=seal("x"), ending="k3Vq", given_by="maria")  # fmt: skip
    HubAccess.objects.create(source="modelscope", endpoint="https://mirror.example", token=seal("x"), ending="9aBc", given_by="maria")  # fmt: skip
    return "/models/downloads/access"
