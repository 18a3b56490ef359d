"""Seventeen ways in which a real engine fails to start, made to happen: what is said of each, and whether it helps.

Each row is one failing start of real vLLM: through a whole Berth where that lets one happen, else as a process of its
own, beside the sentence by which Berth refuses the same before it starts anything. Then the first fix that the page
offers is applied, and the second start has to answer.
"""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from deployments import story
from models_catalog import services as catalog
from models_catalog.models import Copy
from panel.fleet.agent import sample_model
from panel.fleet.models import Runtime
from tests.e2e.stack import Stack
from tests.engine import tiny
from tests.engine.lab import Lab, Outcome, Raw, Story, together, waits
from tests.waiting import until

pytestmark = pytest.mark.engine
LONG = 1_500_000  # positions: more than 1 GiB of memory for tokens holds of this model, whose tokens take 1 KiB each


@dataclass(frozen=True)
class Row:
    """`root` is a pattern of the line that proves it, `fix` of the first fix as the page says it; `refusal` of the
    sentence by which Berth refuses the same. `mended`: the second start has to be ready. `phase` is a pattern, too: a
    signal comes a moment after what was waited for. `says` is in the sentence that has the line's numbers.
    """

    name: str
    story: Callable[[Lab, Path], Story]
    code: str
    phase: str
    root: str
    fix: str
    refusal: str = ""
    mended: bool = True
    make: Callable[..., Path] = tiny.model
    config: tuple[tuple[str, Any], ...] = ()
    says: str = ""


# --- files ------------------------------------------------------------------------------------------------------------


def damaged(damage: Callable[[Path], None]) -> Callable[[Lab, Path], Story]:
    """Files that were whole when they were looked at are damaged before the start, and made whole by hand after it."""

    def told(lab: Lab, model: Path) -> Story:
        whole = {path: path.read_bytes() for path in model.iterdir()}
        row = lab.deploy(model)
        damage(model)
        said = yield from lab.fails(row)
        for path, data in whole.items():
            path.write_bytes(data)
        return (yield from lab.again(row, said))

    return told


def moved_away(lab: Lab, model: Path) -> Story:
    """The folder is not there any more. The engine takes its path for the name of a repository."""
    said = yield from Raw(lab, model.name, model.with_name("not-there")).fails()
    row = lab.deploy(model)
    away = model.rename(lab.folder / "away")
    yield from lab.fails(row)
    refusal = lab.refusal(row)
    away.rename(model)
    return (yield from lab.again(row, said, refusal))


def folder_of_gguf(lab: Lab, model: Path) -> Story:
    """The folder of a GGUF file instead of the file. Berth gives the file; but that needs a GPU."""
    folder = lab.folder / model.name
    folder.mkdir()
    (folder / "model.Q4_1.gguf").symlink_to(sample_model.folders(lab.berth.engines)[1])
    said = yield from Raw(lab, model.name, folder).fails(gguf_files=("model.Q4_1.gguf",))
    return Outcome(said, offered=said.fixes[0]["text"])


# --- options ----------------------------------------------------------------------------------------------------------


def with_options(**options: Any) -> Callable[[Lab, Path], Story]:
    """Options that Berth lets through, since only the engine knows better."""

    def told(lab: Lab, model: Path) -> Story:
        row = lab.deploy(model, options=options)
        said = yield from lab.fails(row)
        return (yield from lab.again(row, said))

    return told


def no_adapter(lab: Lab, model: Path) -> Story:
    """An adapter whose folder is not there."""
    options = {"enable_lora": True, "lora_modules": [f"lake={model.with_name('no-adapter')}"]}
    return (yield from with_options(**options)(lab, model))


def refused(*flags: str, **options: Any) -> Callable[[Lab, Path], Story]:
    """Options with which Berth starts nothing."""

    def told(lab: Lab, model: Path) -> Story:
        said = yield from Raw(lab, model.name, model, *flags).fails(options=options, gpus=0, numa_nodes=1)
        row = lab.deploy(model, options=options)
        yield from lab.fails(row)
        return (yield from lab.again(row, said, lab.refusal(row)))

    return told


def removed(lab: Lab, model: Path) -> Story:
    """Flags that left the engine long ago: Berth leaves out those that do nothing any more, by itself."""
    flags = ["--swap-space", "4", "--disable-log-requests"]
    said = yield from Raw(lab, model.name, model, *flags).fails()
    row = lab.deploy(model, extra_args=flags)
    outcome = Outcome(said, offered=said.fixes[0]["text"])
    outcome.ready = yield from lab.gets_ready(row)
    return outcome


def unknown(lab: Lab, model: Path) -> Story:
    """No engine of this host knows it: another one has to be installed, which a test does not do."""
    row = lab.deploy(model)
    said = yield from lab.fails(row)
    return Outcome(said, offered=lab.first_fix(row)[1])


# --- from outside -----------------------------------------------------------------------------------------------------


def port_taken(lab: Lab, model: Path) -> Story:
    """Someone takes the port between the host's choice and the engine's bind, which is seconds later."""
    row = lab.deploy(model)
    job = yield from waits(lambda: lab.berth.state(row) == "starting" and row.run.job, "the engine is ordered")

    def port() -> int:
        job.refresh_from_db()
        return int(job.status.get("port") or 0)

    number = yield from waits(port, "the host chose a port")
    with socket.create_server(("127.0.0.1", number)):
        said = yield from lab.fails(row)
    return (yield from lab.again(row, said))


def killed(lab: Lab, model: Path) -> Story:
    """The engine's core is killed while it loads: nobody prints a word about that."""
    row = lab.deploy(model)

    def core() -> psutil.Process | None:
        lab.berth.state(row)
        if "Starting to load model" not in lab.log_now(row):
            return None
        return next((process for process in lab.processes_of(row) if "EngineCor" in process.name()), None)

    (yield from waits(core, "it loads")).kill()
    said = yield from lab.fails(row)
    return (yield from lab.again(row, said))


