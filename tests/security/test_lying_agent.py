"""An agent that lies: whatever a host with a real token reports, it is stored or refused, and every page still opens.

What hosts answer to orders is in test_lying_results.py.
"""

from typing import Any

import pytest
from django.test import Client
from hypothesis import given

from panel.fleet import samples, wire
from panel.fleet.models import Gpu, Host, Job
from tests.deployments import builders
from tests.security.fuzzing import cases
from tests.security.lying import (  # noqa: F401  (fixtures)
    GPU,
    TOKEN,
    Panel,
    Reader,
    agent,
    host,
    lies,
    panel,
    post,
    put,
    reading,
    report,
    status,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("one_connection")]
DISK = {"path": "/", "total_mib": 100_000, "free_mib": 50_000}
SCANNED = {"path": "/models/x", "root": "/models", "format": "hf", "facts": {"format": "hf", "name": "x"}}
# Names of fixtures, and of what they make.
# ruff: noqa: F811


@pytest.mark.parametrize("part", ["facts", "jobs", "door", ""])
@pytest.mark.parametrize("quiet", [False, True], ids=["news", "figures"])
def test_reports(panel: Panel, reading: Reader, part: str, quiet: bool) -> None:
    """A lie in any field; `figures`: after an honest report, so that only what moves all the time is told anew."""
    message = report(status(reading.job))
    if quiet:
        assert panel.says("report", message) == 200
        panel.sample = samples.read(panel.host.pk)
        assert panel.sample is not None and panel.sample["told"], "the next one is mere figures"

    @cases(12, share=0.02)
    @given(told=lies([message], within=lambda path: path[0] == part if part else len(path) == 1))
    def lie(told: tuple[int, dict[str, Any]]) -> None:
        panel.lie("report", told[1], reading)

    lie()


def test_wrong_kinds_of_bodies(agent: Client, host: Host, reading: Reader) -> None:
    bodies = [b"", b"null", b"[]", b"1", b"\xff\xfe", b"{" * 100_000, b"[" * 1_000_000, b'{"jobs":' * 200_000]
    paths = ["report", "leave?for=good", f"jobs/{reading.job}/result", "join"]
    for path in paths:
        for body in bodies:
            assert post(agent, f"/agent/v1/{path}", body) in (204, 422), (path, body[:10])


def test_a_report_is_bounded(agent: Client, host: Host, reading: Reader) -> None:
    base = report(status(reading.job))
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
    cut = put(
        base, ("facts", "gpus", 0, "processes"), base["facts"]["gpus"][0]["processes"] * 100_000
    )  # a machine may truly have many
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


def test_an_honest_host_is_read(panel: Panel, reading: Reader) -> None:
    reading(True)
    assert panel.says("report", report(status(reading.job))) == 200
    reading(True)


@pytest.mark.parametrize("offset", ["-1", "9" * 30, "x", "", "1e3", "\0", "٣"])
def test_offsets_of_logs(
    agent: Client, host: Host, reading: Reader, offset: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("panel.fleet.link.MAX_WAIT_S", 0.05)  # nothing comes, however long it waits
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


def test_one_host_neither_sees_nor_moves_anothers_jobs(agent: Client, host: Host, reading: Reader) -> None:
    other = builders.make_host("quay")
    theirs = builders.make_copy(other, "Their-Model")
    row = builders.make_deployment(theirs, "theirs", state="ready")
    run = builders.make_run(row, theirs)
    before = Job.objects.filter(pk=run.job_id).values().get()
    assert str(run.job_id) not in agent.get("/agent/v1/work").content.decode()
    for path in (f"jobs/{run.job_id}/log?offset=0", f"jobs/{run.job_id}/result"):
        assert post(agent, f"/agent/v1/{path}", {"items": []}) == 404
    assert post(agent, "/agent/v1/report", report(status(str(run.job_id)))) == 200
    assert Job.objects.filter(pk=run.job_id).values().get() == before


def test_an_agent_cannot_lead_the_panel_elsewhere(agent: Client, host: Host, reading: Reader, settings: Any) -> None:
    """Its door is an address that nobody may mean: the panel's own machine, a cloud's metadata, a name with a path."""
    settings.BERTH_PUBLIC_URL = "https://berth.example.org"
    for address in ("127.0.0.1", "localhost", "::1", "169.254.169.254", "0.0.0.0", "fd00:ec2::254", "[::1]", "x/y", "a b",
                    "2130706433", "0x7f000001", "127.1", "::ffff:127.0.0.1", "224.0.0.1", "x@y", ""):  # fmt: skip
        assert post(agent, "/agent/v1/report", put(report(status(reading.job)), ("door", "address"), address)) == 200
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
        assert post(agent, "/agent/v1/report", put(report(status(reading.job)), ("door", "address"), address)) == 200
        assert bool(Host.objects.get(pk=host.pk).door.get("address")) == taken, address
