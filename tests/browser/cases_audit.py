"""The record's pages: one deployment's story, with the export that admins have."""

from panel import audit
from panel.accounts.actor import Actor
from tests.browser.cases import case

MEI = Actor(name="mei.chen", id=31, address="10.0.4.37", role="operator", via="browser")


@case("activity-story")
def activity_story() -> str:
    chat = ("deployment", 12, "support-chat")
    audit.record("deployment.created", chat, actor=MEI, after={"name": "support-chat"})
    audit.record("deployment.started", chat, actor=MEI, revision=1)
    run = ("run", "7" * 32, "support-chat")
    audit.record("run.failed", run, actor=None, outcome="failed", story="deployment:12", reason="mem.kv_lt_len")
    audit.record(
        "deployment.fixed", chat, actor=MEI, revision=2, fix="fix.context_down", params={"to": 8192},
        before={"options.max_model_len": 32768, "restart.policy": "never", "device": "auto"},
        after={"options.max_model_len": 8192, "restart.policy": "on_failure", "device": "gpu"}, **{"class": "mem.kv_lt_len"},
    )  # fmt: skip
    install = ("runtimeinstall", 4, "vLLM 0.99")
    why = {"code": "install.no_such_version", "params": {"package": "vllm==0.99"}}
    audit.record("runtime.install_failed", install, actor=None, story="deployment:12", host="quay", **why)
    audit.record("deployment.edited", chat, actor=MEI, before={"max_model_len": 32768}, after={"max_model_len": 8192})
    audit.record("run.ready", run, actor=None, story="deployment:12")
    audit.record("deployment.started", ("deployment", 13, "another"), actor=MEI)
    audit.record("audit.exported", "CSV", actor=MEI, kind="runs")
    return "/activity?on=deployment:12&since=2026-01-01&until=2099-12-31"
