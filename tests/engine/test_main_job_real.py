"""The main job with nothing faked: a person, a browser, PostgreSQL, Valkey, an agent, vLLM (CPU) and a real model.

From the one-time link to the record of a finished run, as one story, since the engine starts only once here.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from playwright.sync_api import Browser, Page, expect

from deployments.models import Deployment, Run
from deployments.wording import STEPS_NOW
from panel.audit.models import Event
from panel.fleet import logstore, serving_points
from panel.fleet.agent import sample_model
from panel.fleet.models import Host, Reservation
from panel.fleet.wire_serving import Point
from tests.browser import checks
from tests.e2e.stack import ROOT, Stack
from tests.waiting import until

pytestmark = [pytest.mark.engine, pytest.mark.browser]

PASSWORD = "harbour lights at nine"
START_S = 900  # an idle machine of two cores needs 35 s, a busy one ten times as long
STOP_S = 180  # vLLM may sit on TERM; KILL follows after the grace of 30 s
CLICK_MS = 60_000
NAME = "smollm2-135m-instruct"


@pytest.fixture
def page(berth: Stack, browser: Browser) -> Iterator[Page]:
    """A fresh browser: nobody is signed in."""
    context = browser.new_context(
        base_url=berth.url, viewport={"width": 1280, "height": 900}, locale="en-GB", reduced_motion="reduce"
    )
    context.set_default_timeout(CLICK_MS)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.complaints = checks.watch(page, berth.url)  # type: ignore[attr-defined]  # rides along with the page
    yield page
    context.close()


class Camera:
    """Numbered pictures of the way, for people: test-output/screenshots/engine/."""

    def __init__(self) -> None:
        self.folder = checks.SHOTS / "engine"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.number = 0

    def __call__(self, page: Page, name: str) -> None:
        self.number += 1
        page.screenshot(path=self.folder / f"{self.number:02}-{name}.png", full_page=True)


def test_from_the_one_time_link_to_the_record(berth: Stack, page: Page) -> None:
    shoot = Camera()
    become_admin(page, berth, shoot)
    deploy(page, berth, shoot)
    seen = watch_the_start(page, berth, shoot)
    assert {"weights", "server"} <= seen["now"], f"the page did not follow the start: {seen}"
    assert seen["log_lines"] > 5, "no log line arrived while it started"
    use(page, berth, shoot)
    processes = engine_processes(berth)
    assert len(processes) >= 2, "vLLM has a server and an engine process"
    stop(page, berth, shoot, processes)
    look_at_the_record(page, berth, shoot)
    foreseen_and_answered()
    assert page.complaints == []  # type: ignore[attr-defined]


# --- the story --------------------------------------------------------------------------------------------------------


def become_admin(page: Page, berth: Stack, shoot: Camera) -> None:
    """The link that `up` prints makes the first account; then out, and in by name and password."""
    code = (
        "import django; django.setup(); from panel.accounts.services import first_admin_link; print(first_admin_link())"
    )
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=berth.env, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    link = made.stdout.strip().splitlines()[-1]
    assert link.startswith(berth.url), link
    page.goto(link)
    shoot(page, "first-admin")
    page.get_by_label("Your name here").fill("ada")
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("The same password again").fill(PASSWORD)
    page.get_by_role("button", name="Make the account").click()
    expect(page.get_by_role("navigation", name="Main")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    # a live part that was asked for just then comes back as "sign in first", to a page that is gone
    page.complaints[:] = [c for c in page.complaints if "401" not in c]  # type: ignore[attr-defined]
    shoot(page, "sign-in")
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    # the engine and the model are found without a word; the probe of the real engine imports torch, which takes a while
    expect(page.get_by_role("heading", name="Deploy it")).to_be_visible()
    expect(page.get_by_role("link", name="Deploy a model")).to_be_visible(timeout=200_000)
    shoot(page, "first-steps")


def deploy(page: Page, berth: Stack, shoot: Camera) -> None:
    """From the catalog to the click."""
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Hosts").click()
    expect(page.locator("main")).to_contain_text("0.32.0")
    shoot(page, "hosts")
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Models").click()
    shoot(page, "catalog")
    page.get_by_role("link", name=sample_model.NAME, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(sample_model.NAME)
    shoot(page, "model")
    page.go_back()
    page.get_by_role("link", name=f"Deploy {sample_model.NAME}", exact=True).click()
    expect(page.get_by_label("Name", exact=True)).to_have_value(NAME)
    expect(page.locator("#plan")).to_contain_text("Can start")
    page.locator("#exact summary").click()
    command = page.locator("#cmd").inner_text()
    assert str(berth.models / sample_model.NAME) in command and "VLLM_API_KEY" in command
    shoot(page, "deploy-form")
    page.get_by_role("button", name="Deploy").click()
    expect(page.get_by_role("heading", level=1, name=NAME)).to_be_visible()


def watch_the_start(page: Page, berth: Stack, shoot: Camera) -> dict:
    """Look at the page as it changes by itself until it is the ready page; which steps were seen under way."""
    names = {str(words): code for code, words in STEPS_NOW.items()}
    seen: dict = {"now": set(), "log_lines": 0}
    end = time.monotonic() + START_S
    while page.locator("#state").inner_text().strip() != "Ready":
        row = Deployment.objects.get(name=NAME)
        assert row.state != "failed", f"{row.reason}\n{tail(row)}\n{berth.logs()}"
        assert time.monotonic() < end, f"not ready after {START_S} s: {row.state}\n{tail(row)}\n{berth.logs()}"
        try:
            now = page.evaluate(
                "[...document.querySelectorAll('#steps .tl > li.now b')].map(e => e.textContent.trim())"
            )
            seen["log_lines"] = max(seen["log_lines"], page.locator("#log .ln").count())
        except Exception as exc:
            if "navigation" not in str(exc):  # the page of another state is being loaded
                raise
            continue
        fresh = {code for name in now for words, code in names.items() if name.startswith(words)} - seen["now"]
        seen["now"] |= fresh
        if fresh:
            shoot(page, f"starting-{fresh.pop()}")
        page.wait_for_timeout(150)
    return seen


def use(page: Page, berth: Stack, shoot: Camera) -> None:
    """The answer that made it ready, a token, the examples as pasted, the try-it box."""
    run = Deployment.objects.get(name=NAME).run
    assert run.ready_at and run.answer["answer"].strip()
    expect(page.locator("#answer")).to_contain_text(run.answer["answer"].strip()[:20])
    shoot(page, "ready")
    page.locator("#token-fold > summary").click()
    page.get_by_label("What it is for").fill("evaluation")
    page.get_by_role("button", name="Create a token").click()
    token = page.locator("#token-text").inner_text()
    shoot(page, "token")
    base = page.locator("#ep").inner_text().strip()
    assert base == f"{berth.url}/v1"

    before = until(lambda: numbers_of(run), timeout=60, why="the engine's own numbers are here")
    answer = httpx.post(
        f"{base}/chat/completions",
        json={"model": NAME, "temperature": 0, "max_tokens": 40,
              "messages": [{"role": "user", "content": "What is the capital of France?"}]},
        headers={"Authorization": f"Bearer {token}"}, timeout=180,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    assert "Paris" in answer.json()["choices"][0]["message"]["content"]
    assert httpx.post(f"{base}/chat/completions", json={"model": NAME}, timeout=20).status_code == 401
    numbers_moved(page, run, before, shoot)

    paste_the_examples(page, berth, token)
    page.get_by_label("Your message").fill("What is the capital of France?")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#chat .msg")).to_have_count(4, timeout=180_000)
    expect(page.locator("#chat .msg").last).to_contain_text("Paris")
    expect(page.locator("#chat .note.bad")).to_have_count(0)
    shoot(page, "asked")


def numbers_of(run: Run) -> Point | None:
    """What the engine said of itself last, once it was seen to be idle and well."""
    point = next(reversed(serving_points.read([run.job_id])[str(run.job_id)]), None)
    return point if point is not None and point.health == 200 and point.running == 0 else None


def numbers_moved(page: Page, run: Run, before: Point, shoot: Camera) -> None:
    """One answer more, its tokens, and no finding: all without a reload."""

    def counted() -> bool:
        point = numbers_of(run)
        return point is not None and (point.done or 0) > (before.done or 0)

    until(counted, timeout=60, why="the answer is counted")
    after = numbers_of(run)
    assert after is not None and before.problem == after.problem == ""
    assert (after.generation_tokens or 0) > (before.generation_tokens or 0)
    assert (after.prompt_tokens or 0) > (before.prompt_tokens or 0) and (after.steps or 0) > (before.steps or 0)
    assert (after.http_ok or 0) > (before.http_ok or 0) and after.http_5xx is None and after.failed == 0
    assert after.kv_usage is not None and after.rss_mib and after.rss_mib > 200
    # The page asks for its numbers every now and then, and the machine is busy with the engine.
    expect(page.locator("#now")).to_contain_text("In the queue", timeout=60_000)
    expect(page.locator("#now")).to_contain_text(re.compile(r"\d %"))
    expect(page.locator("#findings .note")).to_have_count(0)
    shoot(page, "right-now")


def paste_the_examples(page: Page, berth: Stack, token: str) -> None:
    """curl, Python and JavaScript as the copy button gives them, with nothing set but $BERTH_API_KEY."""
    stand_in = berth.folder / "site"
    stand_in.mkdir()
    (stand_in / "openai.py").write_text(OPENAI)  # the requests of that library, without the library
    node = Path(sys.modules["playwright"].__file__ or "").parent / "driver" / "node"
    runs = {
        "curl": ["bash", "-c"],
        "Python": [sys.executable, "-c"],
        "JavaScript": [str(node), "--input-type=module", "-e"],
    }
    env = {"PATH": os.environ["PATH"], "BERTH_API_KEY": token, "PYTHONPATH": str(stand_in)}
    for language, command in runs.items():
        page.locator(".tabset label", has_text=language).click()
        page.get_by_role("button", name=f"Copy the {language} example").click()
        code = page.evaluate("navigator.clipboard.readText()")
        done = subprocess.run([*command, code], env=env, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0 and done.stdout.strip(), f"{language}: {done.stderr}\n{code}"
        if language == "curl":
            assert json.loads(done.stdout)["choices"][0]["message"]["content"].strip()
        elif language == "JavaScript":
            assert "chat.completion" in done.stdout, done.stdout


def stop(page: Page, berth: Stack, shoot: Camera, processes: list[psutil.Process]) -> None:
    """The confirm dialog asks; leaving it changes nothing; then every process of the run ends."""
    page.get_by_role("button", name="Stop", exact=True).click()
    asked = page.get_by_role("dialog", name=f"Stop {NAME}?")
    expect(asked).to_be_visible()
    page.screenshot(path=checks.SHOTS / "engine" / "dialog-stop.png")
    asked.get_by_role("button", name="Leave as it is").click()
    expect(asked).to_be_hidden()
    assert Deployment.objects.get(name=NAME).desired == "running"
    page.get_by_role("button", name="Stop", exact=True).click()
    asked.get_by_role("button", name="Stop it").click()
    shoot(page, "stopping")
    expect(page.get_by_role("heading", name="It is stopped. Its memory is free.")).to_be_visible(timeout=STOP_S * 1000)
    shoot(page, "stopped")
    assert [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE] == []
    assert engine_processes(berth) == []
    assert not Reservation.objects.exists()
    assert Host.objects.get(is_local=True).ram_reserved_mib == 0


def look_at_the_record(page: Page, berth: Stack, shoot: Camera) -> None:
    """Command, exit and log of the run; who did what."""
    run = Deployment.objects.get(name=NAME).run
    page.get_by_role("link", name="Command and log").click()
    shoot(page, "record")
    command = page.locator("#cmd").inner_text()
    assert " serve " in command and str(berth.models / sample_model.NAME) in command
    assert f"--port {run.job.status['port']}" in command and "{port}" not in command
    key = re.search(r"VLLM_API_KEY=(\S+)", command)
    assert key and not re.search(r"\w", key[1]), "the key is masked"
    expect(page.locator("main")).to_contain_text(re.compile(r"Exit code \d+\.|Ended by signal SIG\w+\."))
    expect(page.locator("#log")).to_contain_text("Application startup complete")
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    whole = b"".join(part.data for part in logstore.read_all(run.job_id))
    assert Path(download.value.path()).read_bytes() == whole

    page.get_by_role("navigation", name="Main").get_by_role("link", name="Activity").click()
    entries = page.locator("#entries")
    for sentence in ("ada became the first admin", "ada signed out", "ada signed in", "ada made the token evaluation",
                     f"ada created {NAME}", f"{NAME} is ready and answered a test question", f"ada stopped {NAME}",
                     f"{NAME} has stopped"):  # fmt: skip
        expect(entries).to_contain_text(sentence)
    shoot(page, "activity")
    acts = Event.objects.filter(target_kind="deployment", actor="ada").order_by("pk")
    assert [(e.verb, e.outcome, e.address) for e in acts] == [
        ("deployment.created", "done", "127.0.0.1"),
        ("deployment.stopped", "done", "127.0.0.1"),
    ]
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Deployments").click()
    shoot(page, "list")


def foreseen_and_answered() -> None:
    """On a CPU the estimate is the engine's own count; the golden questions were asked beside all this."""
    run = Deployment.objects.get(name=NAME).run
    assert run.measured["kv_tokens"] == run.foreseen["kv_tokens"], (run.foreseen, run.measured)
    assert run.measured["concurrency"] == pytest.approx(run.foreseen["concurrency"], abs=0.006)
    assert run.residual_gib is None, "a size that was told teaches nothing"
    answers = run.golden["answers"]
    assert len(answers) == 3 and all(each["answer"] for each in answers), answers
    assert run.golden["asked_at"] >= run.answer["at"]


