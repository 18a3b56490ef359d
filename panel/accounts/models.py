"""Who may use the panel: users with a role, API tokens, and the one-time links that create the first admin."""

from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models.functions import Lower
from django.utils.translation import gettext_lazy as _


class Role(models.TextChoices):
    """Each role holds the rights of the ones before it."""

    VIEWER = "viewer", _("Can view")  # sees everything that is not secret
    OPERATOR = "operator", _("Can deploy")  # creates, starts, stops and edits deployments
    ADMIN = "admin", _("Admin")  # hosts, users, settings, models that run their own code


class User(AbstractUser):
    """A person. `username` is the login name; `is_staff` and groups are not used."""

    role = models.CharField(max_length=16, choices=Role.choices, default=Role.VIEWER)
    language = models.CharField(max_length=8, blank=True)  # "en", "zh-hans"; empty follows the browser
    theme = models.CharField(max_length=8, default="auto")  # auto, light, dark

    class Meta:
        constraints = [
            models.CheckConstraint(name="user_role_known", condition=models.Q(role__in=Role.values)),
            # "Ada" and "ada" are one person, so that nobody can pass for another
            models.UniqueConstraint(
                Lower("username"),
                name="user_name_once",
                violation_error_message=_("This name is taken; capitals make no difference."),
            ),
        ]


class Scope(models.TextChoices):
    """What a token opens. None of them opens the pages of the panel."""

    DOOR = "door", _("Ask models")  # /v1
    API_READ = "api:read", _("Read through the API")
    API_WRITE = "api:write", _("Read and change through the API")


class ApiToken(models.Model):
    """A bearer token for the door and the API; only its SHA-256 is kept, the token itself is shown once."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(max_length=80)
    token_hash = models.CharField(max_length=64, unique=True)
    prefix = models.CharField(max_length=12)  # the first characters, to recognise it in lists
    scope = models.CharField(max_length=16, default=Scope.DOOR, choices=Scope.choices)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class OneTimeLink(models.Model):
    """A link that works once: creating the first admin. Only the SHA-256 of its secret is kept."""

    purpose = models.CharField(max_length=16, default="first_admin")
    secret_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.purpose} until {self.expires_at}"


class LoginAttempt(models.Model):
    """Failed logins per address or name and minute, for the rate limit."""

    key = models.CharField(max_length=120)  # "addr:…" or "name:…"
    minute = models.DateTimeField(db_index=True)  # old rows are swept by it
    count = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["key", "minute"], name="login_attempts_once_per_minute")]

    def __str__(self) -> str:
        return f"{self.key}: {self.count}"
