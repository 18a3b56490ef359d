"""The page of all classes in docs/, made from the rules. `python -m deployments.diagnosis.catalogue` writes it."""

from __future__ import annotations

from pathlib import Path

from deployments.diagnosis.offers import WORDS
from deployments.diagnosis.rule import Remedy, Rule
from deployments.diagnosis.rules import ALL, causes_of, versions_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "diagnosis.md"
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "ollama": "Ollama"}
HEAD = """# Why a start failed: all classes

This page is made from the rules in `deployments/diagnosis/rules/` (`python -m deployments.diagnosis.catalogue`); a
test fails when it is out of date.

`manage.py diagnose LOG [--engine vllm] [--exit-code N | --signal NAME] [--json]` reads a log without a database and
says the class, the line that proves it, the phase and what helps. `LOG` may be `-` for standard input. What
PowerShell saved as UTF-16 is read, too.

How the cause is chosen:

1. The earliest fatal error counts, not the last exception. Lines that only report another error are never a cause.
   A process that lost its connection to another tells less than anything that this one, or the system, says of its end,
   be that above or below (`diagnosis/root.py`).
2. Engines print some causes beside the exception (NCCL, compilers, a refused setting); then that line is the proof.
3. Where the log says nothing, the exit code or the signal decides. A stop that was asked for is no failure.
4. Of several starts in one log the newest that failed is explained.
5. What is not sure is called not recognised, and the first error is shown as it is.

A log is read once and to its end, whatever its size: of one that is longer than 128 MiB the first and the newest 64 MiB
(`deployments/run_log.py`). What a dead engine's server repeats of each request does not displace the cause above it.

What a failed start's page says, in this order: the sentence, why, the line that proves it (a link to that line of the
log, which is marked there however long the log is), the step, what changed since the last start that worked, how sure
this is ("certain" from 0.9, "very likely" from 0.8, "likely" from 0.6). Beside it stands what it was not: by what was
measured (`diagnosis/excluded.py`: strangers on the GPU, files, driver, settings, port, disks, memory, shared memory,
processor; each only where the start came past it and the cause has nothing to do with it), and what looked like a
cause in the log and only follows from it. Lines are counted as in the log that is downloaded. Where nothing was
recognised, the first error is shown with other starts of the team that began to fail with the same words
(`diagnosis/alike.py`), and what helped there.

The sentence has the numbers of the line (`rules/numbers.py`: two bars where something was needed and less was there),
and they are marked in it (`diagnosis/told.py`). "What it said of itself" are versions, sizes and times of the log, and
the few warnings of an engine that change how fast or how well it answers (`diagnosis/notices.py`), with their lines.
Programs read all of it as `diagnosis` of a start (`GET /api/v1/runs/{id}`). Commands speak Chinese where `LC_ALL`,
`LC_MESSAGES` or `LANG` begins with zh.

"Was this right?" is answered by whoever may start and stop deployments: yes or no and a line of text, one answer a
start, changed or taken back at will, in the record of who did what. The page "Failures" counts all failed starts,
also those that never had a place, by class: how often, when last, how many the very next start mended, and by which
change (`models.Failure`). With the answers it can be saved as CSV or JSON, there and by `manage.py failures`;
`GET /api/v1/failures` gives the numbers, `GET /api/v1/failures/runs` the starts with their first errors,
`PUT /api/v1/runs/{id}/verdict` takes an answer.

A start that writes no line for `BERTH_STALL_S` says so while it goes on, with the usual time of its step on that host;
one whose time is over while it stands still failed as `start.hung`.

Rules are held against collected logs, and against failures that happen: `tests/engine/test_failures_real.py` makes real
vLLM (CPU) fail in seventeen ways. Class, line and phase must be right, the first fix of the page is applied, and the
second start has to answer. `make test` runs it where the engine is (`make engine`).

A rule names its class, patterns, phase, texts, fixes, at least two examples and one near miss. To add one, add it to
the file of its engine and family, run the command above and translate its texts (`make messages`). In the tables, a
phase of "–" means that the log tells it; options in `code` get a number from the log, the host and the run's settings.

## From a class to a click

What the panel knows counts beside the log (`deployments/evidence.py`): the settings of the last start that was ready,
memory of the GPUs and the machine before and after with strangers by name, how many processes the kernel ended for lack
of memory while it ran and how long before its end, and who listened on its port (all told by the agent; an older one
tells less). What the host said of itself (driver, disks, instructions of the processor, shared memory and open files,
the last two of an older agent as the engine's own check met them) makes a class more or less sure
(`diagnosis/weighed.py`). It is kept in `Run.diagnosis` with every offer of the class.

The kernel counts for all who share the memory (a cgroup, or the machine), never for one engine. So the count alone
names no cause: it makes a KILL, or a core that vanished without a word, the more certain when it rose within a minute
before the end (`Evidence.oom`). What other runs of that host are known to have lost is taken off first, and a count
of nothing says that it was something else.

When someone looks at the failure, offers become fixes (`deployments/mending/`, pure): a patch of the spec, the same
again, an engine, a package, a repair of the model's files, a permission, something to stop, or a command for the host.
Which of these is decided by an offer's kind, its name and what it is about (`rule.About`), never by its sentence.
An offer that this spec or host cannot use gives none. What the planner or the engine's adapter refused before a start
has fixes too. They are ranked by how often they help, less what they cost; one that needs no walk comes first.
`deployments/remedies.py` then tries each patch by the planner, as it is now: it is shown where a start would take it,
with the planner's own number where only that fits. Nothing of this is kept, since engines, memory and files change.
A look reads the fleet once and tries at most eight patches, however many were proposed.

A click (`POST /deployments/ID/fixes/KEY`, in the API, `manage.py fix NAME first`) makes a revision that differs
by this fix alone and says so (`Revision.why`), and starts it. It is refused with a sentence where the settings were
changed since, where it is being started already, or where the fix is not offered any more. Each start names the failed
one before it (`Run.parent`), and the page tells the chain: what was changed, and how it went.

`fix_once` in a spec (off; “When a start fails” in the form) lets Berth apply the first fix itself, once until it is
ready again, where the class is in `deployments/mending/safe.py` and the fix changes only an option that is named there
(or nothing). It is recorded as Berth's own act, with who switched it on.
"""

