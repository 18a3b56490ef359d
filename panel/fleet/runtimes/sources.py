"""Where hosts install engines from, as the settings say: fields of an order, what pages show, the offline folder.

Addresses with a name or a password travel in `secret_env` only; pages, logs and the record get them masked.
"""

import shlex
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from panel.core.mask import mask_text
from panel.fleet.agent.install_plan import without_login

NIGHTLY = "nightly"
DEFAULT_FOLDER = "/srv/wheels"  # what the command shows while no folder is set


@dataclass(frozen=True)
class Sources:
    """The settings, as they are. `nightly_url` counts for nightly builds only."""

    index_url: str = ""
    extra_urls: tuple[str, ...] = ()
    proxy: str = ""
    wheel_folder: str = ""
    nightly_url: str = ""


def current() -> Sources:
    return Sources(
        index_url=settings.BERTH_PIP_INDEX_URL,
        extra_urls=tuple(settings.BERTH_PIP_EXTRA_INDEX_URL),
        proxy=settings.BERTH_PIP_PROXY,
        wheel_folder=settings.BERTH_WHEEL_FOLDER,
        nightly_url=settings.BERTH_NIGHTLY_INDEX_URL,
    )


def named() -> list[str]:
    """All sources that an order of now can name, without logins: what a host that joins will take."""
    found = current()
    addresses = (found.index_url, *found.extra_urls, found.nightly_url, found.proxy)
    return [*dict.fromkeys(without_login(url) for url in addresses if url), *filter(None, [found.wheel_folder])]


def order_fields(version: str, sources: Sources | None = None) -> dict[str, Any]:
    """The fields of a wire.InstallTask that say where from. With a wheel folder nothing else is named."""
    found = sources or current()
    if found.wheel_folder:
        return {"wheel_folder": found.wheel_folder}
    extra = [*found.extra_urls, *([found.nightly_url] if version == NIGHTLY and found.nightly_url else [])]
    secret_extra = [url for url in extra if has_secret(url)]
    fields: dict[str, Any] = {"extra_index_urls": [url for url in extra if not has_secret(url)]}
    secret: dict[str, str] = {"BERTH_PIP_EXTRA_INDEX_URL": " ".join(secret_extra)} if secret_extra else {}
    for name, env, url in (
        ("index_url", "BERTH_PIP_INDEX_URL", found.index_url),
        ("proxy", "BERTH_PIP_PROXY", found.proxy),
    ):
        if url and has_secret(url):
            secret[env] = url
        elif url:
            fields[name] = url
    return {**fields, **({"secret_env": secret} if secret else {})}


def has_secret(url: str) -> bool:
    """Whether an address carries a name or a password."""
    return "@" in urlsplit(url).netloc


def shown(url: str) -> str:
    """An address for people: without its password, and without a name that may be a token."""
    parts = urlsplit(url)
    if not has_secret(url):
        return mask_text(url)
    return parts._replace(netloc=f"••••@{parts.netloc.rpartition('@')[2]}").geturl()


def shown_settings(version: str = "") -> list[tuple[str, str]]:
    """(name of the setting, its value for people) of every setting that counts."""
    found = current()
    if found.wheel_folder:
        return [("BERTH_WHEEL_FOLDER", found.wheel_folder)]
    rows = [
        ("BERTH_PIP_INDEX_URL", [found.index_url]),
        ("BERTH_PIP_EXTRA_INDEX_URL", list(found.extra_urls)),
        ("BERTH_PIP_PROXY", [found.proxy]),
        ("BERTH_NIGHTLY_INDEX_URL", [found.nightly_url] if version == NIGHTLY else []),
    ]
    return [(name, " ".join(map(shown, values))) for name, values in rows if any(values)]


def quoted(words: list[str]) -> str:
    """A command as a person pastes it."""
    return " ".join(shlex.quote(word) for word in words)
