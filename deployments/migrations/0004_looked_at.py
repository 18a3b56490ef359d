from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("deployments", "0003_trace"),
    ]

    operations = [
        migrations.AddField(
            model_name="deployment",
            name="looked_at",
            field=models.DateTimeField(null=True),
        ),
    ]
