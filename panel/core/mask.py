"""One way to hide secrets, for every page, log, command preview, audit row and export. Pure; knows no Django.

A value is hidden because of its key (`api_key`, `HF_TOKEN`, `--ssl-keyfile-password`) or because of its own look
(`hf_…`, `Bearer …`, `https://user:secret@host`). Numbers and booleans are never secrets: `max_tokens` stays.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

HIDDEN = "••••"

# The field of settings that names stored secrets: variable → name. A name is no secret, and people have to see it.
REFERENCES = "env_secrets"

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset(
    [
        "password",
        "passwd",
        "passphrase",
        "passcode",
        "pwd",
        "secret",
        "secrets",
        "credential",
        "credentials",
        "authorization",
        "authentication",
        "bearer",
        "cookie",
        "cookies",
        "apikey",
        "apikeys",
        "accesstoken",
        "authtoken",
        "sessionid",
        "privatekey",
    ]
)
_SECRET_ENDS = ("password", "passwd", "passphrase", "apikey")  # PGPASSWORD
_KEY_KINDS = frozenset(
    ["api", "access", "private", "secret", "signing", "encryption", "ssh", "auth", "admin", "master", "license"]
)
# Words before "token" that name a piece of text, not a credential.
_TEXT_TOKENS = frozenset(
    [
        "eos",
        "bos",
        "pad",
        "unk",
        "sep",
        "cls",
        "mask",
        "image",
        "audio",
        "video",
        "stop",
        "think",
        "end",
        "start",
        "last",
        "next",
        "first",
        "per",
        "by",
        "special",
        "eot",
        "eom",
        "decoder",
        "prefix",
        "suffix",
        "middle",
    ]
)

# Every repetition is bounded or starts at one place only: a log line of a megabyte must not cost more than its length.
_LOOKS: tuple[tuple[re.Pattern[str], str], ...] = (
    # a PEM block, also when its end was cut off
    (
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
        ),
        f"-----BEGIN PRIVATE KEY-----{HIDDEN}",
    ),
    # tokens that carry their kind in front
    (
        re.compile(
            r"\b(hf_|api_org_|berth_|sk-ant-|sk-proj-|sk-or-|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|xapp-|AKIA|ASIA"
            r"|nvapi-|dckr_pat_|dckr_oat_|gsk_|pypi-|AIza|ya29\.|dop_v1_|pplx-|xai-)"
            r"[A-Za-z0-9_\-]{12,}"
        ),
        rf"\1{HIDDEN}",
    ),
    (re.compile(r"(?<![A-Za-z0-9_\-])eyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*"), HIDDEN),
    (re.compile(r"(?i)\b(bearer|basic)(\s{1,8})[A-Za-z0-9+/=._~\-]{8,}"), rf"\1\2{HIDDEN}"),
    # Authorization: token … (Bearer and Basic are hidden above, wherever they stand)
    (
        re.compile(
            r"(?i)\b(authorization[\"']?\s?[:=]\s?[\"']?(?!(?:bearer|basic)\b)[a-z][a-z0-9_\-]{0,30}\s{1,8})"
            r"[^\s\"',;]{4,}"
        ),
        rf"\1{HIDDEN}",
    ),
    # links that work once
    (re.compile(r"(/(?:first-admin|invite|new-password)/)[A-Za-z0-9_\-]{20,}"), rf"\1{HIDDEN}"),
    # https://user:secret@host
    (re.compile(r"(://[^\s/:@'\"]{0,200}:)[^\s/'\"]{1,500}@"), rf"\1{HIDDEN}@"),
    # https://token@host; a name of so many characters is none
    (re.compile(r"(://)[^\s/:@'\"]{20,500}@"), rf"\1{HIDDEN}@"),
)
# name=value, name: value, --name value, "name": "value". The value is looked at after the name of a secret only:
# others may hold a secret of their own, as the query of an address or the JSON of a flag does.
_NAME = re.compile(
    r"(?<![A-Za-z0-9_.])(?P<name>[A-Za-z][A-Za-z0-9_.\-]{0,79})(?P<sep>[\"']?\s?[=:]\s?|(?<=[a-z])\s(?!-))"
)
_ELSEWHERE = re.compile(r"[\"']?\$(?:[A-Z_][A-Z0-9_]*|\{[A-Z_][A-Z0-9_]*\})[\"']?")  # `$HF_TOKEN` is no secret itself
_VALUE = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|[^\s,;&\"'}\])]+")


def is_secret_key(key: str) -> bool:
    """Whether a value under this name should be hidden: `HF_TOKEN`, `api-key`, `dbPassword`; not `max_tokens`."""
    if key == REFERENCES or key.startswith(f"{REFERENCES}."):
        return False
    words = [word.lower() for word in _WORDS.findall(key)]
    if not words or words[-1] == "stdin":  # `--password-stdin` has no value
        return False
    if any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in words):
        return True
    for before, word in zip(["", *words], words, strict=False):
        if word in ("key", "keys") and before in _KEY_KINDS:
            return True
    return words[-1] == "token" and (len(words) == 1 or words[-2] not in _TEXT_TOKENS)


def mask_text(text: str) -> str:
    """The text with everything hidden that looks like a secret."""
    for pattern, shown in _LOOKS:
        text = pattern.sub(shown, text)
    parts, at = list[str](), 0
    for found in _NAME.finditer(text):
        value = _secret_of(found) if found.start() >= at else None
        if value is not None:
            quote = value[0][0] if value[0][0] in "\"'" else ""
            parts += [text[at : found.end()], quote, HIDDEN, quote]
            at = value.end()
    return "".join([*parts, text[at:]])


def _secret_of(found: re.Match[str]) -> re.Match[str] | None:
    """The value after a name, when it is to be hidden."""
    name, sep = found["name"], found["sep"]
    start = found.start()
    flag = found.string[max(0, start - 2) : start] == "--"
    # "token was refused" in a sentence is no secret: a blank separates only after a flag
    if not is_secret_key(name) or (not sep.strip() and not flag):
        return None
    value = _VALUE.match(found.string, found.end())
    if value is None or HIDDEN in value[0] or _ELSEWHERE.fullmatch(value[0]):
        return None
    return None if value[0].lower() in ("bearer", "basic", "true", "false", "none", "null") else value


def mask(value: Any, key: str = "") -> Any:
    """The same value with secrets hidden: mappings by key, command lines by flag, texts by their look."""
    if isinstance(value, str):
        return HIDDEN if value and key and is_secret_key(key) else mask_text(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return HIDDEN
    if isinstance(value, Mapping):
        under = f"{REFERENCES}." if key == REFERENCES else ""
        return {name: mask(item, f"{under}{name}") for name, item in value.items()}
    if isinstance(value, set | frozenset):
        return mask(sorted(value, key=str), key)
    if isinstance(value, Sequence):
        return _mask_items(value, key)
    return value


def _mask_items(items: Sequence[Any], key: str) -> list[Any]:
    """A list; in a command line the element after `--api-key` is hidden. (vLLM takes several keys in a row.)"""
    shown: list[Any] = []
    flag = ""
    for item in items:
        if isinstance(item, str) and item.startswith("-"):
            flag = item.lstrip("-") if "=" not in item else ""
            shown.append(mask_text(item))
        else:
            shown.append(mask(item, flag or key))
    return shown