def illegal(lab: Lab, model: Path) -> Story:
    """What a processor without the engine's instructions does to it: a signal, and an empty log."""
    engine = Raw(lab, model.name, model)
    yield from waits(lambda: psutil.Process(engine.process.pid).num_threads() > 1, "it imports its libraries")
    engine.process.send_signal(signal.SIGILL)
    said = yield from engine.fails()
    return Outcome(said, offered=said.fixes[0]["text"])


NO_SUCH = (("architectures", ["TinyLakeForCausalLM"]), ("model_type", "llama"))
ROWS = (
    Row("truncated", damaged(lambda folder: tiny.cut(folder / tiny.WEIGHTS)),
        "load.corrupt_file", "load", "SafetensorError", "Download this file again"),
    Row("shard", damaged(lambda folder: (folder / tiny.SHARDS[1]).unlink()),
        "load.missing_shard", "load", tiny.SHARDS[1], "Download this file again", make=tiny.sharded),
    Row("memory", refused("--max-model-len", str(LONG), max_model_len=LONG),
        "mem.kv_lt_len", "kvcache", "KV cache is needed", "", "need more than a KV cache of 1 GiB", says="GiB were left", config=(("max_position_embeddings", LONG),)),
    Row("adapter", no_adapter, "lora.not_found", "http", "no-adapter", "Leave out “lora_modules”"),
    Row("killed", killed, "run.worker_died", "load|profile|kvcache", "Failed core proc", "Start again unchanged"),
    Row("tokenizer", damaged(lambda folder: (folder / "tokenizer.json").unlink()),
        "tok.missing_files", "tokenizer", "tokenizer", "Download the tokenizer"),
    Row("no-config", damaged(lambda folder: (folder / "config.json").unlink()),
        "config.json_missing", "config", "Invalid repository ID", "Download the missing files"),
    Row("bad-config", damaged(lambda folder: tiny.cut(folder / "config.json")),
        "config.json_invalid", "config", "JSONDecodeError", "Download config.json again"),
    Row("context", refused("--max-model-len", "4096", max_model_len=4096),
        "config.len_gt_derived", "config", r"\(4096\) is greater", "256", "made for 256", says="4,096 tokens .* for 256"),
    Row("tool-parser", with_options(enable_auto_tool_choice=True, tool_call_parser="hermess"),
        "args.tool_parser_unknown", "args", "hermess", "hermes"),
    Row("port", port_taken, "http.port_in_use", "args", "ddress already in use", "^Start again$"),
    Row("path", moved_away, "hub.repo_id_invalid", "config", "not-there", "", "There is nothing at"),
    Row("heads", refused("--tensor-parallel-size", "3", tensor_parallel_size=3),
        "tp.heads", "config", r"heads \(4\)", "", "do not match the number|heads", says="4 attention heads"),
    Row("removed", removed, "args.unrecognized", "args", "--swap-space", "Leave out swap_space, disable_log_requests"),
    Row("unknown", unknown, "arch.unsupported", "config", "TinyLakeForCausalLM", "newer", mended=False, config=NO_SUCH),
    Row("gguf", folder_of_gguf, "gguf.dir", "config", "Invalid repository ID", "file itself", mended=False),
    Row("sigill", illegal, "env.sigill", "import", "", "build of the engine", mended=False),
)  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(
    berth: Stack, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Outcome | Exception]]:
    """What came of the rows that are asked for: all engines of this module run here."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    names = {found["row"].name for found in params if isinstance(found.get("row"), Row)}
    rows = [row for row in ROWS if row.name in names]
    lab = Lab(berth, tmp_path_factory.mktemp("lab"))
    models = {row.name: row.make(lab.models / row.name, row=row.name, **dict(row.config)) for row in rows}
    works = Runtime.objects.filter(present=True, refusal__isnull=True)
    until(works.exists, timeout=200, why="the engine is known")
    catalog.add_root(berth.host(), str(lab.models), actor=None)
    there = Copy.objects.filter(present=True, path__startswith=str(lab.models))
    until(lambda: there.count() == len(rows), timeout=60, why="the models are in the catalog")
    try:
        yield together({row.name: (lambda row=row: row.story(lab, models[row.name])) for row in rows})
    finally:
        lab.close()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_it_is_explained_and_the_first_fix_helps(row: Row, outcomes: dict[str, Outcome | Exception]) -> None:
    outcome = outcomes[row.name]
    if isinstance(outcome, Exception):
        raise outcome
    said = outcome.told
    assert said.code == row.code, (said, said.log[-3000:])
    assert re.search(row.root, said.root), (said.root, said.log[-3000:])
    assert re.fullmatch(row.phase, said.phase), (said.phase, said.log[-3000:])
    assert said.title and re.search(row.says, said.why), said.why
    assert re.search(row.fix, outcome.offered), outcome.offered
    assert re.search(row.refusal, outcome.refused, re.I), outcome.refused
    assert outcome.ready == row.mended


def test_the_attempts_are_told_as_a_story(outcomes: dict[str, Outcome | Exception]) -> None:
    """A start that a fix led to names the failed one and the fix."""
    clicked = [
        one for one in outcomes.values() if isinstance(one, Outcome) and one.by_click and one.deployment.run.number > 1
    ]
    for outcome in clicked:
        last, *_before = story.of(outcome.deployment.run)
        assert last.run.parent_id and last.run.parent_id != last.run.pk
        refused = {outcome.told.code, "place.none"}  # what the planner refuses has no engine's word for it
        assert last.run.revision.number == 1 or last.why["class"] in refused, last.why
