"""A model from a hub through the page: fetched by the real agent, verified, found by the catalog, and deployed.

And what the page says while people, hosts and the panel itself come between: nothing that is not so.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.test import Client

from deployments import services
from deployments.models import Deployment
from models_catalog.downloads.models import Download
from models_catalog.downloads.starters import STARTERS
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
BIG, SOME = 24 << 20, 12 << 20


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    make_fake_model(folder / "good", phase_s=0.05)
    with Hub() as serving:
        serving.add("acme/good", folder / "good", license="apache-2.0", downloads=12)
        serving.add("acme/large", {"model-Q8_0.gguf": b"g" * BIG}, license="mit")
        for name in ("away", "again"):
            serving.add(f"acme/{name}", {f"{name}-Q8_0.gguf": name[1].encode() * SOME})
        serving.add(STARTERS[0].repo, folder / "good", license="apache-2.0", downloads=99)
        quants = {f"pair-{name}.gguf": name[-1].encode() * SOME for name in ("Q4_K_M", "Q8_0")}
        serving.add("acme/pair", {**quants, "README.md": b"# A pair"})
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
        berth.scan()  # the engine is known, the folder of models is empty
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


def moving(row: Download) -> bool:
    """Whether bytes come, and not all are there."""
    row.refresh_from_db()
    return row.state == "running" and 0 < row.bytes_done < row.bytes_total


def sent(hub: Hub, repo: str, name: str) -> int:
    return sum(ask.sent for ask in hub.asked if ask.path == name and ask.repo == repo)


@contextmanager
def slowly(hub: Hub) -> Iterator[Fault]:
    """All that is asked for meanwhile comes slowly, until the end; then what is under way comes fast, too."""
    fault = Fault("slow", rate=160 << 10)
    hub.chance = lambda ask: fault
    try:
        yield fault
    finally:
        hub.chance = lambda ask: None
        fault.rate = 0


def numbers(page: str) -> str:
    """How far it is, as the page says it."""
    return page.partition('id="steps"')[2].partition("</section>")[0]


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


def test_an_empty_catalog_begins_with_one_click(stack: Stack, operator: Operator) -> None:
    shown = operator.see("/models/")
    assert "No model yet" in shown and STARTERS[0].repo in shown
    answer = operator.post("/models/", "/models/downloads/quick", source="huggingface", repo=STARTERS[0].repo)
    assert answer.status_code == 302
    where = answer.headers["Location"]
    row = Download.objects.get(pk=where.rstrip("/").rpartition("/")[2])
    assert row.state in ("waiting", "running", "done") and STARTERS[0].repo in operator.see(where)
    wait_for(stack, row, *ENDS)
    assert (row.state, row.made) == ("done", [str(stack.models / STARTERS[0].repo)]), row.refusal


def test_from_the_search_to_a_deployment(stack: Stack, operator: Operator, hub: Hub) -> None:
    assert "acme/good" in operator.see("/models/downloads/find?q=good")
    hub.fail(Fault("drop", after=50))  # it goes on by itself
    row = wait_for(stack, operator.download("acme/good", "hf"), *ENDS)
    assert (row.state, row.made) == ("done", [str(stack.models / "acme/good")]), row.refusal
    where = f"/models/downloads/{row.pk}/"
    page = operator.see(where)
    assert "every file was compared" in page and str(stack.models) in page
    copy = until(Copy.objects.filter(path=row.made[0], present=True).first, timeout=30, why="the catalog has it")
    verbs = set(Event.objects.filter(verb__startswith="download.").values_list("verb", flat=True))
    assert {"download.started", "download.done"} <= verbs
    form = f"/deployments/new?artifact={copy.artifact_id}"
    assert form in operator.see(where), "the page of the download leads to the deployment"
    wish = {
        "artifact": copy.artifact_id,
        "name": "from-the-hub",
        "device": "cpu",
        "task": "generate",
        "kv_cache_gib": 1,
    }
    answer = operator.post(form, "/deployments/new", **wish, restart="never")
    assert answer.status_code == 302, answer.text
    made = Deployment.objects.get(name="from-the-hub")
    stack.wait_for(made, "ready")
    assert made.run is not None and made.run.answer["answer"]
    services.stop(made, actor=None)
    stack.wait_for(made, "stopped")


def test_paused_and_resumed_nothing_is_fetched_twice(stack: Stack, operator: Operator, hub: Hub) -> None:
    row = operator.download("acme/large", "gguf:model-Q8_0", limit_mib_s="4")
    where = f"/models/downloads/{row.pk}/"

    until(lambda: moving(row), timeout=30, why="bytes come")
    until(lambda: "iB/s" in numbers(operator.see(where)), timeout=15, why="the page says how fast")
    operator.post(where, f"{where}pause")
    wait_for(stack, row, *ENDS)
    assert row.state == "paused" and not list(Path(stack.models).rglob("*.gguf"))
    operator.post(where, f"{where}resume")
    wait_for(stack, row, "done", "failed")
    assert row.state == "done", row.refusal
    assert BIG <= sent(hub, "acme/large", "model-Q8_0.gguf") < 1.5 * BIG, (
        "what was on its way comes again, what was written does not"
    )


def test_a_host_that_goes_away_and_comes_back(stack: Stack, operator: Operator, hub: Hub) -> None:
    """Its agent dies; the download does not, and the page says no more than is known meanwhile."""
    with slowly(hub):
        row = operator.download("acme/away", "gguf:away-Q8_0")
        where = f"/models/downloads/{row.pk}/"
        until(lambda: moving(row), timeout=30, why="bytes come")
        until(lambda: "iB/s" in numbers(operator.see(where)), timeout=20, why="the page says how fast")
        stack.kill("agent")
        try:
            until(lambda: stack.host().lost_at is not None, timeout=30, why="the host is missed")
            page = operator.see(where)
            assert "No contact with" in page and "goes on by itself" in page and "iB/s" not in numbers(page)
        finally:
            stack.start("agent")
        until(lambda: "iB/s" in numbers(operator.see(where)), timeout=30, why="it is back, and the page says how fast")
    wait_for(stack, row, *ENDS)
    assert (row.state, row.tries) == ("done", 1), "the same job, which went on"
    assert sent(hub, "acme/away", "away-Q8_0.gguf") == SOME, "each byte once"
    assert "every file was compared" in operator.see(where)


def test_a_panel_that_starts_again_meanwhile(stack: Stack, operator: Operator, hub: Hub) -> None:
    with slowly(hub):
        row = operator.download("acme/again", "gguf:again-Q8_0")
        until(lambda: moving(row), timeout=30, why="bytes come")
        for name in ("web", "worker"):
            stack.kill(name)
        before = row.bytes_done
        for name in ("web", "worker"):
            stack.start(name)
        until(stack.healthy, timeout=30, why="the page answers")
        until(lambda: moving(row) and row.bytes_done > before, timeout=30, why="it goes on, and the panel knows")
        assert "Downloading" in operator.see(f"/models/downloads/{row.pk}/")
    wait_for(stack, row, *ENDS)
    assert (row.state, row.tries) == ("done", 1), row.refusal
    assert sent(hub, "acme/again", "again-Q8_0.gguf") == SOME, "each byte once"


def test_two_downloads_into_one_folder_take_turns(stack: Stack, operator: Operator, hub: Hub) -> None:
    with slowly(hub):
        first = operator.download("acme/pair", "gguf:pair-Q4_K_M")
        until(lambda: moving(first), timeout=30, why="bytes come")
        assert operator.download("acme/pair", "gguf:pair-Q4_K_M").pk == first.pk, "the same again is the same one"
        second = operator.download("acme/pair", "gguf:pair-Q8_0")
        told = "Waiting for another download into this folder"
        until(lambda: told in operator.see(f"/models/downloads/{second.pk}/"), timeout=20, why="the second one waits")
    for row in (first, second):
        wait_for(stack, row, *ENDS)
        assert row.state == "done", row.refusal
    assert {path.name for path in (stack.models / "acme/pair").iterdir()} == {
        "README.md", "pair-Q4_K_M.gguf", "pair-Q8_0.gguf",
    }  # fmt: skip
    assert sent(hub, "acme/pair", "README.md") == len(b"# A pair"), "what both need was fetched once"


def test_a_gated_model_says_what_to_do(stack: Stack, operator: Operator) -> None:
    row = wait_for(stack, operator.download("acme/closed", "gguf:model-Q8_0"), *ENDS)
    page = operator.see(f"/models/downloads/{row.pk}/")
    assert row.state == "failed" and "licence has to be accepted" in page and "Access to hubs" in page
    assert not list(Path(stack.models).rglob("closed/*.gguf"))
