"""What is measured on a panel that was started the way people start it: start, memory, and the delays they feel."""

import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import sync_playwright

from benchmarks.people import percentile
from tests.browser.chromium import CHROMIUM, FLAGS
from tests.fakes.make_engine import make_fake_engine, make_fake_model
from tests.panel.running import Panel

AS_BROWSER = {"Accept": "text/html"}
LIMITS = {"first page": 5.0, "memory": 450}  # seconds, MiB
STARTS, CLICKS, EXITS, LINES, MOVES, ASKED = 3, 25, 10, 100, 200, 50
SHARES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("worst", 1.0))
PASSWORD = "correct horse battery"


def until(what: Callable[[], Any], seconds: float = 120, pause: float = 0.002) -> Any:
    """Poll finely: the delay is what is measured."""
    end = time.monotonic() + seconds
    while not (value := what()):
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:g} s")
        time.sleep(pause)
    return value


@dataclass
class Figures:
    """What was measured, said as it comes; `good` is false once a limit is broken."""

    say: Callable[[str], None]
    good: bool = True

    def times(self, what: str, values: list[float], **limits: float) -> None:
        """Seconds of repeats, said in milliseconds; limits are milliseconds by name: p50, p95, p99, worst."""
        found = {name: percentile(values, share) * 1000 for name, share in SHARES}
        broken = {name for name, most in limits.items() if found[name] > most}
        self.good &= not broken
        said = ", ".join(
            f"{name} {value:.0f}{f' (at most {limits[name]:g})' if name in limits else ''}{' ✗' * (name in broken)}"
            for name, value in found.items()
        )
        self.say(f"{what}: {said} ms of {len(values)}")

    def one(self, what: str, value: float, unit: str, most: float) -> None:
        self.good &= value <= most
        self.say(f"{what}: {value:.1f} {unit} (at most {most:g}){' ✗' * (value > most)}")


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
        values["restart"] = {"policy": "never"}  # a killed engine stays where its page says so
        return services.create(name="bench", spec=DeploymentSpec.model_validate(values), actor=None)


def wait_for(row: Any, state: str, pause: float = 0.002) -> None:
    def there() -> bool:
        row.refresh_from_db()
        if row.state == "failed" != state and row.desired == "running" and row.restart_asked == row.restart_done:
            raise RuntimeError(f"the run failed: {row.reason}")
        return bool(row.state == state)

    until(there, pause=pause)


def start(person: Person, row: Any) -> float:
    """Click on Start and wait until it is ready; when the click was, on the machine's own clock."""
    clicked = time.clock_gettime(time.CLOCK_BOOTTIME)
    person.post(f"/deployments/{row.pk}/start")
    wait_for(row, "ready", pause=0.02)
    return clicked


def engine_of(row: Any) -> int:
    """The pid of the engine that a ready deployment runs."""
    row.refresh_from_db()
    return int(row.run.job.status["pid"])


def click_to_engine(person: Person, row: Any) -> list[float]:
    """From the click on Start to the engine's process, by the machine's own clock (exact to 10 ms).

    The process is asked afterwards when it began: to watch for it would take a core from what is measured.
    """
    delays = []
    for number in range(CLICKS):
        person.post(f"/deployments/{row.pk}/stop")
        wait_for(row, "stopped", pause=0.02)
        time.sleep(0.2 + number % 7 / 10)  # not in step with any timer
        clicked = start(person, row)
        delays.append(began_at(engine_of(row)) - clicked)
    return delays


def deploy_to_engine(person: Person, row: Any) -> list[float]:
    """From the click on Deploy, with the form as the page fills it in, to the engine's process of the new deployment.

    `row` is stopped meanwhile; each new one is stopped and deleted before the next. One more before the first is not
    counted: with it the engine is asked whether it takes these settings, which is done once.
    """
    from deployments.models import Deployment

    person.post(f"/deployments/{row.pk}/stop")
    wait_for(row, "stopped", pause=0.02)
    delays = []
    for number in range(CLICKS + 1):
        name = f"new-{number}"
        form = {"artifact": row.revision.spec["artifact_id"], "name": name, "device": "cpu", "task": "generate",
                "kv_cache_gib": 1, "max_model_len": 2048, "people": 1, "restart": "never"}  # fmt: skip
        time.sleep(0.2 + number % 7 / 10)  # not in step with any timer
        clicked = time.clock_gettime(time.CLOCK_BOOTTIME)
        answer = person.post("/deployments/new", **{key: str(value) for key, value in form.items()})
        if answer.status_code != 302:
            raise RuntimeError(f"Deploy: HTTP {answer.status_code}")
        made = Deployment.objects.get(name=name)
        wait_for(made, "ready", pause=0.02)
        delays.append(began_at(engine_of(made)) - clicked)
        if number and "check" in made.run.placement:
            raise RuntimeError("the engine was asked again what it had accepted")
        person.post(f"/deployments/{made.pk}/stop")
        wait_for(made, "stopped", pause=0.02)
        person.post(f"/deployments/{made.pk}/delete", name=name)
    return delays[1:]


def began_at(pid: int) -> float:
    """When a process began, seconds since boot, exact to a clock tick."""
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")


