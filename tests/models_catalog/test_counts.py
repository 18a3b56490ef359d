"""Pages and API of the shelf ask the database as often for a thousand models as for a few."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from models_catalog.models import Artifact, CatalogModel, Copy
from panel.accounts.models import User
from panel.fleet.models import Host, Runtime
from tests.api.conftest import person, program
from tests.deployments import builders

pytestmark = pytest.mark.django_db
MANY = 1000
FACTS = {"format": "hf", "tasks": ["generate"], "parameters": 8_190_735_360, "context_length": 40960, "heads": 16}


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)
    row = builders.make_host(gpus=2)
    Runtime.objects.create(host=row, engine="vllm", executable="/opt/vllm", device="cuda", version="0.32.0")
    return row


def fill(host: Host, start: int, count: int) -> None:
    """Models with copies, in few statements; every tenth lies on the host twice, is used and runs."""
    names = [f"m{n:04d}" for n in range(start, start + count)]
    models = CatalogModel.objects.bulk_create(CatalogModel(name=name, tags=["chat"], approved=True) for name in names)
    artifacts = Artifact.objects.bulk_create(
        Artifact(
            model=model, format="hf", label="bfloat16", fingerprint=model.name, size_bytes=17 << 30, facts=FACTS,
            fits={"best": "fits", "on": []},
        )
        for model in models
    )  # fmt: skip
    copies = Copy.objects.bulk_create(
        Copy(artifact=artifact, host=host, path=f"{top}/{artifact.model.name}", extra={"own_bytes": 17 << 30})
        for n, artifact in enumerate(artifacts)
        for top in (["/models", "/backup"] if n % 10 == 0 else ["/models"])
    )
    for n, copy in enumerate(copies[:30:10]):
        row = builders.make_deployment(copy, f"d{start}-{n}", state="ready")
        builders.make_run(row, copy)


PAGES = [
    "/models/", "/models/?page=2", "/models/?q=m0 chat", "/models/?show=fits&sort=size", "/models/?show=unused&sort=new",
    "/models/?show=approved&format=hf&task=generate&size=64&label=bfloat16&tag=chat&host=quay",
    "/models/?part=rows", "/models/?part=disks", "/models/?part=folders", "/models/{model}/", "/models/copies/{copy}/delete",
]  # fmt: skip
API = ["/models", "/models?per_page=100&show=fits&tag=chat", "/models/{model}", "/models/{model}/fit", "/models/disk"]


@pytest.mark.parametrize("kind", ["pages", "api"])
def test_the_number_of_queries_is_that_of_a_few_models(host: Host, kind: str) -> None:
    fill(host, 0, 110)
    first = Copy.objects.order_by("pk")[0]
    client = Client()
    client.force_login(User.objects.create(username="admin", role="admin"))
    where = {"model": first.artifact.model_id, "copy": first.pk}
    paths = PAGES if kind == "pages" else [f"/api/v1{path}" for path in API]
    ask: Callable[[str], Any] = client.get if kind == "pages" else program(person("admin")).get

    def counted(path: str) -> int:
        with CaptureQueriesContext(connection) as found:
            answer = ask(path.format(**where), headers={"HX-Request": "true"} if "part=" in path else {})
        assert answer.status_code == 200, (path, answer.content[:300])
        return len(found)

    for path in paths:  # what is looked up once in a process
        counted(path)
    few = {path: counted(path) for path in paths}
    fill(host, 1000, MANY)
    many = {path: counted(path) for path in paths}
    assert many == few
