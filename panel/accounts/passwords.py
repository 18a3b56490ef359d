"""New accounts and their passwords: what all the ways in share."""

import hashlib
from typing import Any

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.utils.translation import gettext_lazy as _

from panel.accounts.models import User
from panel.core.errors import Invalid

LONGEST = 1000  # characters


def check(password: str, user: User) -> None:
    """Raise Invalid when this is too weak for this person."""
    if len(password) > LONGEST or "\0" in password:
        raise Invalid({"password": _("This password cannot be used.")})
    try:
        validate_password(password, user)
    except ValidationError as exc:
        raise Invalid({"password": " ".join(exc.messages)}) from exc


def new_user(name: str, password: str, role: Any) -> User:
    """A person who can sign in. Raises Invalid; IntegrityError when two take the same name at the same moment."""
    user = User(username=User.normalize_username(name.strip()), role=role)
    try:
        user.full_clean(exclude=["password"])
    except ValidationError as exc:
        texts = [text for messages in exc.message_dict.values() for text in messages]
        raise Invalid({"name": " ".join(texts)}) from exc
    check(password, user)
    user.set_password(password)
    user.save()
    return user


def digest(secret: str) -> str:
    """What the database keeps of a one-time link's secret; that has 256 random bits, so a plain hash is enough."""
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
