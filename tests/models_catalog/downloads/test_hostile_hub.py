"""A hub that lies: whatever it answers is a page with a sentence, a refusal or a sound download, never a failure of ours."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.test import Client

from models_catalog.downloads.models import Download
from panel.accounts.actor import Actor
from panel.accounts.models import User
from panel.fleet import wire
from panel.fleet.models import Host
from tests.models_catalog.downloads.conftest import FOLDERS

pytestmark = pytest.mark.django_db
COMMIT, SUM = "a" * 40, "b" * 64
NUL, HALF, DEEP = "\0", "\ud800", b"[" * 200_000


class Liar:
    """Answers by the beginning of the path: a value (as JSON), bytes, or (status, headers)."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        liar = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = next((value for path, value in liar.answers.items() if self.path.startswith(path)), (404, {}))
                status, headers = (200, {}) if not isinstance(found, tuple) else found
                body = b"" if isinstance(found, tuple) else found
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_PUT = do_GET

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def repository(self, **file: Any) -> None:
        """One model with one file of weights that is told of like this."""
        told = {"type": "file", "path": "model.safetensors", "size": 5000, "oid": COMMIT, **file}
        self.answers = {
            "/api/models/acme/tiny/revision/": {"id": "acme/tiny", "sha": COMMIT},
            "/api/models/acme/tiny/tree/": [told],
            "/api/models/acme/tiny/refs": {"branches": [{"name": "main"}]},
        }


@pytest.fixture
def liar(settings: Any) -> Iterator[Liar]:
    made = Liar()
    settings.HF_ENDPOINT = settings.BERTH_MODELSCOPE_ENDPOINT = made.url
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def browser(otto: Actor) -> Client:
    client = Client()
    client.force_login(User.objects.get(username="otto"))
    return client


FILES = {
    "size_huge": {"size": 10**30},
    "size_over": {"size": 1 << 62},
    "size_text": {"size": "5000"},
    "size_negative": {"size": -1},
    "path_nul": {"path": f"model{NUL}.safetensors"},
    "path_half": {"path": f"model{HALF}.safetensors"},
    "path_up": {"path": "../../model.safetensors"},
    "path_root": {"path": "/etc/model.safetensors"},
    "path_long": {"path": "m" * 5000 + ".safetensors"},
    "path_turned": {"path": "a\u202egnp.safetensors"},
    "path_none": {"path": None},
    "gguf_nul": {"path": f"m{NUL}-Q8_0.gguf"},
    "gguf_half": {"path": f"m{HALF}-Q8_0.gguf"},
    "braces": {"path": "{0.__class__}-00001-of-00002.safetensors"},
    "width": {"path": "{0:>9999999999}-00001-of-00002.safetensors"},
    "shards": {"path": "m-00001-of-99999.safetensors"},
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_told_of_wrongly(liar: Liar, host: Host, browser: Client, name: str) -> None:
    liar.repository(**FILES[name])
    page = browser.get("/models/downloads/new?repo=acme/tiny")
    assert page.status_code == 200
    name_told = str(FILES[name].get("path", "")).encode("utf-8", "replace").decode()
    for choice in ("hf", f"gguf:{name_told}".removesuffix(".gguf"), "gguf:m-Q8_0", "gguf:m?-Q8_0"):
        values = {"source": "huggingface", "repo": "acme/tiny", "choice": choice, "place": f"{host.pk}:{FOLDERS[0]}"}
        answer = browser.post("/models/downloads/new", values)
        assert answer.status_code in (200, 302, 422), choice
    for row in Download.objects.all():  # what can be ordered is what a host could understand
        wire.DownloadTask.model_validate(row.job.order if row.job else {})


INFOS = {
    "licence_nul": {"cardData": {"license": f"a{NUL}b"}},
    "licence_half": {"cardData": {"license": f"a{HALF}b"}},
    "tags": {"tags": 5},
    "tasks": {"pipeline_tag": f"x{HALF}"},
    "id": {"id": f"{HALF}{NUL}"},
    "card": {"cardData": [1]},
    "date": {"lastModified": {"a": 1}},
    "counts": {"downloads": 10**400, "likes": 10**30, "usedStorage": 10**30},
}


@pytest.mark.parametrize("name", INFOS)
def test_a_model_that_is_told_of_wrongly(liar: Liar, host: Host, browser: Client, name: str) -> None:
    liar.repository()
    liar.answers["/api/models/acme/tiny/revision/"] |= INFOS[name]
    liar.answers["/api/models?"] = [{"id": "acme/tiny", **INFOS[name]}]
    assert browser.get("/models/downloads/new?repo=acme/tiny").status_code == 200
    assert browser.get("/models/downloads/find?q=tiny").status_code == 200
    values = {"source": "huggingface", "repo": "acme/tiny", "choice": "hf", "place": f"{host.pk}:{FOLDERS[0]}"}
    assert browser.post("/models/downloads/new", values).status_code in (200, 302, 422)


ANSWERS = {
    "deep": DEEP,
    "no_text": b"\xff\xfe\x00",
    "number": b"9" * 5000,
    "nan": b"NaN",
    "endless_turns": (302, {"Location": "/api/models/acme/tiny/revision/main"}),
    "broken_turn": (302, {"Location": "http://[::1"}),
    "wrong_port": (302, {"Location": "http://127.0.0.1:99999/"}),
    "odd_turn": (302, {"Location": "//@/\\x"}),
    "file_turn": (302, {"Location": "file:///etc/passwd"}),
    "empty_turn": (302, {}),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_none(liar: Liar, host: Host, browser: Client, name: str) -> None:
    for where in ("revision", "tree", "refs"):
        liar.repository()
        liar.answers[f"/api/models/acme/tiny/{where}{'/' if where != 'refs' else ''}"] = ANSWERS[name]
        assert browser.get("/models/downloads/new?repo=acme/tiny").status_code == 200
    liar.answers["/api/models?"] = ANSWERS[name]
    assert browser.get("/models/downloads/find?q=tiny").status_code == 200


@pytest.mark.parametrize(
    "link", ['<http://[::1>; rel="next"', '<.evil.example/x>; rel="next"', '<@evil/x>; rel="next"']
)
def test_a_next_part_that_lies_elsewhere(liar: Liar, host: Host, browser: Client, link: str) -> None:
    liar.repository()
    liar.answers["/api/models/acme/tiny/tree/"] = (200, {"Link": link})
    assert browser.get("/models/downloads/new?repo=acme/tiny").status_code == 200
