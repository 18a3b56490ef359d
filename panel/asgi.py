"""The web process: Django for pages and the agents' line; the door takes /v1 beside it."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "panel.settings")

from django.core.asgi import get_asgi_application

application = get_asgi_application()
