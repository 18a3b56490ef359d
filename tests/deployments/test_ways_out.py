"""A GGUF file that no engine here can take: the plan, the failed page and the list say what can be done."""

from collections.abc import Callable

import pytest
from django.test import Client
from django.urls import reverse

from deployments import preflight
from deployments.models import Deployment
from deployments.spec import DeploymentSpec
from models_catalog.models import Copy
from panel.accounts.models import User
from tests.deployments import builders

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def operator() -> Client:
    client = Client(headers={"Accept": "text/html", "Sec-Fetch-Mode": "navigate"})
    client.force_login(User.objects.get_or_create(username="operator-1", defaults={"role": "operator"})[0])
    return client


@pytest.fixture
def gguf() -> Copy:
    copy = builders.make_copy(builders.make_host())
    copy.path = "/models/tiny/tiny-Q8_0.gguf"
    copy.save()
    artifact = copy.artifact
    artifact.format, artifact.facts = "gguf", {**artifact.facts, "format": "gguf"}
    artifact.save()
    return copy


@pytest.fixture
def failed(gguf: Copy) -> Deployment:
    """As the loop leaves it: what the check says is the reason."""
    row = builders.make_deployment(gguf, state="failed", desired="running")
    check = preflight.check(DeploymentSpec.model_validate(row.revision.spec), name=row.name)
    assert not check.ok and not check.retryable
    Deployment.objects.filter(pk=row.pk).update(reason=check.reason)
    row.refresh_from_db()
    return row


def page_of(client: Client, address: str, **data: str) -> str:
    return (client.post(address, data) if data else client.get(address)).content.decode()


def test_the_failed_page_leads_to_the_conversion_as_the_plan_does(
    operator: Client, gguf: Copy, failed: Deployment
) -> None:
    convert = reverse("model-convert", args=[gguf.pk])
    page = page_of(operator, reverse("deployment", args=[failed.pk]))
    assert convert in page and "Convert on quay" in page
    assert page.index(convert) < page.index("Change the settings"), "it is the first of the ways"
    other = {"code": "exit.code", "params": {"exit_code": 1}}
    Deployment.objects.filter(pk=failed.pk).update(reason=other)
    assert convert not in page_of(operator, reverse("deployment", args=[failed.pk]))


def test_what_could_only_fail_is_marked_in_the_plan(
    operator: Client, gguf: Copy, as_form: Callable[..., dict[str, str]]
) -> None:
    page = page_of(operator, reverse("deployment-plan"), **as_form(gguf))
    assert " data-never" in page and "Convert on quay" in page
    good = builders.make_copy(gguf.host, "good")
    assert " data-never" not in page_of(operator, reverse("deployment-plan"), **as_form(good))
    assert " data-never" not in page_of(operator, reverse("deployment-plan"), **as_form(good, max_model_len="x"))


def test_the_list_gives_the_reason_and_promises_no_other(operator: Client, failed: Deployment) -> None:
    places = {"candidates": [{"name": "quay", "code": "gguf.no_cpu_kernels", "params": {}}]}
    Deployment.objects.filter(pk=failed.pk).update(reason={"code": "place.none", "params": places})
    page = page_of(operator, reverse("deployments"))
    assert "quay: vLLM on the CPU cannot calculate with a GGUF file" in page and "listed below" not in page


@pytest.fixture
def as_form() -> Callable[..., dict[str, str]]:
    def make(copy: Copy, **more: str) -> dict[str, str]:
        usual = {"artifact": str(copy.artifact_id), "name": "chat", "task": "generate", "device": "auto"}
        return {**usual, "restart": "on_failure", "gpu_count": "1", **more}

    return make