COLUMNS = "| class | phase | versions | what it means | what helps |\n|---|---|---|---|---|\n"


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for engine, name in ENGINES.items():
        rules = sorted((rule for rule in ALL if rule.engine == engine), key=lambda rule: rule.code)
        parts.append(f"\n## {name} ({len(rules)} classes)\n\n{COLUMNS}")
        parts += [_row(rule) for rule in rules]
    return "".join(parts)


def _row(rule: Rule) -> str:
    helps = "; ".join(dict.fromkeys(_help(remedy) for remedy in rule.remedies)) or "–"
    cells = (
        f"`{rule.code}`",
        rule.phase or "–",
        versions_of(rule) or "–",
        f"**{rule.title}.** {rule.why}{_causes(rule)}",
        helps,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _causes(rule: Rule) -> str:
    """Several causes, as one sentence."""
    found = [cause.rstrip(".") for cause in causes_of(rule)]
    return f" It may come from: {'; '.join(found)}." if found else ""


def _help(remedy: Remedy) -> str:
    thing = "package" if remedy.kind == "package" else "option"
    named = "the option that alone needs it" if remedy.name == "=asker" else f"the {thing} in the message"
    name = f"`{remedy.name}`" if not remedy.name.startswith("=") else named
    if remedy.say:
        return remedy.say.rstrip(".")
    if remedy.kind in ("set", "env"):
        known = remedy.to and not remedy.to.startswith("=")
        word = "set_open" if remedy.kind == "set" else "env_open"
        said = WORDS[word if not known else remedy.kind] % {"name": name, "to": f"`{remedy.to}`"}
        return said.rstrip(".")
    return (WORDS[remedy.kind] % {"name": name}).rstrip(".")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
