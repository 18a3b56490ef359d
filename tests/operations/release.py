"""What a release leaves behind: `python -m tests.operations.release FILE` makes a panel as it is after some days of use.

The file (a .tar.gz) is kept in tests/data/releases, one for each release and made by that release's own code; tests then
bring each of them to the version of today. It holds

    release.json   what a test must know: the secret key, passwords, tokens, which folder stands for which
    dump.sql       the database as INSERTs; folders of the machine that made it are written as @FOLDER@ and @CHECKOUT@
    logs/          the sealed parts of logs, as in the data folder

Everything in it came about through the panel's own services, pages and the agents' line, in every table that they fill.
"""

import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KEY = "the secret key of a fixture, which opens nothing else"
ADMIN, MARIA, VERA = "ada", "maria", "vera"
PASSWORD = "correct horse battery"
FAR = "harbour"  # a second host, whose agent is played
GPU = "GPU-11111111-2222-3333-4444-555555555555"


def main(target: Path) -> None:
    import django

    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()
    from django.conf import settings

    from tests.e2e.stack import running
    from tests.servers import Servers

    settings.SECRET_KEY = KEY
    servers = Servers.start()
    settings.DATABASES["default"].update(servers.database_settings())
    folder = Path(tempfile.mkdtemp(prefix="berth-release-"))
    try:
        from panel.celery import app
        from panel.core.services_urls import redis_urls

        settings.REDIS_URL, settings.CELERY_BROKER_URL = redis_urls(servers.redis_url, settings.BERTH_DATA)
        app.conf.broker_url = settings.CELERY_BROKER_URL
        with running(servers, folder) as stack:
            known = fill(stack)
            pack(stack, servers, known, target)
    finally:
        servers.stop()
        shutil.rmtree(folder, ignore_errors=True)


# --- some days of use -------------------------------------------------------------------------------------------------
def fill(stack: Any) -> dict[str, Any]:
    """People, two hosts, models, deployments in every state that lasts; what a test must know of it."""
    from tests.fakes.make_engine import make_fake_engine, make_fake_gguf, make_fake_model

    make_fake_engine(stack.engines)
    for name, fake in {
        "good": {}, "vectors": {"mode": "embed"}, "scores": {"mode": "score"}, "broken": {"mode": "traceback"},
        "chatty": {"flood_mib": 1},
    }.items():  # fmt: skip
        make_fake_model(stack.models / name, phase_s=0.05, **fake)
    make_fake_gguf(stack.models / "small.gguf")
    stack.start_all()
    stack.scan()
    tokens = people(stack)
    far = FarHost(stack)
    deployments(stack, far)
    return {"key": KEY, "password": PASSWORD, "tokens": tokens, "far_token": far.token}


def people(stack: Any) -> dict[str, str]:
    """The first admin by the one-time link, two more people, sessions, tokens, refusals."""
    import httpx

    from panel.accounts.models import User
    from panel.accounts.services import create_token, first_admin_link, revoke_token

    path = str(first_admin_link()).partition("/first-admin/")[2]
    with httpx.Client(base_url=stack.url, headers={"Sec-Fetch-Mode": "navigate"}) as browser:
        answer = send(browser, f"/first-admin/{path}", name=ADMIN, password=PASSWORD, again=PASSWORD)
        assert answer.status_code in (204, 302), answer.text
    for name, role in ((MARIA, "operator"), (VERA, "viewer")):
        User.objects.create_user(name, password=PASSWORD, role=role)
    with httpx.Client(base_url=stack.url, headers={"Sec-Fetch-Mode": "navigate"}) as browser:
        send(browser, "/login", name=VERA, password="a wrong one, twice")
        send(browser, "/login", name=VERA, password=PASSWORD)
        browser.get("/activity")
    ada, maria = User.objects.get(username=ADMIN), User.objects.get(username=MARIA)
    _row, door = create_token(maria, "notebook", actor=maria)
    _row, api = create_token(ada, "scripts", actor=ada, **api_scope())
    row, _old = create_token(maria, "lost laptop", actor=maria)
    revoke_token(row, actor=ada)
    assert httpx.get(f"{stack.url}/v1/models", headers={"Authorization": f"Bearer {door}"}).status_code == 200
    return {"door": door, "api": api}


