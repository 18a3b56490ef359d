"""All settings, in one file. Every value is read through core/env.py; a fresh clone starts with none set.

docs/settings.md lists them; a test compares that page with this file.
"""

from pathlib import Path
from urllib.parse import urlsplit

from panel.core import env, loglines, network, outbound
from panel.core.secret_key import data_secret
from panel.core.services_urls import database_settings, redis_urls

BASE_DIR = Path(__file__).resolve().parent.parent
BERTH_DATA = env.path("BERTH_DATA", BASE_DIR / "var")

DEBUG = env.boolean("BERTH_DEBUG", False)
SECRET_KEY = env.text("BERTH_SECRET_KEY") or data_secret(BERTH_DATA)

# --- where it listens; hosts, CSRF origins and cookie flags follow from it -------------------------------------------
BERTH_BIND_HOST, BERTH_PORT = env.address("BERTH_BIND", "127.0.0.1:8080")
BERTH_PUBLIC_URL = env.url("BERTH_URL") or network.public_url(BERTH_BIND_HOST, BERTH_PORT)  # the address people type
# Where the panel's own parts (probe, local agent) reach the web process.
BERTH_INTERNAL_URL = env.url("BERTH_INTERNAL_URL") or network.internal_url(BERTH_BIND_HOST, BERTH_PORT)
BERTH_BEHIND_PROXY = env.boolean("BERTH_BEHIND_PROXY", False)
BERTH_PROXY_ADDRESSES = env.words("BERTH_PROXY_ADDRESSES", ["127.0.0.1", "::1"])
# How a machine that joins checks this panel, see panel/fleet/panel_tls.py.
BERTH_TLS_CERT = env.text("BERTH_TLS_CERT")
BERTH_JOIN_PLAIN_HTTP = env.boolean("BERTH_JOIN_PLAIN_HTTP", False)
# Networks of one's own whose hosts the panel may call, see panel/core/outbound.py.
BERTH_PRIVATE_RANGES = env.networks("BERTH_PRIVATE_RANGES", outbound.PRIVATE)
# The same for a hub at its own, public address; a mirror that the settings name may be in the ranges above.
BERTH_HUB_PRIVATE_RANGES = env.networks("BERTH_HUB_PRIVATE_RANGES", "none")
BERTH_LOCAL_AGENT = env.boolean("BERTH_LOCAL_AGENT", True)
_public = urlsplit(BERTH_PUBLIC_URL)
ALLOWED_HOSTS = network.allowed_hosts(
    BERTH_BIND_HOST,
    [_public.hostname or "", urlsplit(BERTH_INTERNAL_URL).hostname or "", *env.words("BERTH_ALLOWED_HOSTS")],
)
CSRF_TRUSTED_ORIGINS = [f"{_public.scheme}://{_public.netloc}"]
SESSION_ENGINE = "panel.accounts.session_store"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _public.scheme == "https"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_NAME = "berth_session"
SESSION_COOKIE_AGE = 7 * 86400  # seconds after sign-in
CSRF_COOKIE_NAME = "berth_csrf"
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
# A proxy's headers are read by the server (panel/web.py), which knows whose to believe.
if _public.scheme == "https":
    SECURE_HSTS_SECONDS = 30 * 24 * 3600
    SECURE_SSL_REDIRECT = BERTH_BEHIND_PROXY
    SECURE_REDIRECT_EXEMPT = [r"^agent/"]  # the local agent calls by loopback; others refuse plain HTTP themselves
# Whether HSTS holds for other names of the domain is not for this panel to say.
SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
    "django_htmx",
    "template_partials",
    "panel.apps.PanelConfig",
    "panel.core",
    "panel.audit",
    "panel.accounts",
    "panel.fleet",
    "models_catalog",
    "deployments",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "panel.core.middleware.SecurityHeaders",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "panel.core.middleware.PersonLanguage",
    "panel.accounts.middleware.LastSeen",
    "panel.core.middleware.Refusals",
]

ROOT_URLCONF = "panel.urls"
ASGI_APPLICATION = "panel.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "panel.fleet.contexts.menu",
            ],
            "builtins": [
                "django.templatetags.i18n",
                "django.templatetags.static",
                "template_partials.templatetags.partials",
                "panel.core.templatetags.ui",
            ],
        },
    }
]

# --- database and broker ----------------------------------------------------------------------------------------------
DATABASES = {"default": database_settings(env.text("DATABASE_URL"), BERTH_DATA)}
REDIS_URL, CELERY_BROKER_URL = redis_urls(env.text("REDIS_URL"), BERTH_DATA)
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# --- Celery: ids only, nothing kept ---------------------------------------------------------------------------------
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TASK_DEFAULT_QUEUE = "loop"
CELERY_TASK_ROUTES = {f"deployments.tasks.{name}": {"queue": "probe"} for name in ("probe", "live_probe")}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A broker that is away or hangs must not hold up who only sends a nudge: one try again, no pauses, seconds at most.
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "socket_timeout": 3.0,
    "socket_connect_timeout": 2.0,
    "max_retries": 1,
    "interval_start": 0,
    "interval_step": 0,
    "interval_max": 0,
}
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TASK_ALWAYS_EAGER = env.boolean("BERTH_TASKS_EAGER", False)

