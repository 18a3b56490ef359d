"""Downloads and deletions as jobs of a host: progress, stop and going on, secrets, what a host refuses."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from panel.fleet import wire
from panel.fleet.agent import download_order, guard
from panel.fleet.agent.download_part import MAP, PART
from tests.agent.conftest import Host, Table, marked
from tests.agent.downloads import MIB, REPO, noise, order
from tests.fakes.hub import Fault, Hub
from tests.models_catalog.builders import gguf_layout, sparse
from tests.models_catalog.zoo import gguf_models as zoo
from tests.waiting import until

SECRET = "hf_s3cr3t-t0ken"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    file = sparse(tmp_path / "made.gguf", gguf_layout(zoo.keys("llama", tokens=50, **zoo.SMALL), zoo.TINY))
    with Hub() as made:
        made.add(REPO, {"tiny-Q8_0.gguf": file, "big.bin": noise(30 * MIB), "README.md": b"# Tiny\n"})
        yield made


@pytest.fixture
def cache(host: Host) -> Path:
    settings = {"model_roots": [str(host.models)]}
    (host.dir / "agent.json").write_text(json.dumps(settings))
    (host.dir / "agent.json").chmod(0o600)
    return host.models


def result(table: Table, job_id: str) -> wire.JobResult:
    return dict(table.jobs.results_due())[job_id]


@pytest.mark.slow
def test_a_download_job_ends_with_a_model_and_its_token_is_nowhere(
    host: Host, table: Table, hub: Hub, cache: Path
) -> None:
    hub.tokens[SECRET] = "ann"
    hub.repos[REPO].gated, hub.repos[REPO].allowed = "manual", {SECRET}
    hub.chance = lambda ask: Fault("slow", rate=3 * MIB)
    task = order(hub, cache, connections=2, secret_env={"HF_TOKEN": SECRET})
    table.order("job", task)

    def told() -> wire.Progress | None:
        table.jobs.tick()
        status = table.status("job")
        found = status.progress if status else None
        return found if found and found.phase == "downloading" and found.done and found.rate else None

    progress = until(told, 30, why="for progress")
    assert 0 < progress.done < progress.total and progress.total > 30 * MIB and progress.passed == ["checking"]
    for pid in marked("job"):
        assert SECRET.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
    hub.chance = lambda ask: None
    ended = table.until("job", "ended", timeout_s=60)
    assert ended.exit_code == 0 and ended.progress is not None and ended.progress.phase == "placing"
    assert ended.progress.passed == ["checking", "downloading", "verifying"]
    (item,) = result(table, "job").items
    found = wire.ScannedModel.model_validate(item)
    snapshot = cache / "models--acme--tiny" / "snapshots" / hub.repos[REPO].commit
    assert (found.path, found.format, found.root) == (str(snapshot / "tiny-Q8_0.gguf"), "gguf", str(cache))
    assert found.facts["origin"] == REPO and not found.problems
    for path in [*host.dir.rglob("*.json"), *host.dir.rglob("log")]:
        assert SECRET not in path.read_text(errors="replace"), path
    assert "signature" not in (host.job_folder("job") / "log").read_text()
    table.order("gone", wire.DeleteTask(paths=[found.path]))
    table.until("gone", "ended", timeout_s=30)
    (deleted,) = result(table, "gone").items
    assert deleted["refusal"] is None and deleted["freed_bytes"] > 0 and not (snapshot / "tiny-Q8_0.gguf").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_stopped_download_is_gone_on_with_by_the_next(
    host: Host, table: Table, hub: Hub, cache: Path, how: str
) -> None:
    hub.send_buffer = 1 << 16
    hub.chance = lambda ask: Fault("slow", rate=6 * MIB)
    table.order("job", order(hub, cache, connections=2))
    until(lambda: hub.sent > 8 * MIB, 30, why="for some bytes")
    if how == "stop":
        table.stop("job", grace_s=20)
        ended = table.until("job", "ended", timeout_s=30)
        refusal = result(table, "job").refusal
        assert ended.stop_asked and not ended.killed and refusal is not None and refusal.code == "stopped"
    else:
        for pid in marked("job"):
            os.kill(pid, signal.SIGKILL)
        table.until("job", "ended")
    assert not marked("job") and list(cache.rglob(f"*{PART}")) and not list(cache.rglob("snapshots/*/*"))
    hub.chance, before = lambda ask: None, hub.sent
    table.order("again", order(hub, cache))
    assert table.until("again", "ended", timeout_s=60).exit_code == 0
    total = sum(file.size for file in hub.repos[REPO].files.values())
    assert hub.sent - before <= total - 8 * MIB + 4 * MIB  # what was on its way is lost, what was there is not
    assert result(table, "again").refusal is None and not list(cache.rglob(f"*{PART}")) + list(cache.rglob(f"*{MAP}"))


@pytest.mark.slow
def test_a_failed_download_says_why(host: Host, table: Table, hub: Hub, cache: Path) -> None:
    hub.repos[REPO].gated = "manual"
    table.order("job", order(hub, cache))
    assert table.until("job", "ended", timeout_s=60).exit_code == 0
    refusal = result(table, "job").refusal
    assert refusal is not None and refusal.code == "download.gated" and refusal.params["token"] is False
    assert "download.gated" in (host.job_folder("job") / "log").read_text()


# --- what a host refuses ----------------------------------------------------------------------------------------------


def refused(task: wire.DownloadTask, root: Path, **more: Any) -> tuple[str, dict[str, Any]]:
    with pytest.raises(guard.Refused) as caught:
        download_order.check(task, **{"allowed": True, "endpoints": None, "roots": [root], **more})
    return caught.value.refusal.code, caught.value.refusal.params


FILE = {"path": "a.json", "size": 1, "etag": "0" * 40}


def task(root: Path, **more: Any) -> wire.DownloadTask:
    fields = {"endpoint": "https://hub.example", "repo": REPO, "revision": "main", "files": [FILE]}
    return wire.DownloadTask(**{**fields, "folder": str(root), **more})


def test_a_good_order_is_taken(tmp_path: Path) -> None:
    for more in (
        {},
        {"revision": "refs/pr/1", "ref": "main"},
        {"layout": "folder", "name": "acme/tiny"},
        {"source": "modelscope", "layout": "folder", "name": "tiny", "secret_env": {"MODELSCOPE_API_TOKEN": "t"}},
        {"secret_env": {"HF_TOKEN": "hf_x", "BERTH_DOWNLOAD_PROXY": "http://me:pw@proxy.example:3128"}},
        {"folder": str(tmp_path / "not" / "yet")},
    ):
        download_order.check(task(tmp_path, **more), allowed=True, endpoints=None, roots=[tmp_path])
    allowed = ["https://hub.example/mirror"]
    download_order.check(
        task(tmp_path, endpoint="https://hub.example/mirror/hf"), allowed=True, endpoints=allowed, roots=[tmp_path]
    )


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"endpoint": "ftp://hub.example"}, "order_invalid", "endpoint"),
        ({"endpoint": "https://me:pw@hub.example"}, "order_invalid", "endpoint"),
        ({"endpoint": "https://hub.example/?x=1"}, "order_invalid", "endpoint"),
        ({"endpoint": "https://hub.example/../api"}, "order_invalid", "endpoint"),
        ({"endpoint": "file:///etc"}, "order_invalid", "endpoint"),
        ({"repo": "../../etc"}, "order_invalid", "repo"),
        ({"repo": "a/b/c"}, "order_invalid", "repo"),
        ({"revision": "../main"}, "order_invalid", "revision"),
        ({"revision": ""}, "order_invalid", "revision"),
        ({"ref": "a//b"}, "order_invalid", "ref"),
        ({"layout": "folder", "name": ""}, "order_invalid", "name"),
        ({"layout": "folder", "name": "../x"}, "order_invalid", "name"),
        ({"layout": "folder", "name": ".ssh"}, "order_invalid", "name"),
        ({"name": "x"}, "order_invalid", "layout"),
        ({"source": "modelscope"}, "order_invalid", "layout"),
        ({"proxy": "http://me:pw@proxy.example"}, "order_invalid", "proxy"),
        ({"files": [FILE, FILE]}, "order_invalid", "files"),
        ({"files": [{**FILE, "etag": ""}]}, "order_invalid", "sha256"),
        ({"files": [{**FILE, "etag": "../../../x"}]}, "order_invalid", "etag"),
        ({"files": [{**FILE, "sha256": "A" * 64}]}, "order_invalid", "sha256"),
        ({"secret_env": {"HF_TOKEN": "a\r\nX-Evil: 1"}}, "order_invalid", "HF_TOKEN"),
        ({"secret_env": {"LD_PRELOAD": "x"}}, "environment_not_allowed", None),
        ({"endpoint": "http://hub.example", "secret_env": {"HF_TOKEN": "hf_x"}}, "plain_http", None),
        ({"folder": "/etc"}, "path_not_allowed", None),
        ({"folder": "models"}, "path_not_allowed", None),
        *[({"files": [{**FILE, "path": path}]}, "path_not_allowed", None)
          for path in ("/etc/passwd", "../x", "a/../../x", "a//b", "a\\b", "", "x\0y", ".berth-download/x", "a\nb")],
    ],
)  # fmt: skip
def test_a_bad_order_is_refused(tmp_path: Path, change: dict[str, Any], code: str, field: str | None) -> None:
    found, params = refused(task(tmp_path, **change), tmp_path)
    assert found.removeprefix("download.") == code
    assert field is None or params == {"field": field}


def test_the_owner_of_the_host_has_the_last_word(tmp_path: Path) -> None:
    assert refused(task(tmp_path), tmp_path, allowed=False)[0] == "download.forbidden"
    only = ["https://mirror.example"]
    assert refused(task(tmp_path), tmp_path, endpoints=only)[0] == "download.endpoint_not_allowed"
    proxy = task(tmp_path, endpoint=only[0], proxy="http://proxy.example")
    assert refused(proxy, tmp_path, endpoints=only)[0] == "download.endpoint_not_allowed"
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "out").symlink_to("/etc")
    assert refused(task(tmp_path / "models" / "out"), tmp_path / "models")[0] == "download.path_not_allowed"


def test_an_order_that_the_host_refuses_starts_nothing(host: Host, table: Table, cache: Path) -> None:
    table.order("bad", task(Path("/etc")))
    bad = table.until("bad", "refused")
    assert bad.refusal is not None and bad.refusal.code == "download.path_not_allowed" and not marked("bad")
