"""Attacks through the browser and the address line: markup in names, foreign Hosts, frames, inline code."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import Client

from deployments.models import Run
from models_catalog.models import CatalogModel, Copy
from panel.accounts.models import User
from panel.core.middleware import CSP
from panel.fleet.models import Gpu, Host, Job, JobLog, Runtime
from tests.deployments import builders
from tests.house.test_permissions import NOBODY, TABLE, address, world  # noqa: F401  (a fixture)

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).parents[2]
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x1b[2J\u202e{{7*7}}"
HOSTS = ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "localhost:80@evil.example",
         "[::1].evil.example", "", "x y", "localhost\\@evil.example", "LOCALHOST evil"]  # fmt: skip


class Page(HTMLParser):
    """What of a page could run or load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self._in_script = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        for name, value in attrs:
            if name.startswith("on") or name == "style" or name.startswith("hx-on"):
                self.wrong.append(f"<{tag} {name}={value}>")
            if name in ("src", "href", "action", "formaction", "data", "xlink:href", "hx-get", "hx-post") and value:
                outside = re.match(r"(?i)\s*(javascript|data|vbscript):|//|https?://", value)
                if outside and not (tag == "a" and value.startswith(("http://", "https://"))):
                    self.wrong.append(f"<{tag} {name}={value}>")
        if tag == "script":
            self._in_script = "" if given.get("src") else tag
        if tag in ("iframe", "object", "embed", "base", "img") or (
            tag == "a" and given.get("target") and "noopener" not in str(given.get("rel"))
        ):
            self.wrong.append(f"<{tag} {given}>")

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.wrong.append(f"inline script: {data[:60]}")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._in_script = ""


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broker here."""
    monkeypatch.setattr("deployments.events.send", lambda pk: None)
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)


@pytest.fixture
def evil(world: dict[str, str]) -> dict[str, str]:  # noqa: F811
    """Markup, escapes and templates in everything that somebody else wrote: hosts, models, engines, logs, errors."""
    facts = {**builders.FACTS, "hostname": EVIL, "os": EVIL, "cpu_model": EVIL, "kernel": EVIL, "gpu_error": EVIL,
             "disks": [{"path": EVIL, "total_mib": 5, "free_mib": 1}], "model_roots": [EVIL], "engine_folder": EVIL}  # fmt: skip
    Host.objects.update(name=EVIL[:60], facts=facts, link_trouble={"code": EVIL, "params": {"address": EVIL}}, agent_version=EVIL[:30],
                        hold={"by": EVIL, "note": EVIL, "at": "x"}, schedulable=False)  # fmt: skip
    Gpu.objects.update(
        name=EVIL, measured={"processes": [{"pid": 1, "name": EVIL, "user": EVIL, "used_mib": 5, "job_id": None}]}
    )
    CatalogModel.objects.update(name=EVIL)
    Copy.objects.update(path="/models/" + EVIL, problems=[{"code": EVIL, "params": {"file": EVIL}}]) if hasattr(
        Copy, "problems"
    ) else None
    Runtime.objects.update(version=EVIL[:30], plugins=[EVIL], refusal={"code": EVIL, "params": {"detail": EVIL}})
    Run.objects.update(
        command=["vllm", EVIL], env={EVIL: EVIL}, host_name=EVIL[:60], model_name=EVIL[:100], started_by=EVIL[:100]
    )
    Job.objects.update(status={**Job.objects.first().status, "refusal": {"code": EVIL, "params": {"a": EVIL}}})  # type: ignore[union-attr]
    JobLog.objects.update(tail=EVIL.encode() + b"\n\xff\xfe\n", size=200)
    User.objects.filter(username="somebody").update(username=EVIL[:150])
    return world


def browser() -> Client:
    client = Client(headers={"Accept": "text/html", "Sec-Fetch-Mode": "navigate"})
    client.force_login(User.objects.get_or_create(username="ada", defaults={"role": "admin"})[0])
    return client


@pytest.mark.parametrize("pattern", [pattern for pattern in TABLE if TABLE[pattern][0] != NOBODY])
def test_no_page_runs_or_loads_what_others_wrote(pattern: str, evil: dict[str, str]) -> None:
    client = browser()
    for headers in ({}, {"HX-Request": "true"}):
        answer = client.get(address(pattern, evil), headers=headers)
        assert answer.status_code < 500
        if answer.streaming or "text/html" not in answer.headers.get("Content-Type", "text/html"):
            continue
        text = answer.content.decode()
        assert Page(text).wrong == []
        assert "<img src=x" not in text and "49" not in re.findall(r"alert\(2\)&gt;.{0,20}", text)
        policy = answer["Content-Security-Policy"]
        assert policy == CSP and "unsafe" not in policy and "default-src 'self'" in policy


def test_a_log_is_never_a_page(evil: dict[str, str]) -> None:
    answer = browser().get(f"/runs/{evil['<uuid:run_id>']}/log.txt")
    assert answer["Content-Type"].startswith("text/plain") and answer["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("host", HOSTS)
def test_a_foreign_host_gets_no_page_and_makes_no_link(host: str) -> None:
    client = Client(headers={"Host": host, "Accept": "text/html"})
    for path in ("/login", "/", "/join/berth-join.sh", "/agent/v1/hello", "/api/v1/me", "/static/panel/panel.js"):
        answer = client.get(path)
        if host and not path.startswith("/static"):
            assert answer.status_code == 400, path
        assert "evil.example" not in answer.headers.get("Location", "")


def test_links_that_are_given_to_people_bear_the_panels_own_name(settings: Any) -> None:
    settings.BERTH_PUBLIC_URL = "https://berth.example.org"
    settings.ALLOWED_HOSTS = ["other.example", "berth.example.org"]
    client = browser()
    answer = client.post("/people/invite", {"label": "Omar", "role": "viewer"},
                         headers={"Host": "other.example", "X-Forwarded-Host": "evil.example", "Forwarded": "host=evil.example"})  # fmt: skip
    text = answer.content.decode()
    assert (
        "https://berth.example.org/invite/" in text
        and "evil.example" not in text
        and "//other.example/invite" not in text
    )


def test_cookies_and_headers_by_https(settings: Any) -> None:
    assert django_settings.SESSION_COOKIE_HTTPONLY and django_settings.SESSION_COOKIE_SAMESITE == "Lax"
    answer = Client(headers={"Accept": "text/html"}).get("/login")
    for name, word in {"X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
                       "Cross-Origin-Opener-Policy": "same-origin"}.items():  # fmt: skip
        assert answer[name] == word
    assert "frame-ancestors 'none'" in answer["Content-Security-Policy"]


def test_the_deploy_check_has_nothing_to_say_of_a_teams_set_up(tmp_path: Path) -> None:
    """As docker/compose.yml sets it: https in front, a key of its own."""
    env = {"PATH": os.environ["PATH"], "BERTH_DATA": str(tmp_path), "BERTH_URL": "https://berth.example.org",
           "BERTH_BEHIND_PROXY": "1", "BERTH_BIND": "0.0.0.0:8080", "BERTH_SECRET_KEY": "k" * 30 + "Xy7-Zq_2" * 6}  # fmt: skip
    argv = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no issues" in done.stdout + done.stderr


def test_no_template_switches_escaping_off() -> None:
    found = [
        f"{path.relative_to(ROOT)}"
        for path in (ROOT / "templates").rglob("*.html")
        if re.search(r"\|\s*safe\b|autoescape off|safeseq", path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_nothing_reads_pickles_or_runs_text() -> None:
    """Of what the panel, the agent and the door are made of: no pickle, no eval, no shell, no YAML that makes objects.

    Chat templates are run by one file alone, which is a process of its own in a sandbox.
    """
    bad = re.compile(
        r"\b(pickle|cloudpickle|dill|shelve)\b|(?<![\w.])(eval|exec)\(|shell=True|os\.system|os\.popen|yaml\.(unsafe_)?load\(|verify=False|jinja2"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for room in ("panel", "deployments", "models_catalog")
        for path in (ROOT / room).rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if bad.search(line.split("#")[0]) and not (path.name == "chat_child.py" and "jinja2" in line)
    ]
    assert found == []
