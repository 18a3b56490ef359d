import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0002_runtime_installs"),
    ]

    operations = [
        migrations.AddField("host", "agent_instance", models.CharField(blank=True, max_length=80, default=""), preserve_default=False),
        migrations.AddField("host", "clock_skew_s", models.FloatField(default=0.0)),
        migrations.AddField("host", "boot_id", models.CharField(blank=True, max_length=64, default=""), preserve_default=False),
        migrations.AddField("host", "restarted_at", models.DateTimeField(null=True)),
        migrations.AddField("host", "link_trouble", models.JSONField(default=dict)),
        migrations.AlterModelOptions("joincode", options={"ordering": ["-created_at"]}),
        migrations.AddField(
            "joincode",
            "host",
            models.ForeignKey(
                null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="join_codes", to="fleet.host"
            ),
        ),
        migrations.AddField("joincode", "again", models.BooleanField(default=False)),
        migrations.AddField("joincode", "made_by", models.CharField(blank=True, max_length=150, default=""), preserve_default=False),
        migrations.AddField("joincode", "revoked_at", models.DateTimeField(null=True)),
    ]
