"""`manage.py agent-wheels`: fetch the agent's locked packages once, so that hosts without an index can join."""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from packaging.markers import Marker, default_environment

from panel import lock
from panel.fleet.joining import agent_bundle

ARCHES = ("x86_64", "aarch64")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
GLIBC = (5, 12, 17, 24, 26, 27, 28, 31, 34)  # the second number of manylinux_2_x, up to what current systems have


class Command(BaseCommand):
    """Needs a package index on this machine; the files go to the folder `wheels` of the data folder."""

    help = "Fetch the packages of the agent for hosts that have no package index."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        here = ".".join(map(str, sys.version_info[:2]))
        parser.add_argument("--python", default=here, choices=PYTHONS, help="the host's Python (default: %(default)s)")
        parser.add_argument("--arch", default="x86_64", choices=ARCHES, help="the host's machine: uname -m")
        parser.add_argument("--find-links", help="a folder with packages to take them from instead of an index")

    def handle(self, *args: Any, **options: Any) -> None:
        python, arch = options["python"], options["arch"]
        tag = f"cp{python.replace('.', '')}-{arch}"
        folder = agent_bundle.wheel_folder(tag)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
            wanted.write(wanted_for(python, arch))
            wanted.flush()
            if subprocess.run(
                download(wanted.name, folder, python, arch, options["find_links"]), check=False
            ).returncode:
                raise CommandError("Not all packages were fetched; what pip said is above.")
        found = agent_bundle.wheels(tag)
        self.stdout.write(f"{len(found)} packages for Python {python} on {arch} are in {folder}.")


def wanted_for(python: str, arch: str) -> str:
    """The agent's requirements for another machine: pip would read their markers as this machine's."""
    environment = {
        **default_environment(),
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": arch,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }
    kept = []
    for entry in lock.read(agent_bundle.lock_text()):
        if "agent" not in entry.groups:
            continue
        first, _, hashes = entry.text.partition("\n")
        pin, _, marker = first.rstrip(" \\").partition(";")
        if not marker or Marker(marker).evaluate(environment):
            kept.append(f"{pin.strip()} \\\n{hashes}\n")
    return "".join(kept)


def download(wanted: str, folder: Path, python: str, arch: str, links: str | None) -> list[str]:
    """pip's command line. Only wheels: nothing is built, and nothing of a package runs."""
    platforms = [f"manylinux_2_{n}_{arch}" for n in GLIBC] + [f"manylinux2014_{arch}", f"linux_{arch}"]
    if arch == "x86_64":
        platforms += ["manylinux2010_x86_64", "manylinux1_x86_64"]
    argv = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    argv += ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
    for abi in (f"cp{python.replace('.', '')}", "abi3", "none"):
        argv += ["--abi", abi]
    for platform in platforms:
        argv += ["--platform", platform]
    argv += ["--no-index", "--find-links", links] if links else []
    return [*argv, "--dest", str(folder), "-r", wanted]
