"""Odd input to every page, form and operation: an answer in words, never a failure of the panel.

Every address of the table of permissions, with fields of every form there is, odd headers, odd numbers and names in
the address. A failure of a view reaches the test as the exception that it is.
"""

import json
import uuid
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.db import transaction
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from panel.accounts.models import User
from panel.accounts.services import create_token
from tests.api import conftest as api
from tests.api.test_rights import TABLE as OPERATIONS
from tests.house.test_permissions import NOBODY, TABLE, address, world  # noqa: F401  (a fixture)
from tests.security.fuzzing import NASTY, cases, count, texts

pytestmark = pytest.mark.django_db

FIELDS = [
    "q", "who", "kind", "on", "since", "before", "outcome", "page", "part", "show", "sort", "state", "host", "offset",
    "next", "artifact", "name", "device", "gpus", "gpu_count", "task", "extra_args", "restart", "revision", "runtime",
    "path", "model", "executable", "days", "scope", "deployments", "language", "theme", "label", "role", "password",
    "again", "current", "variant", "version", "extras", "folder", "note", "sure", "confirmed", "end_tokens", "env",
    "host_name", "options", "kv_cache_gib", "grace_s", "question", "prompt", "allowed", "run", "from", "to",
    "option_max_model_len", "max_model_len", "gpu_memory_utilization", "csrfmiddlewaretoken",
]  # fmt: skip
GOOD = ["1", "0", "2", "on", "yes", "auto", "cpu", "gpu", "vllm", "generate", "never", "viewer", "admin", "en", "dark",
        "0.32.0", "nightly", "/models", "--seed 1", "team-chat", "failed", "2026-11-30", "deployment:1"]  # fmt: skip
words = st.one_of(texts, st.sampled_from(GOOD))
forms = st.dictionaries(st.sampled_from(FIELDS), st.one_of(words, st.lists(words, max_size=3)), max_size=8)
HEADERS = {
    "HX-Request": ["true", "x"], "HX-Current-URL": [*NASTY[:12], "http://[", "//evil.example/x", "/hosts/"],
    "HX-Target": NASTY[:12], "Accept": ["text/html", "application/json", "", "x" * 500, "*/*;q=nan"],
    "Accept-Language": ["zh-hans", "x" * 500, "en;q=9e999", "*", "de_\0"], "Sec-Fetch-Mode": ["navigate", "cors"],
    "Referer": ["http://evil.example/", "http://[", ""], "Cookie": ["berth_session=x", "a=b=c; ;=;\x7f", "django_language=../x"],
    "Range": ["bytes=0-", "bytes=-1", "bytes=9-1"], "If-Modified-Since": ["x", "Mon, 99 Foo 2026 99:99:99 GMT"],
    "If-None-Match": ["*", '"x"'], "Origin": ["null", "http://evil.example"], "X-Request-ID": NASTY[:12],
    "X-Forwarded-For": ["1.2.3.4", "x" * 300], "X-HTTP-Method-Override": ["DELETE"], "Idempotency-Key": [*NASTY[:12], "k"],
}  # fmt: skip
headers = st.lists(st.sampled_from(sorted(HEADERS)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: st.sampled_from(HEADERS[name]) for name in names})
)
NUMBERS = ["0", "1", "9" * 18, "9" * 40, "2147483648"]


