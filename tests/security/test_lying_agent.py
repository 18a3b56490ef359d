"""An agent that lies: whatever a host with a real token sends, it is stored or refused, and every page still opens."""

import copy
import itertools
import json
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from panel.accounts.models import User
from panel.accounts.services import create_token
from panel.fleet import services, wire
from panel.fleet.models import Gpu, Host, Job
from tests.deployments import builders
from tests.security.fuzzing import LONG, cases, count, numbers, texts

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("one_connection")]
TOKEN = "the token of a host"
GPU = {
    "index": 0, "uuid": "GPU-1", "name": "NVIDIA L40S", "total_mib": 46_068, "used_mib": 600, "utilisation_pct": 3,
    "temperature_c": 40, "power_w": 70.5, "compute_capability": "8.9",
    "processes": [{"pid": 4, "used_mib": 100, "user": "root", "name": "python", "job_id": None}],
}  # fmt: skip
DISK = {"path": "/", "total_mib": 100_000, "free_mib": 50_000}
FOUND = {"engine": "vllm", "executable": "/opt/bin/vllm", "version": "0.32.0", "python": "3.12", "device": "cuda",
         "plugins": ["gguf"], "flags": [{"flags": ["--seed"], "dest": "seed", "type": "int", "nargs": None}]}  # fmt: skip
SCANNED = {"path": "/models/x", "root": "/models", "format": "hf", "facts": {"format": "hf", "name": "x", "heads": 9,
           "weight_bytes": 5, "architectures": ["A"], "chat_template": True, "context_length": 4096}}  # fmt: skip


@pytest.fixture
def host() -> Host:
    made = builders.make_host("atlas", gpus=1)
    Host.objects.filter(pk=made.pk).update(token_hash=services.digest(TOKEN), is_local=False, door=builders.DOOR)
    return Host.objects.get(pk=made.pk)


@pytest.fixture
def agent() -> Client:
    return Client(headers={"Authorization": f"Bearer {TOKEN}"}, raise_request_exception=True)


@pytest.fixture
def reading(host: Host) -> Any:
    """Opens every page and list that shows what this host says."""
    admin = User.objects.create_user(username="ada", role="admin")
    browser = Client(headers={"Accept": "text/html", "Sec-Fetch-Mode": "navigate"})
    browser.force_login(admin)
    program = Client(headers={"Authorization": f"Bearer {create_token(admin, 'x', actor=admin, scope='api:read')[1]}"})
    made = builders.make_copy(host)
    row = builders.make_deployment(made, state="ready")
    run = builders.make_run(row, made)
    pages = ["/", "/hosts/", f"/hosts/{host.pk}/", f"/deployments/{row.pk}/", f"/runs/{run.pk}/", "/runtimes/",
             f"/deployments/new?artifact={made.artifact_id}", "/models/", f"/models/{made.artifact.model_id}/"]  # fmt: skip
    lists = ["/api/v1/hosts", f"/api/v1/hosts/{host.pk}", "/api/v1/runtimes", "/api/v1/models",
             f"/api/v1/deployments/{row.pk}", f"/api/v1/runs/{run.pk}"]  # fmt: skip

    turns = itertools.cycle([(pages[:3], lists[:2]), (pages[3:6], lists[2:4]), (pages[6:], lists[4:])])

    def look(every: bool = bool(LONG)) -> None:
        """Everything; in a short run a third of it, in turn."""
        for some, rows in [(pages, lists)] if every else [next(turns)]:
            show(some, rows)

    def show(pages: list[str], lists: list[str]) -> None:
        for path in pages:
            answer = browser.get(path)
            assert answer.status_code == 200, path
            assert b"<script>alert" not in answer.content and b"\x1b[" not in answer.content, path
        for path in lists:
            answer = program.get(path)
            assert answer.status_code == 200, path
            assert "NaN" not in json.dumps(json.loads(answer.content)), path

    look.job = str(run.job_id)  # type: ignore[attr-defined]
    look(True)
    return look


