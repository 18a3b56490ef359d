"""Which engines Berth can run. Pure. Adding one is adding its file and a line here."""

from deployments.engines.base import Adapter
from deployments.engines.vllm import VLLM

_ADAPTERS: dict[str, Adapter] = {"vllm": VLLM()}


def adapter_for(engine: str) -> Adapter:
    """The adapter of an engine; KeyError for one that Berth does not know."""
    return _ADAPTERS[engine]
