from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("deployments", "0004_looked_at"),
    ]

    operations = [
        AddIndexConcurrently(
            model_name="run",
            index=models.Index(condition=models.Q(("ended_at", None)), fields=["deployment"], name="run_open"),
        ),
    ]
