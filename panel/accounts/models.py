"""Who may use the panel: users with a role, their sessions and API tokens, and the links that work once."""

import uuid
from typing import Any

from django.contrib.auth.models import AbstractUser
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import models
from django.db.models.functions import Lower
from django.utils import timezone
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
    last_seen_at = models.DateTimeField(null=True, blank=True)  # with a browser; exact to a minute

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
    deployment_ids = models.JSONField(null=True)  # the only deployments that it reaches; null: all
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField(null=True)
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"


class Secret(models.Model):
    """A secret that engines are given, sealed: a person's own, or (without an owner) the team's.

    Settings of deployments name it; nothing shows it again.
    """

    name = models.CharField(max_length=64)
    owner = models.ForeignKey(User, on_delete=models.CASCADE, null=True, related_name="secrets")
    value = models.BinaryField()
    given_by = models.CharField(max_length=150)  # whoever kept or replaced it last
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    used_by: list[str]  # deployments that are given it; only where a list is shown (secret_store.listed)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["name", "owner"], name="secret_once_per_person"),
            models.UniqueConstraint(fields=["name"], condition=models.Q(owner=None), name="secret_once_for_the_team"),
        ]
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def key(self) -> str:
        """Names it within a page."""
        return str(self.pk)


class PersonSession(AbstractBaseSession):
    """A browser that is signed in: Django's session row, which knows whose it is and where it was seen.

    Ending a session is deleting its row. Django writes what it holds, panel.accounts.sessions the rest.
    """

    user = models.ForeignKey(User, null=True, on_delete=models.CASCADE, related_name="sessions")
    number = models.UUIDField(unique=True, default=uuid.uuid4, editable=False)  # names it on pages; the key is a secret
    address = models.CharField(max_length=64, blank=True)  # where it was seen last
    agent = models.CharField(max_length=300, blank=True)  # the browser, by its own word
    since = models.DateTimeField(default=timezone.now)  # the sign-in
    last_seen_at = models.DateTimeField(default=timezone.now)

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Django writes whole rows; of one that is there it may only change what it knows of."""
        if kwargs.get("force_update"):
            kwargs["update_fields"] = ["session_data", "expire_date", "user"]
        super().save(*args, **kwargs)

    @classmethod
    def get_session_store_class(cls) -> Any:
        from panel.accounts.session_store import SessionStore

        return SessionStore


class Purpose(models.TextChoices):
    """What a one-time link is for."""

    FIRST_ADMIN = "first_admin", _("First admin")
    INVITE = "invite", _("Invitation")
    RESET = "reset", _("New password")


class OneTimeLink(models.Model):
    """A link that works once. Only the SHA-256 of its secret is kept."""

    purpose = models.CharField(max_length=16, default=Purpose.FIRST_ADMIN, choices=Purpose.choices)
    secret_hash = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)  # taken back, or replaced by a newer one
    label = models.CharField(max_length=80, blank=True)  # of an invitation: who it is for
    role = models.CharField(max_length=16, blank=True)  # of an invitation: what the person may do
    user = models.ForeignKey(User, null=True, on_delete=models.CASCADE, related_name="links")  # whose password it sets
    made_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="links_made")

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
