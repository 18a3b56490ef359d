"""The pages: what they say, what their buttons do, and that a list costs the same for more rows."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from models_catalog.downloads import access, catalogue, contexts, services
from models_catalog.downloads.catalogue import Found
from models_catalog.downloads.models import Download, HubAccess
from models_catalog.models import Artifact, CatalogModel, Copy
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.fleet.models import Host
from tests.fakes.hub import Hub
from tests.models_catalog.downloads.conftest import FOLDERS, MADE, again, person, result, say

pytestmark = pytest.mark.django_db
Make = Callable[..., services.Wish]


@pytest.fixture
def browser(otto: Actor) -> Client:
    return signed_in("otto")


def signed_in(name: str) -> Client:
    client = Client(headers={"Sec-Fetch-Mode": "navigate", "Accept": "text/html"})
    client.force_login(User.objects.get(username=name))
    return client


def text(answer: Any) -> str:
    return answer.content.decode().replace("\u00a0", " ")


NEW = "/models/downloads/new?source=huggingface&repo="


def test_a_search_and_the_way_to_a_model(hub: Hub, host: Host, browser: Client) -> None:
    shown = text(browser.get("/models/downloads/find?q=tiny"))
    assert "acme/tiny-gguf" in shown and "apache-2.0" in shown and "1,200" in shown
    assert "mirror" in shown, "the local hub is not the usual address"
    answer = browser.get("/models/downloads/find?q=https://huggingface.co/acme/tiny")
    assert answer.status_code == 302 and "repo=acme%2Ftiny" in answer["Location"]
    assert "no model of this name" in text(browser.get("/models/downloads/find?q=zebra"))


def test_what_was_found_says_whether_it_fits_where_its_weights_are_told(host: Host) -> None:
    found = [Found("acme/a", weights=1 << 30), Found("acme/b", weights=1 << 45), Found("acme/c", size=1 << 30),
             Found("acme/d-GGUF", weights=1 << 30)]  # fmt: skip
    kinds = [row["fits"][0] if row["fits"] else "" for row in contexts.found_rows(found)]
    assert kinds == ["ok", "bad", "", ""]
    read = catalogue._from_hub({"id": "acme/a", "safetensors": {"parameters": {"BF16": 500}}, "usedStorage": 9_000})
    assert (read.size, read.weights) == (1_000, 1_000)
    assert catalogue._from_hub({"id": "acme/a", "usedStorage": 9_000}).weights is None


def test_the_starters_are_named_with_size_and_where_they_fit(hub: Hub, host: Host, browser: Client) -> None:
    shown = text(browser.get("/models/downloads/find"))
    assert shown.count("Download HuggingFaceTB/SmolLM2-135M-Instruct") == 1 and "fits quay" in shown
    assert shown.count('name="repo"') == 3


def test_a_page_without_downloads_names_no_ended_ones(host: Host, otto: Actor, wish: Make, browser: Client) -> None:
    assert '<h2 id="re-h">Downloads</h2>' in text(browser.get("/models/downloads/"))
    services.start(host, wish(), actor=otto)
    assert '<h2 id="re-h">Ended</h2>' in text(browser.get("/models/downloads/"))


def test_one_click_fetches_a_starter(hub: Hub, host: Host, browser: Client) -> None:
    answer = browser.post("/models/downloads/quick", {"source": "huggingface", "repo": "acme/tiny"})
    row = Download.objects.get()
    assert answer["Location"] == f"/models/downloads/{row.pk}/" and row.folder == FOLDERS[0]


def test_a_model_with_its_forms_and_where_each_fits(hub: Hub, host: Host, browser: Client) -> None:
    shown = text(browser.get(NEW + "acme/tiny-gguf"))
    assert "Q4_K_M · 2 KiB" in shown or "Q4_K_M · 3 KiB" in shown
    assert "Q8_0" in shown and "in its memory, on the CPU" in shown
    assert f'value="{host.pk}:{FOLDERS[1]}" checked' in shown, "a GGUF goes into a plain folder"
    assert "48.8 GiB free" in shown


def test_the_form_says_what_is_there_already(hub: Hub, host: Host, browser: Client) -> None:
    """A model is not fetched twice without a word; another of the same name, or one that is gone, is none of it."""
    assert "Already there" not in text(browser.get(NEW + "acme/tiny"))
    model = CatalogModel.objects.create(name="tiny")

    def lies(path: str, format_: str, size: int) -> None:
        form = Artifact.objects.create(model=model, format=format_, label="x", fingerprint=path, size_bytes=size)
        Copy.objects.create(artifact=form, host=host, path=path, root="/srv", usable=True)

    lies("/srv/hf/hub/models--acme--tiny/snapshots/abc", "hf", 5000)
    lies("/srv/models/tiny-Q8_0.gguf", "gguf", 6000)
    lies("/srv/models/other/tiny-Q4_K_M.gguf", "gguf", 300_000)
    assert text(browser.get(NEW + "acme/tiny")).count("Already there:") == 1
    shown = text(browser.get(NEW + "acme/tiny-gguf"))
    assert shown.count("Already there:") == 1 and "quay: /srv/models/tiny-Q8_0.gguf" in shown
    Copy.objects.update(present=False)
    assert "Already there" not in text(browser.get(NEW + "acme/tiny-gguf"))


def test_the_form_makes_the_download(hub: Hub, host: Host, browser: Client) -> None:
    form = {"source": "huggingface", "repo": "acme/tiny-gguf", "ref": "main", "choice": "gguf:tiny-Q8_0",
            "place": f"{host.pk}:{FOLDERS[1]}", "limit_mib_s": "2.5"}  # fmt: skip
    answer = browser.post("/models/downloads/new", form)
    row = Download.objects.get()
    assert answer["Location"] == f"/models/downloads/{row.pk}/"
    assert (row.label, row.limit_mib_s, row.folder, row.asked_by) == ("Q8_0", 2.5, FOLDERS[1], "otto")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"place": "999999:/etc"}, "not there any more"),
        ({"place": "x"}, "Choose a host and a folder"),
        ({"choice": "gguf:none"}, "not there any more"),
        ({"limit_mib_s": "-1"}, "greater than or equal to 0"),
    ],
)
def test_a_wrong_form_says_why(hub: Hub, host: Host, browser: Client, change: dict[str, str], words: str) -> None:
    form = {"source": "huggingface", "repo": "acme/tiny-gguf", "choice": "gguf:tiny-Q8_0",
            "place": f"{host.pk}:{FOLDERS[1]}"} | change  # fmt: skip
    answer = browser.post("/models/downloads/new", form)
    assert answer.status_code == 422 and words in text(answer) and not Download.objects.exists()


def test_without_a_network_there_are_commands(host: Host, browser: Client, settings: Any) -> None:
    settings.HF_ENDPOINT = "http://127.0.0.1:1"
    shown = text(browser.get(NEW + "acme/tiny"))
    assert "cannot be reached" in shown and "hf download acme/tiny --revision main --cache-dir ." in shown
    assert "rsync -a --partial ./models--acme--tiny quay:/srv/hf/hub/" in shown and "Look for models" in shown
    assert "ssh quay &#x27;mkdir -p /srv/hf/hub&#x27;" in shown  # rsync makes no long path
    assert "programs hf, ssh and rsync. On quay itself leave out “ssh quay” and “quay:”" in shown
    shown = text(browser.get("/models/downloads/find?q=tiny"))
    assert "cannot be reached" in shown and "Code: download.offline" in shown


def test_what_is_not_there_and_what_is_gated(hub: Hub, host: Host, browser: Client) -> None:
    assert "no such model" in text(browser.get(NEW + "acme/none"))
    hub.add("acme/closed", {"model.safetensors": b"w"}, gated="auto")
    assert "terms to be accepted first" in text(browser.get(NEW + "acme/closed"))
    assert browser.get(NEW + "../../etc").status_code == 404


def test_one_download_from_the_queue_to_the_end(hub: Hub, host: Host, browser: Client, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    where = f"/models/downloads/{row.pk}/"
    assert "has been asked and has not begun yet" in text(browser.get(where))
    moving = {"phase": "downloading", "done": 2000, "total": 5000, "passed": ["checking"], "rate": 100.0}
    say(host, row.job, progress=moving)
    shown = text(browser.get(where))
    Download.objects.filter(pk=row.pk).update(created_at=timezone.now() - timedelta(seconds=70))
    assert "asked 70 s ago" in text(browser.get(where + "?part=live")), "in the part that goes on"
    assert "100 B/s" in shown and "30 s left" in shown and 'value="40"' in shown
    browser.post(where + "pause")
    result(host, row.job, code="stopped")
    assert "What came is kept on quay" in text(browser.get(where))
    browser.post(where + "resume")
    row = again(row)
    result(host, row.job, code="download.offline", params={"host": "hub.example"})
    shown = text(browser.get(where))
    assert "Without a network" in shown and "hf download acme/tiny" in shown
    browser.post(where + "resume")
    result(host, again(row).job, MADE)
    assert "every file was compared" in text(browser.get(where))


def test_who_only_looks_sees_progress_and_no_buttons(host: Host, otto: Actor, wish: Make) -> None:
    row = services.start(host, wish(), actor=otto)
    person("viewer")
    client = signed_in("viewer")
    shown = text(client.get(f"/models/downloads/{row.pk}/"))
    assert "acme/tiny" in shown and "/pause" not in shown
    assert "/pause" not in text(client.get("/models/downloads/"))
    assert client.get("/models/downloads/find").status_code == 403


def test_a_token_is_kept_masked_and_removed(hub: Hub, browser: Client, otto: Actor) -> None:
    browser.post("/models/downloads/access", {"source": "huggingface", "token": "hf_secretsecret"})
    shown = text(browser.get("/models/downloads/access"))
    assert "••••cret" in shown and "hf_secret" not in shown
    assert "shows it, without blanks" in text(
        browser.post("/models/downloads/access", {"source": "huggingface", "token": "a b"})
    )
    other = access.keep("huggingface", "hf_of_olga_x", team=False, actor=person("operator", "olga"))
    assert browser.post(f"/models/downloads/access/{other.pk}/remove").status_code == 404
    mine = HubAccess.objects.get(owner__username="otto")
    browser.post(f"/models/downloads/access/{mine.pk}/remove")
    assert list(HubAccess.objects.values_list("pk", flat=True)) == [other.pk]


def test_a_longer_list_asks_no_more_questions(
    host: Host, otto: Actor, wish: Make, browser: Client, django_assert_max_num_queries: Any
) -> None:
    from django.db import connection

    row = services.start(host, wish(), actor=otto)

    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as seen:
            assert browser.get("/models/downloads/").status_code == 200
        return len(seen)

    def copies(count: int, state: str) -> None:
        for _n in range(count):
            values = {f.attname: getattr(row, f.attname) for f in Download._meta.concrete_fields if f.name != "id"}
            Download.objects.create(**{**values, "state": state})

    copies(3, "paused")
    copies(3, "failed")
    before = queries()
    copies(6, "paused")
    copies(6, "failed")
    assert queries() == before


def test_an_empty_catalog_offers_three_to_begin_with(host: Host, browser: Client) -> None:
    shown = text(browser.get("/models/"))
    assert "No model yet" in shown and shown.count("/models/downloads/quick") == 3 and "fits quay" in shown
    person("viewer")
    assert "/models/downloads/quick" not in text(signed_in("viewer").get("/models/"))
