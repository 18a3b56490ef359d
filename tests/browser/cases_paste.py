"""The box for a pasted command, and a deployment as commands to be copied."""

from tests.browser.cases import case
from tests.browser.deployment_rows import cpu_shelf, gpu_deployment, start
from tests.deployments import builders


@case("deploy-paste", role="operator")
def deploy_paste() -> str:
    return "/deployments/paste"


@case("deployment-export")
def deployment_export() -> str:
    row, copy = gpu_deployment("ready")
    builders.ready(row, start(row, copy))
    return f"/deployments/{row.pk}/export"


@case("deployment-export-unknown", role="viewer")
def deployment_export_unknown() -> str:
    copy = cpu_shelf()
    row = builders.make_deployment(copy, "support-chat")
    row.revision.spec = {**row.revision.spec, "device": "gpu", "gpu_count": 8}
    row.revision.save()
    return f"/deployments/{row.pk}/export"