def estimates(panel: Panel) -> list[float]:
    """Seconds of `POST /api/v1/estimate` with a whole config.json, over one connection."""
    from panel.accounts.models import Scope, User
    from panel.accounts.tokens import create_token
    from tests.models_catalog.estimate.builders import config

    user = User.objects.get(username="bench")
    _row, token = create_token(user, "estimates", actor=user, scope=Scope.API_WRITE)
    body = {"config": config("Qwen--Qwen3-8B"), "gpu": "H100", "engine_version": "0.32.0", "max_model_len": 8192}
    took = []
    with httpx.Client(
        base_url=f"http://127.0.0.1:{panel.port}", headers={"Authorization": f"Bearer {token}"}
    ) as client:
        for number in range(ASKED + 2):
            began = time.perf_counter()
            client.post("/api/v1/estimate", json=body).raise_for_status()
            if number > 1:  # the first ones load what answers
                took.append(time.perf_counter() - began)
    return took


MOVE = """async moves => {
  const range = document.querySelector('.slider input[type=range]'), took = [];
  for (let n = 0; n < moves; n++) {
    range.value = Math.round((+range.max) * ((n * 37) % 100) / 100);
    const began = performance.now();
    range.dispatchEvent(new Event('input', { bubbles: true }));
    document.querySelector('#bars').getBoundingClientRect();       // what the move changed is laid out
    await new Promise(drawn => requestAnimationFrame(() => { setTimeout(drawn) }));
    took.push((performance.now() - began) / 1000);
    await new Promise(rest => setTimeout(rest, 30));
  }
  return took;
}"""


def slider_to_bars(row: Any, page: Any) -> list[float]:
    """Seconds from a move of a slider of the deploy page to the end of the frame that shows its bars."""
    page.goto(f"/deployments/new?artifact={row.revision.spec['artifact_id']}")
    page.locator(".slider input[type=range]").first.wait_for()
    page.locator("#bars .bar").first.wait_for()
    return [float(value) for value in page.evaluate(MOVE, MOVES)]


WATCH = """mark => new Promise(drawn => {
  const there = () => document.querySelector('.log').textContent.includes(mark);
  const done = () => requestAnimationFrame(() => setTimeout(() => drawn(Date.now())));  // after the next frame
  if (there()) return done();
  const seen = new MutationObserver(() => { if (there()) { seen.disconnect(); done(); } });
  seen.observe(document.querySelector('.log'), { childList: true, subtree: true, characterData: true });
})"""


# In every document of the page: when it first showed a failure, and how long the script ever kept the browser busy.
NOTES = """(() => {
  const shown = () => requestAnimationFrame(() => setTimeout(() => { sessionStorage.failedAt ||= Date.now() }));
  const look = () => { if (document.querySelector('#state .state.bad')) shown() };
  new MutationObserver(look).observe(document, { childList: true, subtree: true, attributes: true });
  new PerformanceObserver(list => { for (const task of list.getEntries())
    sessionStorage.longest = Math.max(sessionStorage.longest || 0, task.duration) }).observe({ type: 'longtask' });
})()"""


@contextmanager
def browser(person: Person, panel: Panel) -> Iterator[Any]:
    """A page of a real browser, signed in."""
    url = f"http://127.0.0.1:{panel.port}"
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # Playwright's loop runs in this thread; only we use the database
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        context = chromium.new_context(base_url=url)
        context.add_cookies([{"name": c.name, "value": c.value or "", "url": url} for c in person.client.cookies.jar])
        context.add_init_script(NOTES)
        yield context.new_page()
        chromium.close()


def _open(page: Any, address: str) -> None:
    """Go there, also where the page before goes somewhere by itself at this moment (it loads itself in a new state)."""
    for _ in range(10):
        with suppress(PlaywrightError):
            page.goto(address)
            return
        time.sleep(0.2)
    page.goto(address)


def _failed_at(page: Any) -> float:
    """0 until then; the page may be loading just now."""
    try:
        return float(page.evaluate("Number(sessionStorage.failedAt || 0)"))
    except PlaywrightError:
        return 0.0


def exit_to_page(person: Person, row: Any, page: Any) -> list[float]:
    """From the engine's end (it is killed) to the frame of an open page that says so."""
    delays = []
    for number in range(EXITS):
        if number:
            start(person, row)
        _open(page, f"/deployments/{row.pk}/")
        page.evaluate("sessionStorage.clear()")
        time.sleep(1 + number % 5 / 10)
        began = time.time()
        os.kill(engine_of(row), signal.SIGKILL)
        delays.append(until(lambda: _failed_at(page), 30, pause=0.1) / 1000 - began)
        wait_for(row, "failed", pause=0.02)
    return delays


def line_to_page(row: Any, panel: Panel, page: Any) -> tuple[list[float], float]:
    """From a line in the engine's log file to the frame of a real browser that shows it, exact to a millisecond;
    and the longest task of the browser meanwhile, ms.
    """
    log = panel.data / "agent" / "jobs" / str(row.run.job_id) / "log"
    delays = []
    page.goto(f"/deployments/{row.pk}/")
    page.locator("details", has=page.locator(".log")).locator("summary").click()
    page.locator(".log").wait_for()
    time.sleep(1)
    page.evaluate("sessionStorage.clear()")  # what loading took is not following
    with log.open("ab", 0) as file:
        for number in range(LINES):
            mark = f"bench-{number}-{time.time_ns()}"
            page.evaluate(f"mark => {{ window.shown = ({WATCH})(mark) }}", mark)
            begin = time.time()
            file.write(f"INFO {mark}\n".encode())
            shown = page.evaluate("Promise.race([window.shown, new Promise(late => setTimeout(late, 10000, 0))])")
            if not shown:
                raise TimeoutError("a line of the log did not come to the page within 10 s")
            delays.append(shown / 1000 - begin)
            time.sleep(0.05 + number % 7 / 50)  # not in step with any timer
    return delays, float(page.evaluate("sessionStorage.longest || 0"))
