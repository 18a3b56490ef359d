"""`python -m panel.fleet.agent --dir DIR`: run this host's agent; see docs/agent.md."""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from panel.fleet.agent import config, door_process, loglines, seat
from panel.fleet.agent.files import Registry
from panel.fleet.agent.jobs import Jobs
from panel.fleet.agent.journal import Busy, Journal
from panel.fleet.agent.version import VERSION

log = logging.getLogger("agent")

M_ARENA_MAX = -8
STOP_ALL_S = 120.0  # beyond the longest grace


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m panel.fleet.agent", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="folder with agent.json; jobs and logs live there too")
    parser.add_argument("--stop-all", action="store_true", help="stop every job of this folder, then leave")
    parser.add_argument("--grace", type=float, help="with --stop-all: seconds between TERM and KILL")
    parser.add_argument("--join", metavar="URL", help="join the panel at URL with a one-time code")
    parser.add_argument("--code", help="with --join: the one-time code (or set BERTH_JOIN_CODE)")
    parser.add_argument("--ca-file", help="with --join: the certificate authority of the panel's certificate")
    parser.add_argument("--pin", help="with --join: the panel's own certificate, as sha256:…")
    parser.add_argument("--plain-http", action="store_true", help="with --join: go without TLS; only on a trusted wire")
    parser.add_argument("--check", action="store_true", help="ask the panel whether it knows this host")
    parser.add_argument("--leave", action="store_true", help="tell the panel that this host is taken away")
    parser.add_argument("--update", action="store_true", help="fetch the panel's version of the agent and install it")
    parser.add_argument("--version", action="version", version=VERSION)
    return parser.parse_args(argv)


def stop_all(folder: Path, grace_s: float | None) -> int:
    """Stop every job by the journal alone, and the door. 0 when nothing is left, 1 when processes remain."""
    door_process.end(folder)
    if not (folder / "jobs").is_dir():
        return 0
    journal = Journal(folder)
    journal.lock(wait_s=10.0)
    if (folder / "agent.json").exists():
        settings = config.load(folder, with_panel=False)
    else:
        settings = config.Config(folder=folder)
    jobs = Jobs(journal, Registry(settings))
    jobs.adopt()
    jobs.stop_all(grace_s)
    longest = max((job.record.grace_s for job in jobs.living()), default=0.0)
    end = time.monotonic() + longest + STOP_ALL_S
    while jobs.living() and time.monotonic() < end:
        _, due = jobs.tick()
        time.sleep(min(due, 0.2))
    left = sorted(ident.pid for job in jobs.living() for ident in job.leftover)
    for job in jobs.living():
        log.error("job %s could not be stopped; processes left: %s", job.record.id, left)
    return 1 if jobs.living() else 0


def run(folder: Path) -> int:
    from panel.fleet.agent.loop import Agent

    settings = config.load(folder)
    journal = Journal(folder)
    journal.lock(wait_s=2.0)
    settings = replace(settings, instance=seat.instance(folder))
    # A few threads with small needs: without this each would keep a heap of its own.
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
    agent = Agent(settings, journal)
    gc.collect()
    gc.freeze()
    agent.run()
    log.info("the agent ends; jobs go on")
    agent.leave()
    logging.shutdown()
    # The other threads may wait in a call for a long time; nothing of theirs is lost.
    os._exit(0)


def act(args: argparse.Namespace, folder: Path) -> int:
    """The one thing that was asked for; without a word about it, run."""
    if args.stop_all:
        return stop_all(folder, args.grace)
    if not (args.join or args.check or args.leave or args.update):
        return run(folder)
    from panel.fleet.agent import join

    if args.join:
        code = args.code or os.environ.get("BERTH_JOIN_CODE", "")
        panel = join.Panel(args.join, args.ca_file, args.pin or "", args.plain_http)
        say(join.join(folder, panel, code).host_name)
        return 0
    if args.update:
        return join.update(folder)
    return join.leave(folder) if args.leave else join.check(folder)


def say(text: str) -> None:
    """For scripts, on standard output; everything else goes to standard error."""
    sys.stdout.write(text + "\n")


def main(argv: list[str]) -> int:
    args = parse(argv)
    loglines.set_up(os.environ)
    folder = args.dir.expanduser().absolute()
    try:
        return act(args, folder)
    except config.ConfigError as exc:
        log.error("%s", exc)
        return 2
    except OSError as exc:  # of its folder: a full or read-only disk, or one of another user
        log.error("The agent cannot work in %s: %s", folder, exc)
        return 4
    except Busy:
        log.error("An agent already runs for %s; stop it first.", folder)
        return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
