"""A job that is no engine, as a process of its own: `python -m panel.fleet.agent.task KIND AGENT_DIR REQUEST`.

It runs under a shim like an engine, reads `REQUEST` (JSON), and writes `result.json` (a wire.JobResult) beside it.
Whatever a broken model file or engine does to this process, the agent goes on.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from panel.fleet.agent import (
    config,
    convert,
    delete,
    discover,
    download_job,
    engine_check,
    files,
    install_job,
    loglines,
    package,
    sidecar_job,
)
from panel.fleet.agent.journal import write_json
from panel.fleet.wire import (
    CheckTask,
    ConvertTask,
    DeleteTask,
    DownloadTask,
    InstallTask,
    JobResult,
    PackageTask,
    Refusal,
    RemoveTask,
    RuntimesTask,
    ScanTask,
    SidecarTask,
)

log = logging.getLogger("task")

MAX_ITEMS = 20_000
MAX_RESULT = 12 << 20  # bytes; the panel takes 16 MiB


def scan(settings: config.Config, task: ScanTask) -> JobResult:
    """Models below this host's own folders and the wanted ones; one item of format "folder" per folder, refused too."""
    from models_catalog.inspect.scan import scan_roots

    known = settings.folder / "models.sqlite3"  # what did not change since is not opened again
    wanted, refusals = files.split_roots(task.roots, settings.model_roots)
    # Own folders that do not exist (any more) are scanned too: their item tells the panel that their models are gone.
    roots = list(dict.fromkeys([*settings.model_roots, *wanted]))
    items = [_refused_folder(refusal) for refusal in refusals]
    found: list[dict[str, Any]] = []
    folders: list[dict[str, Any]] = []
    for item in scan_roots(roots, known=known):
        (folders if item["format"] == "folder" else found).append(item)
    kept = _bounded(found)
    if len(kept) < len(found):  # what is left out is not gone
        left_out = {"code": "too_many_entries", "params": {}}
        folders = [{**item, "problems": [left_out, *item["problems"]]} for item in folders]
    items += kept + folders
    log.info("models found: %d", sum(item["format"] != "folder" for item in items))
    return JobResult(items=items)


def _refused_folder(refusal: Refusal) -> dict[str, Any]:
    path = str(refusal.params["path"])
    log.warning("%s: %s", refusal.code, path)
    item = {"path": path, "root": path, "format": "folder", "name": Path(path).name, "size_bytes": 0, "files": 0}
    return {**item, "facts": {}, "problems": [refusal.model_dump()]}


def runtimes(settings: config.Config, task: RuntimesTask) -> JobResult:
    """Engines of this host, each asked for its version and its parser's flags. Broken ones are listed with a reason."""
    asker = discover.Asker(settings)
    found, wrong = discover.look(task.folders)
    wrong += files.named_refusals(settings, task.executables)
    items = [
        asker.ask(path, origin) for path, origin in files.candidates(settings, task.executables, os.environ, found)
    ]
    asked = {item["executable"] for item in items}
    for text, refusal in wrong:
        log.warning("%s: %s", refusal.code, text)
        if text not in asked:
            origin = "folder" if text not in task.executables else "named"
            known = {"engine": files.engine_of(text), "executable": text, "origin": origin}
            items.append(discover.runtime({**known, "refusal": refusal}))
    return JobResult(items=_bounded(items))


def _bounded(items: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    size = 0
    for item in items:
        size += len(json.dumps(item))
        if len(kept) >= MAX_ITEMS or size > MAX_RESULT:
            log.warning("the list is too long, the rest is left out")
            break
        kept.append(item)
    return kept


def main(argv: list[str]) -> int:
    loglines.set_up_job()
    kind, folder, request = argv
    settings = config.load(Path(folder), with_panel=False)
    raw = json.loads(Path(request).read_text())
    kinds: dict[str, Callable[[], JobResult]] = {
        "scan": lambda: scan(settings, ScanTask.model_validate(raw)),
        "runtimes": lambda: runtimes(settings, RuntimesTask.model_validate(raw)),
        "install": lambda: install_job.install(settings, InstallTask.model_validate(raw), Path(request).parent),
        "download": lambda: download_job.download(settings, DownloadTask.model_validate(raw), Path(request).parent),
        "delete": lambda: delete.run(settings, DeleteTask.model_validate(raw)),
        "remove": lambda: install_job.remove(settings, RemoveTask.model_validate(raw)),
        "package": lambda: package.add(settings, PackageTask.model_validate(raw), Path(request).parent),
        "sidecar": lambda: sidecar_job.describe(settings, SidecarTask.model_validate(raw), Path(request).parent),
        "check": lambda: engine_check.check(settings, CheckTask.model_validate(raw), Path(request).parent),
        "convert": lambda: convert.convert(settings, ConvertTask.model_validate(raw), Path(request).parent),
    }
    try:
        result = kinds[kind]()
    except ImportError as exc:  # an agent installed without its optional parts
        log.error("%s", exc)
        result = JobResult(refusal=Refusal(code="not_supported_here", params={"kind": kind}))
    except KeyboardInterrupt:  # stopped; what was half made is gone, but for a download's parts
        log.info("stopped")
        return 130
    write_json(Path(request).with_name("result.json"), result.model_dump(mode="json"), durable=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
