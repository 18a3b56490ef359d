"""The contract between the panel and the agents: plain messages, one version number.

Every call is made by the agent, over HTTP(S), with `Authorization: Bearer <host token>`:

    POST /agent/v1/join             JoinRequest   → JoinReply      (one-time code instead of a token)
    GET  /agent/v1/work?rev&wait    –             → Work, or 204 when nothing newer came within `wait` seconds
    POST /agent/v1/report           Report        → ReportReply
    POST /agent/v1/jobs/{id}/log?offset&skipped   raw bytes → LogReply
    POST /agent/v1/jobs/{id}/result JobResult     → 204
    POST /agent/v1/leave            –             → 204            (this agent process ends; jobs go on)

Every call also says which wire it speaks and which agent process it is (WIRE_HEADER, INSTANCE_HEADER), so that the
panel can refuse a wire it does not know (426, code link.version) and a second agent with the same token (409, code
link.twin) before it reads anything. Fields are only ever added to a wire; a change that an older side would misread
gets a new number.

Work is level-triggered: it is the whole list of what should be on the host. The agent makes it true and says what is.
Units: sizes in bytes unless the name ends in `_mib` (2^20 bytes); times are Unix seconds (float, host clock).
Texts are never sentences: refusals and errors are a code with parameters, pages translate.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from panel.fleet.wire_base import MAX_LIST as MAX_LIST
from panel.fleet.wire_base import MAX_NUMBER, Cut, Params, Text, Texts, Time
from panel.fleet.wire_base import MAX_PARAMS as MAX_PARAMS
from panel.fleet.wire_base import Message as Message
from panel.fleet.wire_engine import MAX_CODE as MAX_CODE
from panel.fleet.wire_engine import CheckTask as CheckTask
from panel.fleet.wire_engine import Command as Command
from panel.fleet.wire_engine import EngineTask as EngineTask
from panel.fleet.wire_models import ConvertTask as ConvertTask
from panel.fleet.wire_models import DeleteTask as DeleteTask
from panel.fleet.wire_models import DownloadFile as DownloadFile
from panel.fleet.wire_models import DownloadTask as DownloadTask
from panel.fleet.wire_models import PackageTask as PackageTask
from panel.fleet.wire_models import SidecarTask as SidecarTask
from panel.fleet.wire_serving import Serving as Serving

WIRE_VERSION = 1
WIRE_HEADER = "Berth-Wire"
INSTANCE_HEADER = "Berth-Instance"  # "<seat>.<start>", see agent/seat.py
MAX_LOG_CHUNK = 1 << 20  # bytes of one log upload
MAX_REPORT_JOBS = 500
MAX_GPUS = 256
MAX_ITEMS = 20_000  # of a result
PORT_PLACE = "{port}"  # the argv element that the agent replaces by the port it picked


# --- work: panel → agent -------------------------------------------------------------------------------------------


class ScanTask(Message):
    """List the models below these folders; headers are read, weights are not. Result: list of ScannedModel dicts.

    The usual folders of the host (Hugging Face cache, ~/models, the agent's own list) are always scanned too.
    """

    kind: Literal["scan"] = "scan"
    roots: list[str] = []


class RuntimesTask(Message):
    """Find engines on PATH, in the managed folder, and where an admin said. Result: list of FoundRuntime dicts.

    `folders` are a venv, a conda environment, or a folder that holds many of them (also a conda's own folder).
    """

    kind: Literal["runtimes"] = "runtimes"
    executables: list[str] = []
    folders: list[str] = []


class InstallTask(Message):
    """Install an engine into a venv of its own below the host's managed folder. Result: one FoundRuntime dict.

    `version` is "" for the newest, "nightly" for the newest pre-release, else exact. `name` is the folder's name, ""
    for `<engine>-<variant>-<version>`, numbered when that one is taken. With `wheel_folder` (on the host) nothing is
    fetched. Addresses with credentials travel in `secret_env` (BERTH_PIP_INDEX_URL, BERTH_PIP_EXTRA_INDEX_URL,
    BERTH_PIP_FIND_LINKS, several parted by blanks; BERTH_PIP_PROXY), never in the order's other fields.
    `verify_start`: start a tiny model and ask it once (on a CPU only).
    """

    kind: Literal["install"] = "install"
    engine: Literal["vllm"] = "vllm"
    variant: Literal["cpu", "cuda"]
    version: str = ""
    extras: list[Literal["gguf", "flashinfer"]] = []
    index_url: str = ""
    extra_index_urls: list[str] = []
    find_links: list[str] = []
    proxy: str = ""
    wheel_folder: str = ""
    name: str = ""
    verify_start: bool = False
    secret_env: dict[str, str] = {}


class RemoveTask(Message):
    """Delete an installed engine: `executable` must lie in a venv that the host's managed folder holds. No items."""

    kind: Literal["remove"] = "remove"
    executable: str


AnyTask = (
    EngineTask
    | CheckTask
    | ScanTask
    | RuntimesTask
    | InstallTask
    | RemoveTask
    | PackageTask
    | DownloadTask
    | DeleteTask
    | SidecarTask
    | ConvertTask
)
Task = Annotated[AnyTask, Field(discriminator="kind")]


class JobOrder(Message):
    """One job that should be on the host. A `stop` stays listed until the panel has seen its end.

    `begun`: the panel has seen its process. A host that knows nothing of it has a disk of an earlier day; it says so
    (ended, host_restarted) and starts nothing, since a run is one process for ever.
    """

    id: str
    desired: Literal["run", "stop"] = "run"
    grace_s: float = 30.0  # between TERM and KILL
    trace: str = ""  # of the request that wanted it so, for log lines and records only
    begun: bool = False
    task: Task


class DoorOrder(Message):
    """Keep a door open for the panel (not on its own machine). `accepts` are SHA-256 (hex) of the panel's keys for it.

    Two while a key is being replaced; the keys themselves never travel in the work.
    """

    accepts: list[str] = Field(default=[], max_length=4)


class Work(Message):
    """All that should be on the host. `rev` only grows; an older one is ignored."""

    wire: int = WIRE_VERSION
    rev: int
    jobs: list[JobOrder] = []
    door: DoorOrder | None = None


# --- report: agent → panel -----------------------------------------------------------------------------------------


class GpuProcess(Message):
    pid: int
    used_mib: int | None = None
    user: Text = ""
    name: Text = ""
    job_id: Text | None = None  # set when the process belongs to one of our jobs


class GpuFacts(Message):
    """One GPU by NVML. None means that this card or driver does not tell."""

    index: int
    uuid: Text
    name: Text
    total_mib: int
    used_mib: int
    utilisation_pct: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    compute_capability: Text | None = None
    nvlink: Texts | None = None  # uuids of the GPUs that NVLink joins to this one
    processes: Annotated[list[GpuProcess], Cut] = []


class Disk(Message):
    path: Text
    total_mib: int
    free_mib: int


class HostFacts(Message):
    hostname: Text
    os: Text
    kernel: Text
    machine: Text  # x86_64, aarch64
    cpu_model: Text = ""
    cpu_count: int
    cpu_flags: Texts = []  # the ones that matter: avx2, avx512f, avx512_bf16, amx_tile, …
    ram_total_mib: int
    ram_available_mib: int
    disks: Annotated[list[Disk], Cut] = []
    gpus: list[GpuFacts] = Field(default=[], max_length=MAX_GPUS)
    gpu_driver: Text | None = None
    cuda_driver_version: Text | None = None
    gpu_error: Text | None = None  # code why NVML could not be read; None when read or when there is no driver
    python: Text
    boot_time: Time
    boot_id: Text = ""  # of what its processes live in: the kernel's boot, or the container's start
    container: bool = False  # the agent is in a container, so a restart of that one ends its engines too
    agent_started: Time
    model_roots: Texts = []  # the folders that the agent's own settings allow
    asks_engines: Texts = []  # paths that the agent asks of each engine, every few seconds
    engine_folder: Text = ""  # the managed folder: installs go there; its disk is one of `disks`
    allow_install: bool = True  # False: the host's owner forbids installs and removals
    allow_download: bool = True  # False: the host's owner forbids downloads
    allow_delete: bool = True  # False: the host's owner forbids that models are deleted
    # What a start needs beside memory, free now: shared memory, the disks of its log and of what its engine compiles;
    # and how many files a program may open, -1: no limit. None: an older agent, or it cannot be told.
    shm_mib: int | None = None
    log_mib: int | None = None
    cache_mib: int | None = None
    open_files: int | None = None


class Refusal(Message):
    """Why the agent did not do it, as a code with parameters (never a sentence)."""

    code: Text
    params: Params = {}


JobState = Literal["starting", "running", "stopping", "ended", "refused"]
JOB_OVER = ("ended", "refused")  # a job in these never moves again


class Progress(Message):
    """How far an install or a download is. `done` of `total` packages, or bytes; 0: not counted.

    `passed` are the phases before this one, since a quick one may be over before it is told.
    `note` is no sentence.
    Phases of an install, in order: checking, downloading, installing, extras, verifying, trying; `note` is a package.
    Of a download: waiting (another one writes there), checking, downloading, verifying, placing; `note` is a file,
    `rate` the bytes per second of the last seconds, `silent_s` for how long no byte has come, `trouble` the code of
    what it tries again because of.
    """

    phase: Text
    done: int = 0
    total: int = 0
    note: Text = ""
    passed: list[Text] = Field(default=[], max_length=20)
    rate: float = 0.0
    silent_s: float = 0.0
    trouble: Text = ""


class JobStatus(Message):
    """What is true of one job now. `ended` means that no process of it is left."""

    id: Text
    kind: Text
    state: JobState
    pid: int | None = None
    port: int | None = None
    listening: bool = False  # the port accepts a connection
    argv: list[str] = Field(default=[], max_length=MAX_LIST)  # as executed, {port} filled in
    started_at: Time | None = None
    ended_at: Time | None = None
    exit_code: int | None = None
    signal: int | None = None
    stop_asked: bool = False  # the end came after a stop of ours
    killed: bool = False  # the grace ran out and KILL was sent
    refusal: Refusal | None = None
    leftover_pids: Annotated[list[int], Cut] = []  # processes that did not end; only while stopping
    processes: int = 0
    rss_mib: int = 0
    own_mib: int | None = None  # of it what nobody else holds: so much is free when it ends. None: an older agent
    read_bytes: int = 0  # bytes read by its processes, a sign of life while weights load
    gpu_used_mib: int | None = None
    log_size: int = 0  # bytes written so far (holes count)
    log_hole: tuple[int, int] | None = None  # [from, to) that the disk bound removed
    last_output_at: Time | None = None
    progress: Progress | None = None  # of an install, a download and the like
    serving: Serving | None = None  # of an engine that listens, some seconds old at most
    oom_kills: int | None = None  # processes that the kernel ended for lack of memory while it lived; only at its end
    oom_ago_s: float | None = None  # seconds between the newest of these and its end; they may be another job's
    port_holder: Text = ""  # who listened on its port when it had ended with an error


class DoorFacts(Message):
    """This host's door: where the panel reaches it, what it shows itself by, which keys it takes.

    `certificate` is the SHA-256 (hex) of its certificate in DER; the panel speaks to no other. `problem` is a code when
    there is no door (port_taken, no_certificate, died), with `port` the one that was wanted.
    """

    address: Text = ""
    port: int = 0
    certificate: Text = ""
    accepts: Texts = []
    problem: Text = ""


class Report(Message):
    wire: int = WIRE_VERSION
    agent_version: Text
    instance: Text = ""  # as in INSTANCE_HEADER
    sent_at: Time
    round_trip_s: float | None = None  # of the report before this one, to tell a slow network from a wrong clock
    seq: int = Field(default=0, ge=0, lt=MAX_NUMBER)  # µs since the machine's start: later reports have more
    rev: int  # the newest work revision that this report reflects
    facts: HostFacts | None = None  # None when unchanged within the last seconds
    jobs: list[JobStatus] = Field(default=[], max_length=MAX_REPORT_JOBS)
    door: DoorFacts | None = None  # None where no door is wanted


class ReportReply(Message):
    rev: int
    forget: list[str] = []  # ended jobs whose end, result and whole log the panel has: the host may drop their files


class LogReply(Message):
    size: int  # bytes the panel has; the next upload starts here


class JobResult(Message):
    """The answer of a finished job that is no engine; `refusal` when it could not be made."""

    items: list[dict[str, Any]] = Field(default=[], max_length=MAX_ITEMS)
    refusal: Refusal | None = None


# --- joining -------------------------------------------------------------------------------------------------------


class JoinRequest(Message):
    wire: int = WIRE_VERSION
    code: Text
    hostname: Text
    agent_version: Text


class JoinReply(Message):
    """`again`: this host was there before and has a new key now; its older agent's key has ended."""

    host_id: int
    token: str
    host_name: str = ""
    again: bool = False
    panel_version: str = ""
    install_sources: list[str] | None = None  # what the panel names now; the host takes no other later on


# --- what results hold ---------------------------------------------------------------------------------------------


class FoundRuntime(Message):
    """An engine found on the host. `flags` is its own parser's schema; see panel/fleet/agent/flag_schema.py."""

    engine: Literal["vllm", "sglang", "llamacpp", "ollama"]
    executable: str
    version: str = ""
    python: str = ""
    device: str = ""  # cuda, cpu, rocm, npu, tpu, xpu or "" when unknown
    plugins: list[str] = []
    flags: list[dict[str, Any]] = []
    # managed: in a venv of the managed folder that an install made, so it can be removed; folder: below a named folder
    origin: Literal["path", "named", "folder", "cache", "managed"] = "path"
    refusal: Refusal | None = None  # found, but does not work


class ScannedModel(Message):
    """One model on the host's disk: `facts` is models_catalog.facts.ModelFacts as a dict.

    An item of format "folder" stands for a scanned folder itself, with the problems met there.
    """

    path: str  # folder (Hugging Face) or file (GGUF)
    root: str  # the scanned folder it was found under
    format: Literal["hf", "gguf", "folder"]  # "folder": no model, but the scanned root itself with its problems
    name: str
    size_bytes: int
    files: int
    facts: dict[str, Any] = {}
    problems: list[Refusal] = []  # codes: missing_weights, missing_tokenizer, zero_bytes, bad_header, …
