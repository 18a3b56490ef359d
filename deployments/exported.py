"""A deployment as a command, a compose file or a systemd unit, from its rows. Reads only; secrets are never in it."""

from dataclasses import replace
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from deployments import preflight
from deployments.engines.base import EngineRefusal, Launch
from deployments.exporting.forms import FORMS, Exported, Form
from deployments.exporting.forms import export as written
from deployments.models import Deployment, Run
from deployments.spec import DeploymentSpec
from deployments.wording import words
from models_catalog.models import Copy
from panel.core.errors import Conflict
from panel.core.mask import mask
from panel.fleet.models import Host, Runtime

ENDINGS: dict[Form, str] = {"command": "sh", "compose": "yaml", "systemd": "service"}


def export(row: Deployment, form: Form) -> str:
    """One form of it. Raises Conflict where nobody can say now how it would run."""
    return written(_of(row), form)


def exports(row: Deployment) -> dict[Form, str]:
    """All forms of it. Raises Conflict."""
    what = _of(row)
    return {form: written(what, form) for form in FORMS}


def _of(row: Deployment) -> Exported:
    """As it runs or ran with these settings; else as it would start now."""
    assert row.revision is not None
    spec = DeploymentSpec.model_validate(row.revision.spec)
    launch, host, runtime, copy = _ran(row, spec) or _would_run(row, spec)
    title = _("%(name)s, settings %(n)s: vLLM %(version)s on %(host)s") % {
        "name": row.name,
        "n": row.revision.number,
        "version": runtime.version,
        "host": host.name,
    }
    return Exported(
        name=row.name,
        spec=spec,
        launch=replace(launch, argv=mask(launch.argv), env=mask(launch.env)),
        runtime=preflight.runtime_facts(runtime),
        title=title,
        host=host.name if spec.host_id is not None else "",
        folders=(_folder(copy),),
        secrets=tuple(sorted(launch.secret_env)),
    )


def _ran(row: Deployment, spec: DeploymentSpec) -> tuple[Launch, Host, Runtime, Copy] | None:
    """Its newest start, where that had these settings and everything of it is still known."""
    runs = Run.objects.select_related("host", "runtime", "copy__artifact__model")
    run = runs.filter(deployment=row, revision=row.revision).exclude(placement={}).order_by("-number").first()
    if run is None or run.host is None or run.runtime is None or run.copy is None:
        return None
    needed = {"gpu_uuids", "utilisation", "kv_cache_gib"}
    if not needed <= set(run.placement):  # of a start that was written before these were kept
        return None
    run.detail = False  # that one start wrote more into its log
    try:
        launch = preflight.launch_of(spec, run, name=row.name, api_key=preflight.NO_KEY)
    except EngineRefusal:
        return None
    return launch, run.host, run.runtime, run.copy


def _would_run(row: Deployment, spec: DeploymentSpec) -> tuple[Launch, Host, Runtime, Copy]:
    check = preflight.check(spec, name=row.name)
    if check.launch is None or check.host is None or check.runtime is None or check.copy is None:
        said: Any = words(check.reason)
        text = gettext_lazy("How %(name)s would run cannot be said now: %(why)s")
        hint = gettext_lazy("Once it has been started, its command is known.")
        raise Conflict("export.no_command", text, hint, params={"name": row.name, "why": said.text if said else "—"})
    return check.launch, check.host, check.runtime, check.copy


def _folder(copy: Copy) -> str:
    """What a container must see: the folder that was searched, since links of a cache lead about in it."""
    path, root = copy.path, copy.root
    if root and (path == root or path.startswith(root.rstrip("/") + "/")):
        return root
    return path.rpartition("/")[0] if path.endswith(".gguf") else path