def api_scope() -> dict[str, str]:
    """Tokens for the API came after the first release."""
    from panel.accounts.models import Scope

    return {"scope": Scope.API_WRITE} if hasattr(Scope, "API_WRITE") else {}


def send(browser: Any, path: str, **values: str) -> Any:
    """A form as a browser sends it."""
    page = browser.get(path)
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
    assert found, page.text
    return browser.post(path, data={**values, "csrfmiddlewaretoken": found[1]})


def deployments(stack: Any, far: "FarHost") -> None:
    """Running (with a second revision), stopped, failed, deleted, never started, and starting on a GPU elsewhere."""
    from deployments import services
    from deployments.spec import DeploymentSpec
    from panel.accounts.models import User

    maria = User.objects.get(username=MARIA)
    chat = stack.deploy("team-chat", "good", env={"OMP_NUM_THREADS": "2"})
    vectors = stack.deploy("vectors", "vectors", task="embed")
    chatty = stack.deploy("chatty", "chatty")
    broken = stack.deploy("broken", "broken", restart={"policy": "never"})
    gone = stack.deploy("gone", "good")
    stack.wait_for(chat, "ready")
    spec = DeploymentSpec.model_validate({**chat.revision.spec, "options": {"max_model_len": 1024}})
    services.edit(chat, spec=spec, actor=maria)
    values = {"artifact_id": stack.artifact("scores").pk, "device": "cpu", "task": "score"}
    services.create(name="never-started", spec=DeploymentSpec.model_validate(values), actor=maria, start=False)
    for row in (vectors, chatty, gone):
        stack.wait_for(row, "ready", timeout=60)
    for row in (chatty, gone):
        services.stop(row, actor=maria)
        stack.wait_for(row, "stopped")
    services.delete(gone, actor=maria)
    stack.wait_for(broken, "failed", timeout=60)
    far.take(stack, maria)
    from tests.waiting import until

    until(
        lambda: (chat.refresh_from_db(), chat.run.revision.number)[1] == 2, timeout=60, why="the second revision runs"
    )
    stack.wait_for(chat, "ready", timeout=60)


