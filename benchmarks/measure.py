"""What is measured on a panel that was started the way people start it: start, memory, and two delays they feel."""

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM, FLAGS
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.panel.running import Panel

AS_BROWSER = {"Accept": "text/html"}
LIMITS = {"first page": 5.0, "memory": 450}  # seconds, MiB
CLICKS, LINES = 5, 40
PASSWORD = "correct horse battery"


def until(what: Callable[[], Any], seconds: float = 120) -> Any:
    """Poll finely: the delay is what is measured."""
    end = time.monotonic() + seconds
    while not (value := what()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(0.002)
    return value


def spread(values: list[float]) -> str:
    ordered = sorted(values)
    return f"median {median(ordered) * 1000:.0f} ms, worst {ordered[-1] * 1000:.0f} ms of {len(ordered)}"


# --- start ------------------------------------------------------------------------------------------------------------
def first_page(panel: Panel) -> float:
    """Seconds from the command to a whole page (the sign-in, where the home page sends a stranger)."""
    begin = time.monotonic()
    panel.begin()
    with httpx.Client(
        base_url=f"http://127.0.0.1:{panel.port}", follow_redirects=True, timeout=10, headers=AS_BROWSER
    ) as client:

        def page() -> bool:
            try:
                answer = client.get("/")
            except httpx.TransportError:
                return False
            return answer.status_code == 200 and "</html>" in answer.text

        until(page)
    return time.monotonic() - begin


# --- memory ---------------------------------------------------------------------------------------------------------
def memory(panel: Panel) -> dict[str, float]:
    """PSS by kind of process, MiB. PSS shares what processes share, so the sum is what the machine really gives."""
    found: dict[str, float] = defaultdict(float)
    root = psutil.Process(panel.process.pid)
    for process in (root, *root.children(recursive=True)):
        try:
            found[kind(process.cmdline())] += process.memory_full_info().pss / 2**20
        except psutil.NoSuchProcess:
            continue
    return dict(found)


def kind(command: list[str]) -> str:
    words = " ".join(command)
    for mark, name in (
        ("manage.py up", "up"),
        ("panel.web", "web"),
        ("-Q loop", "worker (loop)"),
        ("-Q probe", "worker (probe)"),
        ("panel.fleet.agent --dir", "agent"),
        ("postgres", "PostgreSQL"),
        ("valkey-server", "Valkey"),
    ):
        if mark in words:
            return name
    return "other"


# --- delays -----------------------------------------------------------------------------------------------------------
class Person:
    """Someone who signed in, with a browser's cookies."""

    def __init__(self, panel: Panel) -> None:
        from panel.accounts.models import User

        User.objects.create_user("bench", password=PASSWORD, role="admin")
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{panel.port}", timeout=30, headers=AS_BROWSER)
        self.client.get("/login")
        answer = self.post("/login", name="bench", password=PASSWORD)
        if answer.status_code != 302:
            raise RuntimeError(f"sign-in: HTTP {answer.status_code}")

    def post(self, path: str, **data: str) -> httpx.Response:
        token = self.client.cookies.get("berth_csrf", "")
        return self.client.post(path, data={"csrfmiddlewaretoken": token, **data})


class Engines:
    """A fake engine and a model on the panel's machine, and one deployment of it."""

    def __init__(self, panel: Panel, folder: Path) -> None:
        self.panel, self.models, self.engines = panel, folder / "models", folder / "engines"
        self.models.mkdir()
        make_fake_engine(self.engines)
        make_fake_model(self.models / "good", phase_s=0.01)
        panel.env |= {"HOME": str(folder), "PATH": f"{self.engines}:{os.environ['PATH']}"}

    def allow(self) -> None:
        """Let the agent look where the model is; it reads its settings at its start."""
        config = self.panel.data / "agent" / "agent.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "model_roots": [str(self.models)]}))

    def deploy(self) -> Any:
        from deployments import services
        from deployments.spec import DeploymentSpec
        from models_catalog.models import Copy
        from panel.fleet import services as fleet
        from panel.fleet import wire
        from panel.fleet.models import Host, Job

        host = until(Host.objects.filter(is_local=True, last_seen_at__isnull=False).first)
        tasks = (wire.RuntimesTask(), wire.ScanTask())
        jobs = [fleet.order_job(host=host, task=task).pk for task in tasks]
        until(lambda: not Job.objects.filter(pk__in=jobs, open=True).exists())
        copy = until(Copy.objects.filter(present=True, path__contains="good").select_related("artifact").first)
        values = {"artifact_id": copy.artifact.pk, "device": "cpu", "kv_cache_gib": 1, "grace_s": 1.0}
        return services.create(name="bench", spec=DeploymentSpec.model_validate(values), actor=None)


def wait_for(row: Any, state: str) -> None:
    def there() -> bool:
        row.refresh_from_db()
        if row.state == "failed":
            raise RuntimeError(f"the run failed: {row.reason}")
        return bool(row.state == state)

    until(there)


def click_to_engine(person: Person, row: Any, engines: Engines) -> list[float]:
    """From the click on Start to the engine's process, by the machine's own clock (exact to 10 ms)."""
    delays = []
    for _ in range(CLICKS):
        person.post(f"/deployments/{row.pk}/stop")
        wait_for(row, "stopped")
        known = {process.pid for process in engine_processes(engines)}
        begin = time.clock_gettime(time.CLOCK_BOOTTIME)
        person.post(f"/deployments/{row.pk}/start")
        new = until(lambda known=known: [p for p in engine_processes(engines) if p.pid not in known])
        delays.append(min(began_at(process.pid) for process in new) - begin)
        wait_for(row, "ready")
    return delays


def began_at(pid: int) -> float:
    """When a process began, seconds since boot, exact to a clock tick."""
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")


def engine_processes(engines: Engines) -> list[psutil.Process]:
    """Processes of the fake engine; shims and the agent are not."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if str(engines.engines / "vllm") in words[:3]:
            found.append(process)
    return found


WATCH = """mark => new Promise(drawn => {
  const there = () => document.querySelector('.log').textContent.includes(mark);
  const done = () => requestAnimationFrame(() => setTimeout(() => drawn(Date.now())));  // after the next frame
  if (there()) return done();
  const seen = new MutationObserver(() => { if (there()) { seen.disconnect(); done(); } });
  seen.observe(document.querySelector('.log'), { childList: true, subtree: true, characterData: true });
})"""


def line_to_page(person: Person, row: Any, panel: Panel) -> list[float]:
    """From a line in the engine's log file to the frame of a real browser that shows it, exact to a millisecond."""
    log = panel.data / "agent" / "jobs" / str(row.run.job_id) / "log"
    url = f"http://127.0.0.1:{panel.port}"
    delays = []
    with sync_playwright() as playwright, log.open("ab", 0) as file:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = browser.new_context(base_url=url)
        context.add_cookies([{"name": c.name, "value": c.value or "", "url": url} for c in person.client.cookies.jar])
        page = context.new_page()
        page.goto(f"/deployments/{row.pk}/")
        page.locator("details", has=page.locator(".log")).locator("summary").click()
        page.locator(".log").wait_for()
        for number in range(LINES):
            mark = f"bench-{number}-{time.time_ns()}"
            page.evaluate(f"mark => {{ window.shown = ({WATCH})(mark) }}", mark)
            begin = time.time()
            file.write(f"INFO {mark}\n".encode())
            delays.append(page.evaluate("window.shown") / 1000 - begin)
            time.sleep(0.05 + number % 7 / 50)  # not in step with any timer
        browser.close()
    return delays
