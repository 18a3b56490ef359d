"""The number of queries of a list does not grow with its rows, and 1,000 rows are nothing special."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from deployments.models import Deployment, Revision, Run
from models_catalog.models import Artifact, CatalogModel, Copy
from panel.accounts import links
from panel.accounts.models import ApiToken, Secret, User
from panel.audit.models import Event
from panel.fleet.models import Gpu, Host, Job, JobLog, Runtime, RuntimeInstall
from tests.api.conftest import person, program

pytestmark = pytest.mark.django_db
LISTS = [
    "deployments",
    "hosts",
    "runtimes",
    "runtimes/installs",
    "models",
    "events",
    "tokens",
    "secrets",
    "users",
    "users/invitations",
]
MANY = 1000


def fill(world: dict[str, Any]) -> None:
    """A thousand of everything, with what hangs on it."""
    now, copy, row, run = timezone.now(), world["copy"], world["row"], world["run"]
    hosts = Host.objects.bulk_create(
        Host(name=f"h{n}", token_hash=f"h{n}", last_seen_at=now, facts=world["host"].facts) for n in range(MANY)
    )
    Gpu.objects.bulk_create(Gpu(host=host, uuid="GPU-0", index=0, name="L40S", total_mib=46_068) for host in hosts)
    runtimes = Runtime.objects.bulk_create(
        Runtime(host=host, engine="vllm", executable="/opt/bin/vllm", version="0.32.0") for host in hosts
    )
    RuntimeInstall.objects.bulk_create(
        RuntimeInstall(host=host, variant="cpu", name="x", state="done", runtime=runtime)
        for host, runtime in zip(hosts, runtimes, strict=True)
    )
    models = CatalogModel.objects.bulk_create(CatalogModel(name=f"m{n}") for n in range(MANY))
    artifacts = Artifact.objects.bulk_create(
        Artifact(model=model, format="hf", label="bf16", fingerprint=model.name, facts=copy.artifact.facts)
        for model in models
    )
    Copy.objects.bulk_create(
        Copy(artifact=artifact, host=host, path=f"/models/{artifact.fingerprint}")
        for artifact, host in zip(artifacts, hosts, strict=True)
    )
    made = Deployment.objects.bulk_create(
        Deployment(name=f"d{n}", state="starting", desired="running") for n in range(MANY)
    )
    revisions = Revision.objects.bulk_create(
        Revision(deployment=one, number=1, spec={**row.revision.spec, "artifact_id": artifact.pk}, created_by="ada")
        for one, artifact in zip(made, artifacts, strict=True)
    )
    jobs = Job.objects.bulk_create(
        Job(host=host, kind="engine", state="running", status=run.job.status) for host in hosts
    )
    JobLog.objects.bulk_create(JobLog(job=job) for job in jobs)
    runs = Run.objects.bulk_create(
        Run(
            deployment=one,
            revision=revision,
            number=1,
            host=host,
            job=job,
            started_by="ada",
            phases=run.phases,
            host_name=host.name,
        )
        for one, revision, host, job in zip(made, revisions, hosts, jobs, strict=True)
    )
    for one, revision, its in zip(made, revisions, runs, strict=True):
        one.revision, one.run = revision, its
    Deployment.objects.bulk_update(made, ["revision", "run"], batch_size=500)
    jobs = Job.objects.bulk_create(
        Job(host=world["host"], kind="engine", state="ended", status={}) for _ in range(MANY)
    )
    JobLog.objects.bulk_create(JobLog(job=job) for job in jobs)
    Run.objects.bulk_create(
        Run(
            deployment=row,
            revision=row.revision,
            number=n,
            host=world["host"],
            job=job,
            started_by="ada",
            phases=run.phases,
        )
        for n, job in enumerate(jobs, 2)
    )
    Event.objects.bulk_create(Event(verb="deployment.started", actor="ada", target=f"d{n}") for n in range(MANY))
    User.objects.bulk_create(User(username=f"u{n}", role="viewer") for n in range(MANY))
    Secret.objects.bulk_create(Secret(name=f"s{n}", value=b"", given_by="ada") for n in range(MANY))
    ApiToken.objects.bulk_create(
        ApiToken(user=person("admin"), name="x", token_hash=f"t{n}", revoked_at=now) for n in range(MANY)
    )
    for n in range(20):
        links.invite(label=f"i{n}", role="viewer", actor=person("admin"))


def queries(client: Client, where: str) -> tuple[int, int]:
    """How many statements a list takes, and how many rows it gave."""
    with CaptureQueriesContext(
        connection,
    ) as found:
        answer = client.get(f"/api/v1/{where}")
    assert answer.status_code == 200, answer.content[:300]
    return len(found), len(answer.json()["items"])


def test_the_same_number_of_queries_for_two_rows_and_for_two_hundred(places: Any, world: dict[str, Any]) -> None:
    client = program(person("admin"))
    lists = [*LISTS, f"deployments/{world['row'].pk}/runs"]
    client.get("/api/v1/hosts")  # what is asked once in a process is asked before
    few = {name: queries(client, f"{name}?limit=200") for name in lists}
    assert all(rows >= 1 for _count, rows in few.values()), few
    fill(world)
    for name in lists:
        count, rows = queries(client, f"{name}?limit=200")
        assert rows == (200 if name != "users/invitations" else 21), name
        assert count <= few[name][0] + 1, (name, few[name], count)  # one more: names of what only now is there
        assert count <= 15, name
    whole = queries(client, "deployments?q=d1&state=starting&host=h100&limit=200")
    assert whole[1] == 1 and whole[0] <= 6