def post(agent: Client, path: str, body: Any) -> int:
    """The status. Python writes NaN and Infinity into JSON, as an agent that lies would."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode("utf-8", "surrogatepass")
    status: int = agent.post(path, data, content_type="application/json").status_code
    return status


def report(job_id: str) -> dict[str, Any]:
    status = {
        "id": job_id, "kind": "engine", "state": "running", "pid": 7, "port": 18_100, "listening": True, "argv": ["a"],
        "started_at": 1.0, "ended_at": None, "exit_code": None, "signal": None, "refusal": {"code": "x", "params": {"a": 1}},
        "leftover_pids": [7], "processes": 1, "rss_mib": 5, "read_bytes": 9, "gpu_used_mib": 5, "log_size": 4,
        "log_hole": [1, 2], "last_output_at": 2.0, "progress": {"phase": "checking", "done": 1, "total": 2, "note": "n"},
    }  # fmt: skip
    facts = {**builders.FACTS, "gpus": [GPU], "disks": [DISK], "gpu_driver": "570", "cuda_driver_version": "13.0",
             "boot_id": "b", "gpu_error": None, "engine_folder": "/e"}  # fmt: skip
    door = {"address": "10.0.0.7", "port": 8443, "certificate": "c" * 64, "accepts": ["a" * 64], "problem": ""}
    return {"agent_version": "0.1.0", "sent_at": 1.0, "round_trip_s": 0.1, "rev": 1, "facts": facts, "jobs": [status],
            "door": door, "instance": "a.b"}  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place inside a message."""
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        found += places(item, (*path, key))
    return found


