"""Downloads for programs: search, what a model is made of, start, follow, stop."""

from typing import Any

import pytest
from django.test import Client

from models_catalog.downloads.models import Download
from panel.accounts.actor import Actor
from panel.fleet.models import Host
from tests.api.conftest import program
from tests.fakes.hub import Hub
from tests.models_catalog.downloads.conftest import FOLDERS, result, say

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(otto: Actor) -> Client:
    return program(otto.user)


def test_search_choose_start_follow_pause(hub: Hub, host: Host, client: Client) -> None:
    found = client.get("/api/v1/hub/models?q=tiny").json()
    assert (found["mirror"], [item["repo"] for item in found["items"]]) == (True, ["acme/tiny", "acme/tiny-gguf"])
    model = client.get("/api/v1/hub/model?repo=acme/tiny-gguf").json()
    assert [(c["label"], c["fits"][0]["verdict"]) for c in model["choices"]] == [("Q4_K_M", "fits"), ("Q8_0", "fits")]
    wish = {"host": "quay", "repo": "acme/tiny-gguf", "choice": model["choices"][1]["key"]}
    made = client.post("/api/v1/downloads", wish, content_type="application/json", headers={"Idempotency-Key": "k1"})
    assert made.status_code == 201, made.content
    told = made.json()
    assert (told["state"], told["folder"], told["label"]) == ("waiting", FOLDERS[1], "Q8_0")
    same = client.post("/api/v1/downloads", wish, content_type="application/json", headers={"Idempotency-Key": "k1"})
    assert same.json()["id"] == told["id"] and Download.objects.count() == 1
    row = Download.objects.get()
    say(host, row.job, progress={"phase": "verifying", "done": 10, "total": 100, "passed": ["checking", "downloading"]})
    told = client.get(f"/api/v1/downloads/{row.pk}").json()
    assert (told["state"], told["stage"], told["bytes_done"], told["bytes_total"]) == ("running", "verifying", 10, 100)
    assert client.post(f"/api/v1/downloads/{row.pk}/pause").json()["state"] == "pausing"
    result(host, row.job, code="stopped")
    assert [item["state"] for item in client.get("/api/v1/downloads?state=paused").json()["items"]] == ["paused"]
    assert client.post(f"/api/v1/downloads/{row.pk}/resume").status_code == 202


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"host": "nowhere"}, 422, "invalid"),
        ({"repo": "../x"}, 422, "invalid"),
        ({"repo": "acme/none"}, 424, "download.not_found"),
        ({"choice": "gguf:none"}, 422, "invalid"),
        ({"folder": "/etc"}, 422, "invalid"),
    ],
)
def test_a_wrong_wish(hub: Hub, host: Host, client: Client, change: dict[str, Any], status: int, code: str) -> None:
    answer = client.post(
        "/api/v1/downloads", {"host": "quay", "repo": "acme/tiny", **change}, content_type="application/json"
    )
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert not Download.objects.exists()
