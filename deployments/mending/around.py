"""What is known of the place where something starts or failed, as plain values. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from deployments.engines.base import version_key


@dataclass(frozen=True)
class Engine:
    """An engine on the host. `worked`: something was ready with it there."""

    id: int
    version: str
    device: str = ""
    worked: bool = False


@dataclass(frozen=True)
class Holder:
    """What holds memory: a deployment of ours (`deployment`), or a process that is not (`pid`). GPU None: the RAM.

    Without name and number: a deployment that whoever looks may not see.
    """

    name: str
    mib: int
    gpu: int | None = None
    deployment: int | None = None
    pid: int | None = None
    user: str = ""


@dataclass(frozen=True)
class Form:
    """Another form of the model that lies on the host. `method`: how it is quantised, "" not at all."""

    artifact: int
    name: str
    method: str = ""


@dataclass(frozen=True)
class Around:
    """The place of the failed start, as it is now. Addresses of pages are made where this is shown."""

    host: int | None = None
    host_name: str = ""
    on_gpu: bool = True
    kv_cache_gib: int | None = None  # of the failed start, on a CPU
    runtime: Engine | None = None
    engines: tuple[Engine, ...] = ()  # the others on that host that could serve
    python: str = ""  # of the engine's environment
    plugin: Literal["", "click", "command"] = ""  # whether Berth can add the GGUF plug-in
    copy: int | None = None
    copy_path: str = ""
    repairable: bool = False
    model: int | None = None
    dtype: str = ""  # the number format in which the model was made
    method: str = ""  # how the model is quantised, "" not at all
    kinds: tuple[str, ...] = ()  # what tells the model's family, see engines/parsers.py
    parsers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # those that the engine has, by option
    tasks: tuple[str, ...] = ()  # what the model is made for, as its files say
    own_code: bool = False  # the model brings code of its own that nobody allowed
    ggufs: tuple[Form, ...] = ()  # files that lie in the model's folder
    twins: tuple[Form, ...] = ()  # smaller forms of the model on that host
    holders: tuple[Holder, ...] = ()
    port_holder: str = ""
    flags: frozenset[str] = frozenset()  # what the engine's parser knows; empty: not known

    def newer(self) -> Engine | None:
        """The newest of the other engines that is newer than the one that failed."""
        now = version_key(self.runtime.version) if self.runtime is not None else ()
        found = [engine for engine in self.engines if version_key(engine.version) > now]
        return max(found, key=lambda engine: version_key(engine.version), default=None)

    def other(self) -> Engine | None:
        """One that is known to work there, else the newest."""
        return max(self.engines, key=lambda engine: (engine.worked, version_key(engine.version)), default=None)