@pytest.fixture(autouse=True)
def _here(one_connection: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Argon2, whose time is not the question."""
    monkeypatch.setattr("panel.accounts.services.authenticate", lambda *args, **kwargs: None)


@pytest.fixture
def api_world(db: None) -> dict[str, Any]:
    made: dict[str, Any] = api.world.__wrapped__(None)
    return made


@pytest.fixture
def api_places(api_world: dict[str, Any]) -> dict[str, str]:
    made: dict[str, str] = api.places.__wrapped__(api_world)
    return made


@pytest.fixture
def browser() -> Client:
    client = Client()
    client.force_login(User.objects.create_user(username="ada", role="admin"))
    return client


def safe(values: dict[str, Any]) -> dict[str, Any]:
    """Header values as a server hands them on: no line ends, Latin-1."""
    return {
        name: "".join(char for char in value if char not in "\r\n").encode("utf-8", "replace").decode("latin-1")
        for name, value in values.items()
    }


def encoded(values: dict[str, Any]) -> bytes:
    return urlencode(values, doseq=True, errors="surrogatepass").encode()


def check(answer: Any, where: str) -> None:
    assert answer.status_code < 500, where
    if "text/html" in answer.headers.get("Content-Type", "") and not answer.streaming:
        assert b"<script>alert(1)" not in answer.content, where
    target = answer.headers.get("Location", "/")
    assert target.startswith("/") and not target.startswith(("//", "/\\")), where
    count(1)


def elsewhere(pattern: str, world: dict[str, str], odd: str, number: str) -> str:  # noqa: F811
    """The address of rows that are there, or with something else in each place."""
    if not odd and not number:
        return address(pattern, world)
    path = "/" + pattern
    for place in ("<int:pk>", "<int:number>", "<int:token_id>"):
        path = path.replace(place, number or "1")
    for place in ("<uuid:run_id>", "<uuid:install_id>", "<uuid:job_id>", "<uuid:number>"):
        path = path.replace(place, str(uuid.UUID(int=len(odd))))
    for place in ("<str:secret>", "<str:tag>", "<str:name>", "<str:form>"):
        path = path.replace(place, quote(odd.replace("/", "") or "x", safe="", errors="replace"))
    return path


PATTERNS = sorted(TABLE)
METHODS = {p: [m for m, least in zip(("GET", "POST"), TABLE[p], strict=True) if least != NOBODY] for p in PATTERNS}


def test_fuzz_pages(browser: Client, world: dict[str, str]) -> None:  # noqa: F811
    @cases(2 * len(PATTERNS), share=0.5)
    @given(
        pattern=st.sampled_from(PATTERNS), method=st.sampled_from(["", "", "", "", "HEAD", "OPTIONS", "PUT", "DELETE"]),
        form=forms,
        more=headers, odd=st.one_of(st.just(""), texts), number=st.sampled_from(["", "", *NUMBERS]),
        body=st.sampled_from(["form", "form", "form", "json", "multipart", "odd"]), raw=st.binary(max_size=60),
    )  # fmt: skip
    def ask(pattern: str, method: str, form: Any, more: Any, odd: str, number: str, body: str, raw: bytes) -> None:
        method = method or METHODS[pattern][len(raw) % len(METHODS[pattern])]
        where = elsewhere(pattern, world, odd, number)
        with transaction.atomic():
            if method in ("GET", "HEAD"):
                answer = browser.generic(method, f"{where}?{encoded(form).decode()}", headers=safe(more))
            else:
                data, kind = {
                    "form": (encoded(form), "application/x-www-form-urlencoded"),
                    "json": (json.dumps(form).encode("utf-8", "replace"), "application/json"),
                    "multipart": (raw, "multipart/form-data; boundary=x"),
                    "odd": (raw, "text/plain; charset=x"),
                }[body]
                answer = browser.generic(method, where, data, content_type=kind, headers=safe(more))
            transaction.set_rollback(True)
        check(answer, f"{method} {where}")

    ask()


def test_fuzz_operations(api_places: dict[str, str]) -> None:
    """The API with bodies that no schema would make; those that a schema makes are in tests/api/test_contract.py."""
    ada = User.objects.create_user(username="ada-2", role="admin")
    client = Client(headers={"Authorization": f"Bearer {create_token(ada, 'x', actor=ada, scope='api:write')[1]}"})
    values = st.recursive(st.one_of(words, st.none(), st.booleans(), st.integers(), st.floats()),
                          lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)), max_leaves=8)  # fmt: skip
    names = st.sampled_from(["spec", "name", "options", "artifact_id", "extra_args", "env", "host", "variant", "role",
                             "scope", "days", "deployments", "file", "note", "wait", "restart", "schedulable", *FIELDS])  # fmt: skip

    @cases(2 * len(OPERATIONS), share=0.3)
    @given(operation=st.sampled_from(sorted(OPERATIONS)), query=forms, body=st.one_of(st.dictionaries(names, values, max_size=5), values), more=headers,
           odd=st.one_of(st.just(""), texts), raw=st.one_of(st.none(), st.binary(max_size=40)))  # fmt: skip
    def ask(operation: str, query: Any, body: Any, more: Any, odd: str, raw: bytes | None) -> None:
        method, path = operation.split(" ")
        rows = {name: quote(odd, safe="", errors="replace") for name in api_places} if odd else api_places
        data = raw if raw is not None else json.dumps(body).encode("utf-8", "replace")
        headers = {name: value for name, value in safe(more).items() if name != "Cookie"}
        with transaction.atomic():
            where = f"{path.format(**rows)}?{encoded(query).decode()}"
            answer = client.generic(method, where, data, content_type="application/json", headers=headers)
            transaction.set_rollback(True)
        assert answer.status_code < 500
        count(1)

    ask()
