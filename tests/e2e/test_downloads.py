"""A model from a hub through the page: fetched by the real agent, verified, found by the catalog, and deployed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.test import Client

from models_catalog.downloads.models import Download
from models_catalog.models import Copy
from panel.accounts.models import User
from panel.audit.models import Event
from panel.fleet import logstore
from tests.e2e.stack import Stack, running
from tests.fakes.hub import Fault, Hub
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.servers import Servers
from tests.waiting import until

ENDS = ("done", "failed", "cancelled", "paused")
BIG = 24 << 20


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    make_fake_model(folder / "good", phase_s=0.05)
    with Hub() as serving:
        serving.add("acme/good", folder / "good", license="apache-2.0", downloads=12)
        serving.add("acme/large", {"model-Q8_0.gguf": b"g" * BIG}, license="mit")
        serving.add("acme/closed", {"model-Q8_0.gguf": b"c" * 100}, gated="auto")
        yield serving


@pytest.fixture(scope="module")
def stack(
    hub: Hub,
    servers: Servers,
    django_test_environment: None,
    django_db_blocker: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    env = {"HF_ENDPOINT": hub.url}
    with django_db_blocker.unblock(), running(servers, tmp_path_factory.mktemp("downloads"), env=env) as berth:
        make_fake_engine(berth.engines)
        berth.start_all()
        yield berth


class Operator:
    """Someone who may deploy and fills in the forms."""

    def __init__(self, stack: Stack) -> None:
        user, _made = User.objects.get_or_create(username="the operator", defaults={"role": "operator"})
        client = Client()
        client.force_login(user)
        cookies = {name: morsel.value for name, morsel in client.cookies.items()}
        self.stack = stack
        self.http = httpx.Client(base_url=stack.url, cookies=cookies, timeout=30, headers={"Accept": "text/html"})

    def see(self, path: str) -> str:
        answer = self.http.get(path)
        assert answer.status_code == 200, answer.text[:500]
        return answer.text.replace("\u00a0", " ")

    def post(self, page: str, path: str, **values: Any) -> httpx.Response:
        token = self.see(page).split('name="csrfmiddlewaretoken" value="')[1].split('"')[0]
        headers = {"Referer": f"{self.stack.url}{page}", "Sec-Fetch-Mode": "navigate"}
        return self.http.post(path, data={"csrfmiddlewaretoken": token, **values}, headers=headers)

    def download(self, repo: str, choice: str, **values: Any) -> Download:
        page = f"/models/downloads/new?source=huggingface&repo={repo}"
        place = f"{self.stack.host().pk}:{self.stack.models}"
        form = {"source": "huggingface", "repo": repo, "choice": choice, "place": place, **values}
        answer = self.post(page, "/models/downloads/new", **form)
        assert answer.status_code == 302, answer.text
        return Download.objects.get(pk=answer.headers["Location"].rstrip("/").rpartition("/")[2])


@pytest.fixture(scope="module")
def operator(stack: Stack) -> Operator:
    return Operator(stack)


def wait_for(stack: Stack, row: Download, *states: str, timeout: float = 60) -> Download:
    def there() -> bool:
        row.refresh_from_db()
        return row.state in states

    try:
        until(there, timeout=timeout, why=f"{row} is one of {states}")
    except AssertionError as exc:
        log = b"".join(part.data for part in logstore.read_all(row.job_id)) if row.job_id else b""
        raise AssertionError(f"{exc}; {row.state} {row.refusal}\n{log.decode()}\n{stack.logs()}") from None
    return row


def test_from_the_search_to_a_deployment(stack: Stack, operator: Operator, hub: Hub) -> None:
    assert "acme/good" in operator.see("/models/downloads/find?q=good")
    hub.fail(Fault("drop", after=50))  # it goes on by itself
    row = wait_for(stack, operator.download("acme/good", "hf"), *ENDS)
    assert (row.state, row.made) == ("done", [str(stack.models / "acme/good")]), row.refusal
    page = operator.see(f"/models/downloads/{row.pk}/")
    assert "every file was compared" in page and str(stack.models) in page
    until(lambda: Copy.objects.filter(path=row.made[0], present=True).exists(), timeout=30, why="the catalog has it")
    verbs = set(Event.objects.filter(verb__startswith="download.").values_list("verb", flat=True))
    assert {"download.started", "download.done"} <= verbs


def test_paused_and_resumed_nothing_is_fetched_twice(stack: Stack, operator: Operator, hub: Hub) -> None:
    row = operator.download("acme/large", "gguf:model-Q8_0", limit_mib_s="4")
    where = f"/models/downloads/{row.pk}/"

    def moving() -> bool:
        row.refresh_from_db()
        return row.state == "running" and 0 < row.bytes_done < BIG

    until(moving, timeout=30, why="bytes come")
    assert "/s" in operator.see(where)
    operator.post(where, f"{where}pause")
    wait_for(stack, row, *ENDS)
    assert row.state == "paused" and not list(Path(stack.models).rglob("*.gguf"))
    operator.post(where, f"{where}resume")
    wait_for(stack, row, "done", "failed")
    assert row.state == "done", row.refusal
    sent = sum(ask.sent for ask in hub.asked if ask.path.endswith("model-Q8_0.gguf") and ask.repo == "acme/large")
    assert BIG <= sent < 1.5 * BIG, "what was on its way comes again, what was written does not"


def test_a_gated_model_says_what_to_do(stack: Stack, operator: Operator) -> None:
    row = wait_for(stack, operator.download("acme/closed", "gguf:model-Q8_0"), *ENDS)
    page = operator.see(f"/models/downloads/{row.pk}/")
    assert row.state == "failed" and "licence has to be accepted" in page and "Access to hubs" in page
    assert not list(Path(stack.models).rglob("closed/*.gguf"))
