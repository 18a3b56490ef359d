"""Who paused, resumed or cancelled a download last."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("models_catalog", "0003_downloads")]

    operations = [
        migrations.AddField(
            model_name="download",
            name="moved_by",
            field=models.CharField(blank=True, db_default="", default="", max_length=150),
        ),
    ]
