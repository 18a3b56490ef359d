from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0007_runs_that_taught"),
    ]

    operations = [
        migrations.AddField(
            model_name="run",
            name="findings",
            field=models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict),
        ),
        migrations.AddField(
            model_name="run",
            name="live",
            field=models.JSONField(db_default=models.Value({}, models.JSONField()), default=dict),
        ),
    ]
