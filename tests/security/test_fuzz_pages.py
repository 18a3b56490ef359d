"""Odd input to every page, form and operation: an answer in words, never a failure of the panel.

Every address of the table of permissions, with fields of every form there is, odd headers, odd numbers and names in
the address. A failure of a view reaches the test as the exception that it is.
"""

import json
import re
import uuid
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.db import transaction
from django.test import Client
from django.urls import resolve
from hypothesis import given
from hypothesis import strategies as st

from panel.accounts.models import User
from panel.accounts.services import create_token
from tests.api import conftest as api
from tests.api.test_rights import TABLE as OPERATIONS
from tests.house.test_odd_input import READ, WRITE
from tests.house.test_permissions import NOBODY, TABLE, address, world  # noqa: F401  (a fixture)
from tests.security import fields
from tests.security.fuzzing import NASTY, cases, count, texts

pytestmark = pytest.mark.django_db

FIELDS = fields.names()
GOOD = ["1", "0", "2", "on", "yes", "auto", "cpu", "gpu", "vllm", "generate", "never", "viewer", "admin", "en", "dark",
        "0.32.0", "nightly", "/models", "--seed 1", "team-chat", "failed", "2026-11-30", "deployment:1"]  # fmt: skip
# Pieces of what people paste, in any order: commands, environments, files of compose, here-documents, quotes without end.
PIECES = ["vllm serve /models/x", "docker run --gpus all -p 8000:8000", "vllm/vllm-openai:v0.6.3", "python -m vllm.entrypoints.openai.api_server",
          "--model /models/x", "--max-model-len 4096", "--max-model-len=1e9", "--hf-overrides '{\"a\":", "-e HF_TOKEN=hf_x", "export A=$(date)",
          "\\\n", "\n", "\t", "'", '"', "$HOME", "${X:-y}", "`id`", "<<EOF", "EOF", "&&", "|", "# no", "services:", "  web:\n    image: x",
          "    command: [vllm, serve,", "- --seed", "? : -", "&a *a", "!!python/object:os.system", "sglang.launch_server", "llama-server -m x.gguf",
          "ollama run x", "FROM x:latest", "PARAMETER num_ctx 4096", "ExecStart=/bin/vllm serve x", "[Service]", "{{ .Values.x }}", "kind: Pod"]  # fmt: skip
pasted = st.lists(st.one_of(st.sampled_from(PIECES), texts), max_size=12).flatmap(
    lambda parts: st.sampled_from([" ", "\n"]).map(lambda between: between.join(parts))
)
words = st.one_of(texts, st.sampled_from(GOOD), pasted)
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


PLACE = re.compile(r"<(\w+):\w+>")


def elsewhere(pattern: str, world: dict[str, str], odd: str, number: str) -> str:  # noqa: F811
    """The address of rows that are there, or with something else in each place, as far as its converter takes it."""
    if not odd and not number:
        return address(pattern, world)
    kinds = {
        "int": number or "1",
        "uuid": str(uuid.UUID(int=len(odd))),
        "slug": re.sub(r"[^-a-zA-Z0-9_]", "", odd) or "x",
        "str": quote(odd.replace("/", "") or "x", safe="", errors="replace"),
    }
    return "/" + PLACE.sub(lambda place: kinds[place[1]], pattern)


def plain(path: str) -> str:
    """An address without what stands in its places."""
    return "/" + re.sub(r"<[^>]*>|\{[^}]*\}|serve\.kv_full", "*", path.lstrip("/"))


OWN = {plain(path): form for path, form in WRITE.items()} | {
    plain(path): dict.fromkeys(names, "") for path, names in READ.items() if plain(path) not in map(plain, WRITE)
}


def own_form(pattern: str, world: dict[str, str]) -> dict[str, str]:  # noqa: F811
    """What a person would send there, with rows that are there; nothing where the address takes no words."""
    ids = {"artifact": "models/forms", "model": "models", "copy": "models/copies", "host": "hosts", "runtime": "runtimes",
           "row": "deployments", "person": "people"}  # fmt: skip
    rows = {name: world[f"{place}/<int:pk>"] for name, place in ids.items()}
    return {
        name: value.format(**rows, run=world["<uuid:run_id>"]) for name, value in OWN.get(plain(pattern), {}).items()
    }


def test_every_place_and_every_field_is_reached(world: dict[str, str]) -> None:  # noqa: F811
    """A new converter, or an address that the table of good forms spells otherwise, is noticed."""
    for pattern in TABLE:
        assert "<" not in elsewhere(pattern, world, "a b", "7"), pattern
        assert resolve(elsewhere(pattern, world, "a-b", "7")), pattern
    assert set(OWN) <= {plain(pattern) for pattern in TABLE}
    assert {"text", "sealed", "limit_mib_s", "env_secrets", "o.no_such", "question", "password"} <= set(FIELDS)
    assert own_form("deployments/paste", world)["artifact"] == world["models/forms/<int:pk>"]


PATTERNS = sorted(TABLE)
METHODS = {p: [m for m, least in zip(("GET", "POST"), TABLE[p], strict=True) if least != NOBODY] for p in PATTERNS}


def test_fuzz_pages(browser: Client, world: dict[str, str]) -> None:  # noqa: F811
    session = browser.cookies["berth_session"].value

    @cases(2 * len(PATTERNS), share=0.5)
    @given(
        pattern=st.sampled_from(PATTERNS), method=st.sampled_from(["", "", "", "", "HEAD", "OPTIONS", "PUT", "DELETE"]),
        form=forms, which=st.lists(st.integers(0, 40), max_size=3),
        more=headers, odd=st.one_of(st.just(""), texts), number=st.sampled_from(["", "", *NUMBERS]),
        body=st.sampled_from(["form", "form", "form", "json", "multipart", "odd"]), raw=st.binary(max_size=60),
    )  # fmt: skip
    def ask(
        pattern: str, method: str, form: Any, which: list[int], more: Any, odd: str, number: str, body: str, raw: bytes
    ) -> None:
        method = method or METHODS[pattern][len(raw) % len(METHODS[pattern])]
        where = elsewhere(pattern, world, odd, number)
        good = own_form(pattern, world) if which else {}
        if good:  # a form that is right but for a field or two
            values = list(form.values())
            form = {**good, **{sorted(good)[n % len(good)]: value for n, value in zip(which, values, strict=False)}}
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
        browser.cookies["berth_session"] = (
            session  # one case may sign out, or be given another session that is taken back
        )
        check(answer, f"{method} {where}")
        if "Cookie" not in more:
            assert answer.status_code != 401, f"{method} {where}: this was about nothing"

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
