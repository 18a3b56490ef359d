from django.db import migrations

# What failed before there were such rows, from the records of the runs: one small row each. Without the key of the
# error's words, and without what the next start changed, unless it changed nothing.
FILL = """
INSERT INTO deployments_failure (run_id, deployment_id, at, code, phase, engine, engine_version, host_name, model_name,
                                 mended_by_id, mended_change)
SELECT r.id, r.deployment_id, COALESCE(r.ended_at, r.created_at),
       CASE WHEN r.reason #>> '{params,cause}' IS NOT NULL THEN LEFT(r.reason #>> '{params,cause}', 80)
            WHEN r.reason ->> 'code' IN ('exit.code', 'exit.signal', 'exit.zero', 'exit.unknown') THEN ''
            ELSE LEFT(COALESCE(r.reason ->> 'code', ''), 80) END,
       LEFT(COALESCE(r.reason #>> '{params,phase}', ''), 20), COALESCE(t.engine, ''), r.engine_version, r.host_name,
       r.model_name, n.id, CASE WHEN n.revision_id = r.revision_id THEN 'same' ELSE '' END
FROM deployments_run r
LEFT JOIN fleet_runtime t ON t.id = r.runtime_id
LEFT JOIN deployments_run n
       ON n.deployment_id = r.deployment_id AND n.number = r.number + 1 AND n.ready_at IS NOT NULL
WHERE r.outcome = 'failed'
ORDER BY r.ended_at
ON CONFLICT DO NOTHING
"""


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0010_failures"),
    ]

    operations = [
        migrations.RunSQL(FILL, migrations.RunSQL.noop),
    ]