# --- helpers ----------------------------------------------------------------------------------------------------------


def engine_processes(berth: Stack) -> list[psutil.Process]:
    """Asked of the machine: processes that carry a job's mark, or that run the engine of this stack for this model."""
    found = {p.pid: p for p in berth.job_processes()}
    port = Deployment.objects.get(name=NAME).run.job.status.get("port")
    for proc in psutil.process_iter():
        try:
            words = proc.cmdline()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        if str(berth.models / sample_model.NAME) in words and str(port) in words:
            found[proc.pid] = proc
    return [p for p in found.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def tail(row: Deployment) -> str:
    if row.run is None or row.run.job_id is None:
        return "no log"
    return b"".join(part.data for part in logstore.read_all(row.run.job_id))[-4000:].decode(errors="replace")


OPENAI = """
import json, urllib.request
from types import SimpleNamespace


class OpenAI:
    def __init__(self, *, base_url, api_key):
        self.base_url, self.api_key = base_url, api_key
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def _create(self, **body):
        request = urllib.request.Request(
            f"{self.base_url}/chat/completions", data=json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.api_key}", "Content-Type": "application/json"},
        )
        answer = json.load(urllib.request.urlopen(request))
        return json.loads(json.dumps(answer), object_hook=lambda found: SimpleNamespace(**found))
"""
