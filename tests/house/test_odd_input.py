"""Odd words in every field of every address: an answer in words, never a failure of the panel."""

from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client

from panel.accounts.models import User
from tests.deployments import builders

pytestmark = pytest.mark.django_db

# "9" * 5000: Python refuses to read such a number. "\x00" is what PostgreSQL refuses.
ODD = ["\0", "a\0b", "\\u0000", "'; DROP TABLE x; --", "<script>", "\u202e", "9" * 5000, "-1", "1e999", "²", "../../x"]
READ = {
    "/": ["q", "state", "page", "part"],
    "/models/": ["q", "host", "show", "sort", "page"],
    "/models/downloads/": ["show", "page", "part"],
    "/models/downloads/find": ["q", "source"],
    "/models/downloads/new": ["repo", "source", "ref", "choice", "place"],
    "/activity": ["q", "who", "kind", "on", "since", "before", "outcome"],
    "/deployments/new": [
        "artifact",
        "all",
        "part",
        "find",
        "host",
        "device",
        "gpus",
        "gpu_count",
        "max_model_len",
        "people",
    ],
    "/models/{model}/elsewhere": ["part"],
    "/deployments/{row}/": ["kind", "part"],
    "/deployments/{row}/settings/compare": ["a", "b"],
    "/runs/{run}/log": ["offset"],
    "/failures/": ["q", "days", "class", "host", "engine", "model", "deployment", "page", "part"],
    "/login": ["next"],
    "/people/": ["q", "show", "page", "part"],
}
DEPLOY = {
    "artifact": "{artifact}", "name": "x1", "host": "", "device": "auto", "gpus": "", "gpu_count": "1",
    "task": "generate", "extra_args": "", "env": "", "env_secrets": "", "rest": "", "restart": "never",
    "revision": "1",
    "people": "", "priority": "quality", "max_model_len": "", "runtime": "", "act": "", "apply": "", "o.kv_cache_dtype": "",
    "o.cudagraph_capture_sizes": "", "o.no_such": "",
}  # fmt: skip
WRITE = {
    "/deployments/new": DEPLOY,
    "/deployments/plan": DEPLOY,
    "/deployments/check": {**DEPLOY, "own": "{row}", "again": ""},
    "/deployments/paste": {
        "text": "HF_TOKEN=x vllm serve /models/Tiny-1B-Instruct",
        "artifact": "{artifact}",
        "sealed": "",
        "keep": "",
    },
    "/deployments/{row}/edit": DEPLOY,
    "/deployments/{row}/questions": {"question": "What is 1 + 1?"},
    "/deployments/{row}/findings/serve.kv_full/apply": {"revision": "1"},
    "/runs/{run}/verdict": {"right": "yes", "note": "x"},
    "/models/folders": {"host": "{host}", "path": "/x"},
    "/models/folders/{host}/remove": {"path": "/x"},
    "/models/scan": {"host": "{host}", "model": "1"},
    "/models/downloads/new": {
        "source": "huggingface",
        "repo": "acme/tiny",
        "ref": "main",
        "choice": "hf",
        "place": "{host}:/models",
        "limit_mib_s": "1",
    },
    "/models/downloads/quick": {"source": "huggingface", "repo": "acme/tiny"},
    "/models/downloads/access": {"source": "huggingface", "token": "hf_something", "team": "1"},
    "/models/copies/{copy}/convert": {"dtype": "float16", "folder": "/models", "name": "x"},
    "/runtimes/{runtime}/plugin": {"next": "/models/"},
    "/hosts/{host}/engines/new": {"executable": "/x"},
    "/account/tokens": {"name": "n", "days": "3", "scope": "door", "deployments": "{row}"},
    "/account/secrets": {"name": "hf-token", "value": "x", "team": "1"},
    "/account/look": {"language": "en", "theme": "dark"},
    "/people/invite": {"label": "x", "role": "viewer"},
    "/people/{person}/role": {"role": "viewer"},
    "/preferences": {"theme": "dark", "language": "en", "next": "/"},
}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here."""
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def names() -> dict[str, Any]:
    host = builders.make_host(gpus=1)
    copy = builders.make_copy(host)
    row = builders.make_deployment(copy, state="ready")
    run = builders.make_run(row, copy)
    builders.ready(row, run)
    person = User.objects.create_user(username="somebody")
    return {
        "host": host.pk,
        "artifact": copy.artifact_id,
        "model": copy.artifact.model_id,
        "copy": copy.pk,
        "runtime": host.runtimes.get().pk,
        "row": row.pk,
        "run": run.pk,
        "person": person.pk,
    }


@pytest.fixture
def admin() -> Client:
    """A failure of a view reaches the test as the exception that it is."""
    client = Client(headers={"Accept": "text/html", "Sec-Fetch-Mode": "navigate"})
    client.force_login(User.objects.create_user(username="ada", role="admin"))
    return client


@pytest.mark.parametrize("path", READ)
def test_odd_words_in_addresses(path: str, admin: Client, names: dict[str, Any]) -> None:
    where = path.format(**names)
    for name in READ[path]:
        for odd in ODD:
            for headers in ({}, {"HX-Request": "true"}):
                answer = admin.get(f"{where}?{name}={quote(odd)}", headers=headers)
                assert answer.status_code < 500, (name, odd[:20])
                assert b"<script></script>" not in answer.content


@pytest.mark.parametrize("path", WRITE)
def test_odd_words_in_forms(path: str, admin: Client, names: dict[str, Any]) -> None:
    form = {name: value.format(**names) for name, value in WRITE[path].items()}
    for name in form:
        for odd in ODD:
            answer = admin.post(path.format(**names), {**form, name: odd})
            assert answer.status_code < 500, (name, odd[:20])


@pytest.mark.parametrize(
    "body", [b"{", b"[" * 100_000, b"null", b'{"name": [], "days": {}}', b'{"name": "\\u0000"}', b"\xff"]
)
def test_odd_json(body: bytes, admin: Client) -> None:
    headers = {"Accept": "application/json"}
    answer = admin.post("/account/tokens", body, content_type="application/json", headers=headers)
    assert answer.status_code == 422
    assert set(answer.json()) >= {"code", "message", "hint"}
