"""Many rows that look like real ones: one deployment that really ran is copied inside the database."""

from typing import Any

from django.db import connection, models

DEPLOYMENTS, RUNS_EACH, EVENTS = 1000, 20, 1_000_000
FAILED = '{"code": "mem.kv_none", "params": {}}'
HOSTS, GPUS_EACH, MODELS, DOWNLOADS, PEOPLE = 20, 8, 1000, 1000, 50


def fill(deployment: Any) -> dict[str, int]:
    """Copy `deployment`, its newest run and what belongs to it; returns {table: rows}."""
    from deployments.models import Deployment, Failure, Run, Transition
    from models_catalog.models import CatalogModel, Download
    from panel.accounts.models import User
    from panel.audit.models import Event
    from panel.fleet.models import Gpu, Host, Job

    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = 0")
        cursor.execute("SET synchronous_commit = off")
    _fleet(deployment.run.host_id, deployment.run.runtime_id)
    _models(deployment.run.copy.artifact)
    _downloads(deployment.run.host_id)
    _deployments(deployment)
    _failures()
    _people()
    _events(deployment)
    with connection.cursor() as cursor:
        # What autovacuum would do a minute later, in the middle of the figures; a test's transaction cannot.
        cursor.execute("ANALYZE" if connection.in_atomic_block else "VACUUM ANALYZE")
        cursor.execute("RESET statement_timeout")
    connection.close()
    kinds = (Deployment, Run, Failure, Job, Transition, Event, Host, Gpu, CatalogModel, Download, User)
    return {kind.__name__: kind._default_manager.count() for kind in kinds}


def copy(model: type[models.Model], where: str, source: str, **values: str) -> None:
    """INSERT … SELECT from the rows `where` of a model, joined with `source` (SQL with the columns used in `values`).

    A primary key that counts by itself is left to the database; `values` are SQL by column.
    """
    columns = [f.column for f in model._meta.concrete_fields if not (f.primary_key and isinstance(f, models.AutoField))]
    table = model._meta.db_table
    chosen = ", ".join(values.get(name, f't."{name}"') for name in columns)
    names = ", ".join(f'"{name}"' for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({names}) SELECT {chosen} FROM {table} t CROSS JOIN {source} WHERE {where}"
        )


