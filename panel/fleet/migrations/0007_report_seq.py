from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("fleet", "0006_trace"),
    ]

    operations = [
        migrations.AddField(
            model_name="host",
            name="report_seq",
            field=models.BigIntegerField(db_default=0, default=0),
        ),
    ]