def put(message: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(message)
    at: Any = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


odd = st.one_of(
    texts, numbers, st.sampled_from([None, True, [], {}, [None], {"a": {"b": []}}, float("nan"), float("inf")]),
    st.lists(texts, max_size=3), st.dictionaries(texts, texts, max_size=2),
)  # fmt: skip


def sent(agent: Client, path: str, message: Any, look: Any, after: Any = None) -> None:
    """One lie: taken or refused in words; when it was taken, everything can still be read. Then it never was."""
    with transaction.atomic():
        status = post(agent, path, message)
        assert status in (200, 204, 422), status
        if status != 422:
            if after:
                after()
            look()
        transaction.set_rollback(True)
    count(1)


@pytest.mark.parametrize("part", ["facts", "jobs", "door", ""])
def test_reports(agent: Client, reading: Any, part: str) -> None:
    message = report(reading.job)
    where = [path for path in places(message) if (path[0] == part if part else len(path) == 1)]

    @cases(12, share=0.02)
    @given(path=st.sampled_from(where), value=odd)
    def lie(path: tuple[Any, ...], value: Any) -> None:
        sent(agent, "/agent/v1/report", put(message, path, value), reading)

    lie()


@pytest.mark.parametrize(("kind", "item"), [("runtimes", FOUND), ("scan", SCANNED)])
def test_results(agent: Client, reading: Any, host: Host, kind: str, item: dict[str, Any]) -> None:
    from models_catalog import services as catalog

    task = wire.RuntimesTask() if kind == "runtimes" else wire.ScanTask()
    job = services.order_job(host=host, task=task)

    def record() -> None:
        if kind == "scan":
            catalog.take_scan(str(job.pk)) if hasattr(catalog, "take_scan") else None

    @cases(12, share=0.02)
    @given(path=st.sampled_from(places(item)), value=odd)
    def lie(path: tuple[Any, ...], value: Any) -> None:
        body = {"items": [item, put(item, path, value)], "refusal": None}
        sent(agent, f"/agent/v1/jobs/{job.pk}/result", body, reading, record)

    lie()


def test_wrong_kinds_of_bodies(agent: Client, host: Host, reading: Any) -> None:
    bodies = [b"", b"null", b"[]", b"1", b"\xff\xfe", b"{" * 100_000, b"[" * 1_000_000, b'{"jobs":' * 200_000]
    paths = ["report", "leave?for=good", f"jobs/{reading.job}/result", "join"]
    for path in paths:
        for body in bodies:
            assert post(agent, f"/agent/v1/{path}", body) in (204, 422), (path, body[:10])


def test_a_report_is_bounded(agent: Client, host: Host, reading: Any) -> None:
    base = report(reading.job)
    many = [{**GPU, "uuid": f"GPU-{n}", "index": n} for n in range(5000)]
    assert post(agent, "/agent/v1/report", put(base, ("facts", "gpus"), many)) == 422
    assert Gpu.objects.filter(host=host).count() == 1
    for path, value in {
        ("facts", "cpu_flags"): ["x"] * 50_000,
        ("facts", "model_roots"): ["/x"] * 50_000,
        ("facts", "hostname"): "h" * 1_000_000,
        ("facts", "cpu_model"): "h" * 1_000_000,
        ("jobs", 0, "argv"): ["a"] * 100_000,
        ("jobs", 0, "refusal", "params"): {str(n): "x" * 1000 for n in range(2000)},
    }.items():
        assert post(agent, "/agent/v1/report", put(base, path, value)) == 422, path
    cut = put(base, ("facts", "gpus", 0, "processes"), GPU["processes"] * 100_000)  # a machine may truly have many
    cut = put(put(cut, ("facts", "disks"), [DISK] * 50_000), ("jobs", 0, "leftover_pids"), [1] * 100_000)
    assert post(agent, "/agent/v1/report", cut) == 200
    host.refresh_from_db()
    assert len(host.facts["disks"]) == wire.MAX_LIST
    assert len(Gpu.objects.get(uuid="GPU-1").measured["processes"]) == wire.MAX_LIST
    items = [{**SCANNED, "path": f"/models/{n}"} for n in range(30_000)]
    assert post(agent, f"/agent/v1/jobs/{reading.job}/result", {"items": items}) == 422
    big = b'{"a": "' + b"x" * (17 << 20) + b'"}'
    assert post(agent, "/agent/v1/report", big) == 413
    assert agent.post(f"/agent/v1/jobs/{reading.job}/log?offset=0", b"x" * (2 << 20),
                      content_type="application/octet-stream").status_code == 413  # fmt: skip
    reading(True)


@pytest.mark.parametrize("offset", ["-1", "9" * 30, "x", "", "1e3", "\0", "٣"])
def test_offsets_of_logs(agent: Client, host: Host, reading: Any, offset: str) -> None:
    for query in (f"offset={offset}", f"offset=0&skipped={offset}"):
        answer = agent.post(f"/agent/v1/jobs/{reading.job}/log?{query}", b"x", content_type="application/octet-stream")
        assert answer.status_code in (200, 400, 422)
    for query in (f"rev={offset}", f"rev=1&wait={offset}"):
        assert agent.get(f"/agent/v1/work?{query}").status_code in (200, 204, 400, 422)


def test_an_old_or_a_future_wire_is_told_so(host: Host) -> None:
    for number in ("0", "2", "x", "1.0", "9" * 50):
        odd = Client(headers={"Authorization": f"Bearer {TOKEN}", wire.WIRE_HEADER: number})
        answer = odd.get("/agent/v1/work")
        assert (answer.status_code, answer.json()["code"]) == (426, "link.version"), number


def test_one_host_neither_sees_nor_moves_anothers_jobs(agent: Client, host: Host, reading: Any) -> None:
    other = builders.make_host("quay")
    theirs = builders.make_copy(other, "Their-Model")
    row = builders.make_deployment(theirs, "theirs", state="ready")
    run = builders.make_run(row, theirs)
    before = Job.objects.filter(pk=run.job_id).values().get()
    assert str(run.job_id) not in agent.get("/agent/v1/work").content.decode()
    for path in (f"jobs/{run.job_id}/log?offset=0", f"jobs/{run.job_id}/result"):
        assert post(agent, f"/agent/v1/{path}", {"items": []}) == 404
    assert post(agent, "/agent/v1/report", report(str(run.job_id))) == 200
    assert Job.objects.filter(pk=run.job_id).values().get() == before


def test_an_agent_cannot_lead_the_panel_elsewhere(agent: Client, host: Host, reading: Any, settings: Any) -> None:
    """Its door is an address that nobody may mean: the panel's own machine, a cloud's metadata, a name with a path."""
    settings.BERTH_PUBLIC_URL = "https://berth.example.org"
    for address in ("127.0.0.1", "localhost", "::1", "169.254.169.254", "0.0.0.0", "fd00:ec2::254", "[::1]", "x/y", "a b",
                    "2130706433", "0x7f000001", "127.1", "::ffff:127.0.0.1", "224.0.0.1", "x@y", ""):  # fmt: skip
        assert post(agent, "/agent/v1/report", put(report(reading.job), ("door", "address"), address)) == 200
        found = Host.objects.get(pk=host.pk).door
        assert not found.get("address"), address
        assert found["problem"] in ("no_address", "address_not_allowed")
        reading()
    settings.BERTH_PRIVATE_RANGES = ()
    for address, taken in {
        "10.0.0.7": False,
        "fd00::7": False,
        "203.0.113.7": False,
        "9.9.9.9": True,
        "gpu.example": True,
    }.items():
        assert post(agent, "/agent/v1/report", put(report(reading.job), ("door", "address"), address)) == 200
        assert bool(Host.objects.get(pk=host.pk).door.get("address")) == taken, address