def run(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def series(last: int) -> str:
    return f"generate_series(1, {last}) n"


def _fleet(host: int, runtime: int) -> None:
    from panel.fleet.models import Gpu, Host, Runtime

    new = {"name": "'gpu-' || lpad(n::text, 3, '0')", "is_local": "false", "token_hash": "md5(n::text)"}
    copy(Host, f"t.id = {host}", series(HOSTS), **new, ram_reserved_mib="0", door_keys="NULL", last_seen_at="NULL")
    run(
        "INSERT INTO fleet_gpu (host_id, uuid, index, name, total_mib, used_mib, reserved_mib, measured, present,"
        " schedulable, measured_at) SELECT h.id, 'GPU-' || h.id || '-' || g, g, 'NVIDIA H200', 143771, 90000, 0,"
        f" '{{}}', true, true, now() FROM fleet_host h, generate_series(0, {GPUS_EACH - 1}) g WHERE NOT h.is_local"
    )
    others = f"(SELECT id AS other FROM {Host._meta.db_table} WHERE NOT is_local) h"
    copy(Runtime, f"t.id = {runtime}", others, host_id="other")
    assert Gpu.objects.count() == HOSTS * GPUS_EACH


def _models(artifact: Any) -> None:
    from models_catalog.models import Artifact, CatalogModel, Copy

    copy(CatalogModel, f"t.id = {artifact.model_id}", series(MODELS), name="'team/model-' || n")
    others = f"(SELECT id AS other FROM {CatalogModel._meta.db_table} WHERE name LIKE 'team/model-%') m"
    copy(Artifact, f"t.id = {artifact.pk}", others, model_id="other", fingerprint="'copy-' || other")
    others = (
        f"(SELECT id AS other, fingerprint AS named FROM {Artifact._meta.db_table} WHERE fingerprint LIKE 'copy-%') m"
    )
    copy(Copy, f"t.artifact_id = {artifact.pk}", others, artifact_id="other", path="'/models/' || named")


def _downloads(host: int) -> None:
    """Over, all of them: what goes on would be ordered."""
    from django.utils import timezone

    from models_catalog.models import Download

    now = timezone.now()
    states = ("done", "done", "failed", "done", "cancelled")
    Download.objects.bulk_create(
        Download(
            host_id=host, source="huggingface", endpoint="https://huggingface.co", repo=f"team/model-{n}",
            revision="d" * 40, ref="main", label="bfloat16", folder="/models", layout="folder",
            state=states[n % len(states)], tries=1, bytes_total=2 << 30, bytes_done=2 << 30, asked_by="bench",
            queued_at=now, ended_at=now, refusal={"code": "disk_full", "params": {}} if n % 5 == 2 else None,
        )
        for n in range(DOWNLOADS)
    )  # fmt: skip


def _deployments(row: Any) -> None:
    """Two in five answer, two are stopped, one has failed; all are at rest, so that the loop leaves them alone."""
    from deployments.models import Deployment, Revision, Run, Transition
    from panel.fleet.models import Job, JobLog

    states = "(ARRAY['ready', 'stopped', 'ready', 'failed', 'stopped'])[1 + n % 5]"
    copy(
        Deployment,
        f"t.id = {row.pk}",
        series(DEPLOYMENTS - 1),
        name="'chat-' || lpad(n::text, 4, '0')",
        state=states,
        desired=f"CASE WHEN {states} = 'stopped' THEN 'stopped' ELSE 'running' END",
        reason=f"CASE WHEN {states} = 'failed' THEN '{FAILED}' ELSE '{{}}' END::jsonb",
        run_id="NULL",
        revision_id="NULL",
        due_at="NULL",
        claim_token="NULL",
        claim_until="NULL",
        created_at=f"t.created_at - ({DEPLOYMENTS} - n) * interval '1 hour'",
    )
    copies = (
        f"(SELECT id AS d, row_number() OVER (ORDER BY id) AS place FROM deployments_deployment WHERE id <> {row.pk}) o"
    )
    copy(Revision, f"t.id = {row.revision_id}", copies, deployment_id="d")
    run(
        "CREATE TEMP TABLE made AS SELECT d.id AS d, r.id AS r, k AS number, gen_random_uuid() AS run, d.name"
        " FROM deployments_deployment d JOIN deployments_revision r ON r.deployment_id = d.id"
        f" CROSS JOIN generate_series(1, {RUNS_EACH}) k WHERE d.id <> {row.pk}"
    )
    copy(
        Job,
        f"t.id = '{row.run.job_id}'",
        "made",
        id="run",
        open="false",
        state="'ended'",
        created_at=f"t.created_at - ({RUNS_EACH} - number) * interval '1 day'",
    )
    copy(JobLog, f"t.job_id = '{row.run.job_id}'", "made", job_id="run")
    ended = f"number < {RUNS_EACH}"
    copy(
        Run,
        f"t.id = '{row.run_id}'",
        "made",
        id="run",
        job_id="run",
        deployment_id="d",
        revision_id="r",
        number="made.number",
        created_at=f"t.created_at - ({RUNS_EACH} - made.number) * interval '1 day' - d * interval '1 second'",
        ended_at=f"CASE WHEN made.{ended} THEN t.created_at END",
        outcome=f"CASE WHEN made.{ended} THEN 'stopped' ELSE '' END",
    )
    run(
        "UPDATE deployments_deployment d SET revision_id = made.r, run_id = made.run FROM made"
        f" WHERE made.d = d.id AND made.number = {RUNS_EACH}"
    )
    copy(
        Transition,
        f"t.run_id = '{row.run_id}'",
        "made",
        deployment_id="d",
        run_id="run",
    )


def _failures() -> None:
    """As if each start but the newest had failed, in 40 classes; every third was mended by the next one."""
    from deployments.diagnosis.rules import ALL

    codes = ", ".join(f"'{rule.code}'" for rule in ALL[:40])
    some = "abs(hashtext(r.id::text))"
    third = "r.number % 3 = 0"
    change = f"(ARRAY['same', 'max_model_len', 'gpu_memory_utilization'])[1 + {some} % 3]"
    run(
        "INSERT INTO deployments_failure (run_id, deployment_id, at, code, phase, engine, engine_version, host_name,"
        ' model_name, alike, mended_by_id, mended_change, "right")'
        f" SELECT r.id, r.deployment_id, r.created_at, (ARRAY[{codes}])[1 + {some} % 40], 'load', 'vllm',"
        " '0.' || r.number, 'gpu-' || lpad((r.number % 20)::text, 3, '0'), 'team/model-' || r.deployment_id % 1000,"
        f" md5(({some} % 500)::text), CASE WHEN {third} THEN n.id END, CASE WHEN {third} THEN {change} ELSE '' END,"
        " CASE WHEN r.number % 7 = 0 THEN true END FROM deployments_run r JOIN deployments_run n"
        " ON n.deployment_id = r.deployment_id AND n.number = r.number + 1 WHERE r.outcome <> ''"
        " ON CONFLICT DO NOTHING"  # the starts that were ended to measure it have theirs
    )


def _people() -> None:
    from panel.accounts.models import User

    copy(User, "t.username = 'bench'", series(PEOPLE - 1), username="'person-' || n", role="'operator'", password="'!'")


def _events(row: Any) -> None:
    """Acts of the last year by fifty people on a thousand deployments, oldest first, as they would have come."""
    first = f"now() - {EVENTS} * interval '31 seconds'"
    at = f"({first} + n * interval '31 seconds')"
    from panel.audit import months

    run(
        "SELECT audit_make_month(m::date) FROM generate_series(date_trunc('month', now() - interval '13 months'),"
        " date_trunc('month', now()), interval '1 month') m"
    )
    verbs = "(ARRAY['deployment.started', 'run.ready', 'deployment.stopped', 'run.stopped', 'deployment.edited'])"
    run(
        "INSERT INTO audit_event (at, minute, verb, actor, actor_id, address, target_kind, target_id, target, outcome,"
        " count, before, after, facts, story)"
        f" SELECT {at}, date_trunc('minute', {at}), {verbs}[1 + n % 5],"
        " CASE WHEN n % 5 IN (1, 3) THEN 'system' ELSE 'person-' || (n % 49 + 1) END, NULL, '10.0.0.' || n % 250,"
        f" 'deployment', ({row.pk} + n % {DEPLOYMENTS})::text, 'chat-' || lpad((n % {DEPLOYMENTS})::text, 4, '0'),"
        " 'done',"
        ' 1, \'{"desired": "stopped"}\', \'{"desired": "running"}\', \'{}\','
        f" 'deployment:' || ({row.pk} + n % {DEPLOYMENTS}) FROM generate_series(1, {EVENTS}) n"
    )
    months.make_ready()
