"""The hubs as the settings name them: addresses, the proxy, and what people paste as an address. Reads settings."""

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from django.conf import settings

from models_catalog.downloads.models import Source
from panel.core import outbound
from panel.fleet.agent.config import is_loopback
from panel.fleet.runtimes.sources import has_secret

USUAL = {Source.HUGGINGFACE: "https://huggingface.co", Source.MODELSCOPE: "https://www.modelscope.cn"}
NAMES = {"huggingface.co", "hf.co", "www.modelscope.cn", "modelscope.cn", "modelscope.ai", "www.modelscope.ai"}
TOKEN_ENV = {Source.HUGGINGFACE: "HF_TOKEN", Source.MODELSCOPE: "MODELSCOPE_API_TOKEN"}
PROXY_ENV = "BERTH_DOWNLOAD_PROXY"
REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")


@dataclass(frozen=True)
class HubAt:
    """A hub and where it is."""

    source: Source
    endpoint: str

    @property
    def name(self) -> str:
        return str(self.source.label)

    @property
    def mirror(self) -> str:
        """The host name of a mirror; "" at the hub's own address."""
        return "" if self.endpoint == USUAL[self.source] else urlsplit(self.endpoint).netloc

    @property
    def main(self) -> str:
        """The branch that is taken where nobody names one."""
        return "master" if self.source == Source.MODELSCOPE else "main"

    def page_of(self, repo: str) -> str:
        """The model's page for people."""
        return f"{self.endpoint}/{'models/' if self.source == Source.MODELSCOPE else ''}{repo}"


def at(source: str) -> HubAt:
    """Where a hub is. Raises ValueError for one that is not known."""
    kind = Source(source)
    usual = settings.HF_ENDPOINT if kind == Source.HUGGINGFACE else settings.BERTH_MODELSCOPE_ENDPOINT
    return HubAt(kind, usual)


def every() -> list[HubAt]:
    return [at(source) for source in Source.values]


def policy(hub: HubAt) -> outbound.Policy:
    """Where a hub may be. The setting that names a mirror is an admin's word that it may be in a private network; the
    hub's own, public name is none: whoever answers for that name could mean a neighbour of this machine.
    """
    private = settings.BERTH_PRIVATE_RANGES if hub.mirror else settings.BERTH_HUB_PRIVATE_RANGES
    return outbound.Policy(private=private, loopback=is_loopback(urlsplit(hub.endpoint).hostname or ""))


def proxy() -> str:
    return str(settings.BERTH_HUB_PROXY)


def proxy_fields() -> tuple[dict[str, str], dict[str, str]]:
    """(fields of an order, its secret environment): a login travels in the sealed part only."""
    address = proxy()
    if not address:
        return {}, {}
    return ({}, {PROXY_ENV: address}) if has_secret(address) else ({"proxy": address}, {})


def pasted(text: str) -> tuple[str, str]:
    """(source or "", repository) of an address or a name as people paste it; ("", "") when it is a search's words."""
    text = text.strip()
    if REPO.fullmatch(text):
        return "", text
    if "://" not in text and text.split("/")[0] not in NAMES:
        return "", ""
    try:
        parts = urlsplit(text if "://" in text else f"https://{text}")
    except ValueError:
        return "", ""
    source = next((hub.source.value for hub in every() if urlsplit(hub.endpoint).netloc == parts.netloc), "")
    if not source and parts.netloc not in NAMES:
        return "", ""
    source = source or (Source.MODELSCOPE.value if "modelscope" in parts.netloc else Source.HUGGINGFACE.value)
    words = [unquote(word) for word in parts.path.split("/") if word]
    words = words[1:] if words[:1] == ["models"] else words
    repo = "/".join(words[:2])
    return (source, repo) if REPO.fullmatch(repo) else ("", "")
