"""The record becomes a table of months, so that old months can go as a whole; rows and ids are kept.

PostgreSQL parts the table by `minute`, which from now on every row has: the refusals' unique index leads with it, as the
index of a parted table must. The rows are copied once; `story` is filled for what is already there.
"""

import django.utils.timezone
from django.db import migrations, models

# A month gets its own table, and takes over what the table of all other times holds of it. True when it was made.
MAKE_MONTH = """
CREATE FUNCTION audit_make_month(month date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    name text := 'audit_event_' || to_char(month, 'YYYY_MM');
    since timestamptz := date_trunc('month', month::timestamp) AT TIME ZONE 'UTC';
    until timestamptz := (date_trunc('month', month::timestamp) + interval '1 month') AT TIME ZONE 'UTC';
BEGIN
    IF to_regclass(name) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE audit_event INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
    LOCK TABLE audit_event_other IN ACCESS EXCLUSIVE MODE;
    IF EXISTS (SELECT 1 FROM audit_event_other WHERE minute >= since AND minute < until) THEN
        ALTER TABLE audit_event_other DISABLE TRIGGER audit_append_only;
        EXECUTE format('WITH moved AS (DELETE FROM audit_event_other WHERE minute >= $1 AND minute < $2 RETURNING *)'
                       ' INSERT INTO %I SELECT * FROM moved', name) USING since, until;
        ALTER TABLE audit_event_other ENABLE TRIGGER audit_append_only;
    END IF;
    EXECUTE format('ALTER TABLE audit_event ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', name, since, until);
    EXECUTE format('CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON %I'
                   ' FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only()', name);
    RETURN true;
END
$$;
"""

CONVERT = """
DO $$
DECLARE
    indexes text[];
    statement text;
    month date;
BEGIN
    LOCK TABLE audit_event IN ACCESS EXCLUSIVE MODE;
    SELECT array_agg(indexdef) INTO indexes FROM pg_indexes
        WHERE schemaname = current_schema() AND tablename = 'audit_event' AND indexname <> 'audit_event_pkey';
    ALTER TABLE audit_event DROP CONSTRAINT audit_only_refusals_count;
    CREATE TABLE audit_event_new (LIKE audit_event INCLUDING DEFAULTS) PARTITION BY RANGE (minute);
    ALTER TABLE audit_event_new
        ALTER minute SET NOT NULL,
        ADD COLUMN story varchar(64) NOT NULL DEFAULT '',
        ADD CONSTRAINT audit_only_refusals_count
            CHECK (outcome = 'denied' OR (count = 1 AND outcome IN ('done', 'failed'))),
        ADD CONSTRAINT audit_minute_of_at
            CHECK (minute = date_trunc('minute', at, 'UTC'));
    ALTER TABLE audit_event_new ALTER story DROP DEFAULT;
    CREATE SEQUENCE audit_event_new_id AS bigint OWNED BY audit_event_new.id;
    PERFORM setval('audit_event_new_id', greatest((SELECT max(id) FROM audit_event), 1),
                   EXISTS (SELECT 1 FROM audit_event));
    ALTER TABLE audit_event_new ALTER id SET DEFAULT nextval('audit_event_new_id');

    ALTER TABLE audit_event RENAME TO audit_event_old;
    ALTER TABLE audit_event_new RENAME TO audit_event;
    CREATE TABLE audit_event_other PARTITION OF audit_event DEFAULT;
    CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON audit_event
        FOR EACH ROW EXECUTE FUNCTION audit_append_only();
    CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit_event
        FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only();
    CREATE TRIGGER audit_no_truncate BEFORE TRUNCATE ON audit_event_other
        FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only();
    FOR month IN
        SELECT date_trunc('month', at AT TIME ZONE 'UTC')::date FROM audit_event_old
        UNION SELECT (date_trunc('month', now() AT TIME ZONE 'UTC') + make_interval(months => n))::date
            FROM generate_series(0, 2) AS n
    LOOP
        PERFORM audit_make_month(month);
    END LOOP;
    INSERT INTO audit_event (id, at, verb, actor, actor_id, address, target_kind, target_id, target, outcome, minute,
                             count, before, after, facts, story)
        SELECT id, at, verb, actor, actor_id, address, target_kind, target_id, target, outcome,
               date_trunc('minute', at, 'UTC'), count, before, after, facts,
               CASE WHEN target_kind = 'deployment' THEN left('deployment:' || target_id, 64) ELSE '' END
        FROM audit_event_old ORDER BY id;
    DROP TABLE audit_event_old;
    ALTER SEQUENCE audit_event_new_id RENAME TO audit_event_id_seq;

    ALTER TABLE audit_event ADD CONSTRAINT audit_event_pkey PRIMARY KEY (id, minute);
    FOREACH statement IN ARRAY indexes LOOP
        EXECUTE statement;
    END LOOP;
END
$$;
"""

# What came of a run belongs to the story of its deployment. The room above may not be there yet (a new database).
RUNS = """
DO $$
BEGIN
    IF to_regclass('deployments_run') IS NULL OR NOT EXISTS (SELECT 1 FROM audit_event WHERE target_kind = 'run') THEN
        RETURN;
    END IF;
    ALTER TABLE audit_event DISABLE TRIGGER audit_append_only;
    EXECUTE 'UPDATE audit_event SET story = ''deployment:'' || run.deployment_id FROM deployments_run AS run'
            ' WHERE audit_event.target_kind = ''run'' AND run.id::text = audit_event.target_id';
    ALTER TABLE audit_event ENABLE TRIGGER audit_append_only;
END
$$;
"""
# Refusals of the past may share a minute only as they did: the first second of each was kept in `at`, as it still is.


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.RunSQL(MAKE_MONTH),
                migrations.RunSQL(CONVERT),
                migrations.RunSQL(RUNS),
            ],
            state_operations=[
                migrations.AlterField("event", "at", models.DateTimeField(db_index=True, default=django.utils.timezone.now)),
                migrations.AlterField("event", "minute", models.DateTimeField()),
                migrations.AddField("event", "story", models.CharField(blank=True, max_length=64)),
                migrations.RemoveConstraint("event", "audit_only_refusals_count"),
                migrations.AddConstraint(
                    "event",
                    models.CheckConstraint(
                        name="audit_only_refusals_count",
                        condition=models.Q(
                            ("outcome", "denied"),
                            models.Q(("count", 1), ("outcome__in", ["done", "failed"])),
                            _connector="OR",
                        ),
                    ),
                ),
            ],
        ),
        migrations.AddIndex("event", models.Index(fields=["story", "-id"], name="audit_event_story")),
        migrations.AddIndex("event", models.Index(fields=["actor", "-id"], name="audit_event_actor")),
        migrations.AddIndex("event", models.Index(fields=["outcome", "-id"], name="audit_event_outcome")),
        migrations.AddIndex("event", models.Index(fields=["verb", "-id"], name="audit_event_verb_id")),
    ]
