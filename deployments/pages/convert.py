"""Conversions as a way out, where a GGUF file is what stands in the way of a start. Reads only."""

from collections.abc import Mapping
from typing import Any

from models_catalog.conversions.contexts import offer
from models_catalog.models import Copy

CONVERT = ("gguf.no_cpu_kernels", "gguf.plugin_missing")
MOST = 5


def conversions(reason: Mapping[str, Any], artifact_id: int, host_id: int | None) -> list[dict[str, str]]:
    """Each copy of the file that could become a folder the engine can calculate with; `host_id` where one is chosen."""
    found = reason.get("params", {}).get("candidates") or [reason]
    if not any(one.get("code") in CONVERT for one in found):
        return []
    copies = Copy.objects.filter(artifact=artifact_id, present=True, usable=True, delete_job=None)
    if host_id is not None:
        copies = copies.filter(host=host_id)
    return [{**offer(copy), "host": copy.host.name} for copy in copies.select_related("host", "artifact__model")[:MOST]]