class FarHost:
    """A host with a GPU that joined by a code; its agent's words are spoken here."""

    def __init__(self, stack: Any) -> None:
        from datetime import timedelta

        from django.utils import timezone

        from panel.fleet.models import Host, Job, JoinCode
        from panel.fleet.services import digest
        from tests.waiting import until

        self.stack = stack
        until_later = timezone.now() + timedelta(minutes=15)
        JoinCode.objects.create(code_hash=digest("FIXT-URES-CODE"), host_name=FAR, expires_at=until_later)
        request = {"code": "FIXT-URES-CODE", "hostname": FAR, "agent_version": "0.1.0"}
        self.token = self.call("join", **request).json()["token"]
        self.host = Host.objects.get(name=FAR)
        until(lambda: Job.objects.filter(host=self.host, open=True).count() == 2, why="the first look was ordered")
        self.answer_looks()

    def call(self, path: str, **message: Any) -> Any:
        import httpx

        token = {"Authorization": f"Bearer {self.token}"} if hasattr(self, "token") else {}
        answer = httpx.post(f"{self.stack.url}/agent/v1/{path}", json=message, headers=token, timeout=20)
        assert answer.status_code in (200, 204), answer.text
        return answer

    def report(self, *jobs: dict[str, Any]) -> None:
        from panel.fleet.models import Host

        local = Host.objects.get(is_local=True)
        gpu = {"index": 0, "uuid": GPU, "name": "NVIDIA L40S", "total_mib": 46_068, "used_mib": 600}
        facts = {**local.facts, "hostname": FAR, "gpus": [gpu], "model_roots": ["/models"], "gpu_driver": "580.82"}
        rev = Host.objects.get(pk=self.host.pk).work_rev
        self.call("report", agent_version="0.1.0", sent_at=time.time(), rev=rev, facts=facts, jobs=list(jobs))

    def answer_looks(self) -> None:
        """What the local host found, as if it lay here."""
        from panel.fleet.models import Host, Job

        local = Host.objects.get(is_local=True)
        for job in Job.objects.filter(host=self.host):
            found = Job.objects.filter(host=local, kind=job.kind).exclude(result=None).latest("created_at").result
            text = json.dumps(found["items"]).replace(str(self.stack.models), "/models")
            text = text.replace(str(self.stack.engines), "/opt/engines/bin").replace(
                '"device": "cpu"', '"device": "cuda"'
            )
            ended = {"id": str(job.pk), "kind": job.kind, "state": "ended", "exit_code": 0, "started_at": time.time()}
            self.report({**ended, "ended_at": time.time()})
            self.call(f"jobs/{job.pk}/result", items=json.loads(text))
        self.report()

    def take(self, stack: Any, actor: Any) -> None:
        """A deployment that reads its weights on the GPU for as long as the fixture lasts."""
        from deployments import services
        from deployments.spec import DeploymentSpec
        from panel.fleet.models import Job
        from tests.waiting import until

        artifact = stack.artifact("good").pk
        spec = DeploymentSpec.model_validate({"artifact_id": artifact, "device": "gpu", "host_id": self.host.pk})
        row = services.create(name="on-a-gpu", spec=spec, actor=actor)
        self.report()
        job = until(Job.objects.filter(host=self.host, kind="engine").first, timeout=30, why=f"ordered\n{stack.logs()}")
        text = b"INFO 11-30 14:02:09 [api_server.py:1894] vLLM API server version 0.32.0\n"
        argv = ["18100" if word == "{port}" else word for word in job.order["argv"]]
        self.report({
            "id": str(job.pk), "kind": "engine", "state": "running", "pid": 4711, "port": 18100, "argv": argv,
            "started_at": time.time(), "processes": 3, "rss_mib": 3100, "log_size": len(text),
        })  # fmt: skip
        import httpx

        where = f"{stack.url}/agent/v1/jobs/{job.pk}/log?offset=0"
        kept = httpx.post(where, content=text, headers={"Authorization": f"Bearer {self.token}"})
        assert kept.status_code == 200, kept.text
        stack.wait_for(row, "starting")


# --- into one file ----------------------------------------------------------------------------------------------------
def pack(stack: Any, servers: Any, known: dict[str, Any], target: Path) -> None:
    from django.conf import settings

    from panel.embedded import postgres_folders

    for name in ("worker", "web", "agent"):  # engines go on, as they do when a panel is upgraded
        stack.kill(name, 15)
    url = servers.url_of(str(settings.DATABASES["default"]["NAME"]))
    tool = max(postgres_folders().items())[1] / "pg_dump"
    argv = [tool, "--inserts", "--rows-per-insert=50", "--no-owner", "--no-privileges", f"--dbname={url}"]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    # psql's own commands are not SQL; a name of the machine has no business in the repository
    text = "\n".join(line for line in text.splitlines() if not line.startswith("\\"))
    for real, word in {str(stack.folder): "@FOLDER@", str(ROOT): "@CHECKOUT@", sys.prefix: "@VENV@"}.items():
        text = text.replace(real, word)
    text = re.sub(rf"\b{re.escape(socket.gethostname())}\b", "quay", text)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz") as archive:
        for name, content in (("release.json", json.dumps(known, indent=1)), ("dump.sql", text)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content.encode())
            archive.addfile(entry, io.BytesIO(content.encode()))
        logs = stack.data / "logs"
        for path in sorted(logs.rglob("*")) if logs.exists() else []:
            if path.is_file():
                archive.add(path, f"logs/{path.relative_to(logs)}", filter=nobodys)
    sys.stdout.write(f"{target}: {target.stat().st_size / 2**10:.0f} KiB\n")


def nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    main(Path(sys.argv[1]))