# --- people -----------------------------------------------------------------------------------------------------------
AUTH_USER_MODEL = "accounts.User"
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
CSRF_FAILURE_VIEW = "panel.core.pages.csrf_failed"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "deployments"

# --- languages, time, files -----------------------------------------------------------------------------------------
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "中文")]
LOCALE_PATHS = [BASE_DIR / "locale"]
FORMAT_MODULE_PATH = "panel.formats"
USE_TZ = True
TIME_ZONE = env.text("BERTH_TIME_ZONE", "UTC")
STATIC_URL = "static/"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
WHITENOISE_AUTOREFRESH = DEBUG
STORAGES = {
    "default": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": BERTH_DATA / "files"},
    },
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    # Logs of all jobs; any shared storage works for several web nodes.
    "logs": {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": BERTH_DATA / "logs"}},
}
DATA_UPLOAD_MAX_MEMORY_SIZE = 2 << 20
# --- what is kept how long (0: for ever); what goes is a file in the export folder first -----------------------------
BERTH_EXPORT_FOLDER = env.path("BERTH_EXPORT_FOLDER", BERTH_DATA / "exports")
BERTH_AUDIT_KEEP_MONTHS = env.integer("BERTH_AUDIT_KEEP_MONTHS", 0, low=0)
BERTH_AUDIT_KEEP_MIB = env.integer("BERTH_AUDIT_KEEP_MIB", 0, low=0)
BERTH_LOG_KEEP_DAYS = env.integer("BERTH_LOG_KEEP_DAYS", 0, low=0)
BERTH_LOG_KEEP_MIB = env.integer("BERTH_LOG_KEEP_MIB", 0, low=0)

# --- times of the loop (seconds); tests make them short ---------------------------------------------------------------
BERTH_TICK_S = env.number("BERTH_TICK_S", 2.0, low=0.05)
BERTH_CLAIM_S = env.number("BERTH_CLAIM_S", 6.0, low=0.5)
BERTH_HOST_LOST_S = env.number("BERTH_HOST_LOST_S", 30.0, low=0.5)
BERTH_STALL_S = env.number("BERTH_STALL_S", 600.0, low=1)
BERTH_PROBE_TIMEOUT_S = env.number("BERTH_PROBE_TIMEOUT_S", 120.0, low=1)
BERTH_LIVE_PROBE_S = env.number("BERTH_LIVE_PROBE_S", 60.0, low=0)
BERTH_HUNG_S = env.number("BERTH_HUNG_S", 180.0, low=1)
BERTH_CHECK_BEFORE_START = env.boolean("BERTH_CHECK_BEFORE_START", True)
BERTH_RESTART_FIRST_S = env.number("BERTH_RESTART_FIRST_S", 10.0, low=0.05)
BERTH_RESTART_MAX_S = env.number("BERTH_RESTART_MAX_S", 300.0, low=0.05)
BERTH_LOG_CAP_MIB = env.integer("BERTH_LOG_CAP_MIB", 64, low=1)
BERTH_APPROVED_MODELS_ONLY = env.boolean("BERTH_APPROVED_MODELS_ONLY", False)
BERTH_ENGINE_CACHE = env.path("BERTH_ENGINE_CACHE", BERTH_DATA / "engines")

# --- where hosts install engines from; addresses may hold a name and a password --------------------------------------
BERTH_PIP_INDEX_URL = env.url("BERTH_PIP_INDEX_URL")
BERTH_PIP_EXTRA_INDEX_URL = env.urls("BERTH_PIP_EXTRA_INDEX_URL")
BERTH_PIP_PROXY = env.url("BERTH_PIP_PROXY")
BERTH_NIGHTLY_INDEX_URL = env.url("BERTH_NIGHTLY_INDEX_URL")
BERTH_WHEEL_FOLDER = env.absolute("BERTH_WHEEL_FOLDER")
BERTH_INSTALL_LIMIT_S = env.number("BERTH_INSTALL_LIMIT_S", 7200.0, low=1)

# --- where models are downloaded from; the proxy may hold a name and a password --------------------------------------
HF_ENDPOINT = env.url("HF_ENDPOINT", "https://huggingface.co")
BERTH_MODELSCOPE_ENDPOINT = env.url("BERTH_MODELSCOPE_ENDPOINT", "https://www.modelscope.cn")
BERTH_HUB_PROXY = env.url("BERTH_HUB_PROXY")
BERTH_DOWNLOAD_LIMIT_MIB_S = env.number("BERTH_DOWNLOAD_LIMIT_MIB_S", 0)
BERTH_DOWNLOADS_PER_HOST = env.integer("BERTH_DOWNLOADS_PER_HOST", 2, low=1, high=16)
BERTH_DOWNLOAD_STALL_S = env.number("BERTH_DOWNLOAD_STALL_S", 900, low=10)

LOGGING = loglines.as_settings(
    env.choice("BERTH_LOG_FORMAT", "plain", loglines.FORMS), env.text("BERTH_LOG_LEVEL", "INFO")
)
