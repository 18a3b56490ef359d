"""What Berth is made of, from its lock files: a software bill of materials, and a look whether anything is known of it.

    python -m panel.sbom write [GROUP …]   # CycloneDX 1.6 (JSON) of these groups, all that people install by default
    python -m panel.sbom audit             # known vulnerabilities, by pip-audit; told and left out without a network

Writing needs the standard library and no network, and gives the same file for the same lock files. The audit puts
pip-audit into a venv of its own below .venv, so that what checks the packages is not among them.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
import uuid
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from panel import lock

ROOT = Path(__file__).resolve().parent.parent
VENDOR = ROOT / "static" / "vendor"
SHIPPED = ("agent", "panel", "embedded")
TOOLS = ("pip-audit==2.10.1", "cyclonedx-python-lib[json-validation]>=9,<12")
AUDIT_S = 600
CANNOT = 3  # the audit could not be made; nothing is known to be wrong


# --- the bill ---------------------------------------------------------------------------------------------------------
def bill(groups: Iterable[str] = SHIPPED) -> dict[str, Any]:
    """The bill of these groups and of what the browser gets, as CycloneDX has it."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = set(groups)
    entries = [entry for entry in lock.read(lock.LOCK.read_text(encoding="utf-8")) if entry.groups & wanted]
    components = [*map(_package, entries), *_vendored()]
    components = sorted(_merged(components), key=lambda component: component["bom-ref"])
    panel = {
        "type": "application",
        "bom-ref": f"pkg:generic/{about['name']}@{about['version']}",
        "name": about["name"],
        "version": about["version"],
        "description": about["description"],
        "licenses": [{"license": {"id": about["license"]}}],
    }
    inner = json.dumps(components, sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, panel['bom-ref'] + inner)}",
        "version": 1,
        "metadata": {"component": panel},
        "components": components,
        "dependencies": [{"ref": panel["bom-ref"], "dependsOn": [component["bom-ref"] for component in components]}],
    }


def _package(entry: lock.Entry) -> dict[str, Any]:
    found = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)", entry.pin)
    if found is None:
        raise ValueError(f"requirements.lock: no exact version at {entry.pin!r}")
    name, version = re.sub(r"[-_.]+", "-", found[1]).lower(), found[2]
    where = f"pkg:pypi/{quote(name)}@{quote(version)}"
    # A distribution has a file for every platform; the lock names the hash of each, CycloneDX has one file a component.
    sums = sorted(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry.text))
    return {
        "type": "library",
        "bom-ref": where,
        "name": name,
        "version": version,
        "purl": where,
        "properties": [
            {"name": "berth:groups", "value": " ".join(sorted(entry.groups))},
            *({"name": "berth:sha256", "value": value} for value in sums),
        ],
    }


def _vendored() -> list[dict[str, Any]]:
    """What the browser gets: npm packages whose files lie in static/vendor."""
    found = []
    for line in (VENDOR / "vendor.lock").read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        path, package, version, sha256, _upstream = line.split()
        where = f"pkg:npm/{quote(package)}@{quote(version)}"
        found.append(
            {
                "type": "library",
                "bom-ref": where,
                "name": package,
                "version": version,
                "purl": where,
                "hashes": [{"alg": "SHA-256", "content": sha256}],
                "properties": [{"name": "berth:file", "value": f"static/vendor/{path}"}],
            }
        )
    return found


def _merged(components: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """One component for each reference: a distribution may have an entry for each of several Pythons."""
    found: dict[str, dict[str, Any]] = {}
    for component in components:
        first = found.setdefault(component["bom-ref"], component)
        if first is not component:
            first["properties"] += [item for item in component["properties"] if item not in first["properties"]]
    return list(found.values())


def text(groups: Iterable[str] = SHIPPED) -> str:
    return json.dumps(bill(groups), indent=2, ensure_ascii=False) + "\n"


# --- the audit --------------------------------------------------------------------------------------------------------
class CannotAudit(Exception):
    """The tools or what they ask are out of reach; the text is one sentence."""


def tools(folder: Path) -> Path:
    """The Python of a venv with the tools; made when it is absent. Raises CannotAudit."""
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS]
        if subprocess.run(pip, stderr=subprocess.DEVNULL, check=False, timeout=AUDIT_S).returncode:
            raise CannotAudit("pip-audit cannot be installed from here")
        (folder / "ready").touch()
    return python


def validated(python: Path, bom: str) -> list[str]:
    """What is wrong with a bill by CycloneDX's own schema; empty when it is right."""
    code = (
        "import sys; from cyclonedx.schema import SchemaVersion\n"
        "from cyclonedx.validation.json import JsonStrictValidator\n"
        "wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read())\n"
        "print(wrong or ''); sys.exit(bool(wrong))\n"
    )
    done = subprocess.run([python, "-c", code], input=bom, capture_output=True, text=True, timeout=120, check=False)
    return [] if not done.returncode else [(done.stdout + done.stderr).strip()[-2000:]]


def known_vulnerabilities(python: Path) -> list[str]:
    """`package version: id …` of everything locked that has one. Raises CannotAudit."""
    with tempfile.TemporaryDirectory() as name:
        wanted, said = Path(name, "wanted.txt"), Path(name, "said.json")
        wanted.write_text(lock.select(lock.read(lock.LOCK.read_text(encoding="utf-8")), lock.GROUPS), encoding="utf-8")
        argv = [str(python), "-m", "pip_audit", "--requirement", str(wanted), "--require-hashes", "--disable-pip"]
        argv += ["--format", "json", "--output", str(said), "--progress-spinner", "off", "--timeout", "20"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=AUDIT_S, check=False)
        try:
            found = json.loads(said.read_text(encoding="utf-8"))["dependencies"]
        except (OSError, ValueError, KeyError) as exc:
            last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
            raise CannotAudit(f"the lists of known vulnerabilities cannot be read: {last[:300]}") from exc
    return judged(found)


def judged(found: Iterable[dict[str, Any]]) -> list[str]:
    """The findings of pip-audit's answer. A source that does not know a package says nothing of it: CannotAudit."""
    rows = list(found)
    wrong = [
        f"{row['name']} {row['version']}: {' '.join(v['id'] for v in row['vulns'])}" for row in rows if row.get("vulns")
    ]
    unknown = [row["name"] for row in rows if "skip_reason" in row]
    if not wrong and (unknown or not rows):
        raise CannotAudit(f"{len(unknown)} of {len(rows)} packages are unknown to the source that was asked")
    return wrong


def audit(folder: Path) -> int:
    """0 nothing found, 1 something, CANNOT where it could not be looked."""
    wrong: list[str] = []
    left_out = ""
    try:
        python = tools(folder)
        wrong += [f"the bill of materials: {line}" for line in validated(python, text())]
        wrong += known_vulnerabilities(python)
    except (CannotAudit, subprocess.TimeoutExpired, OSError) as exc:
        left_out = f"!!! LEFT OUT !!! The packages were not audited: {exc}."
    for line in (*wrong, left_out):
        if line:
            sys.stderr.write(f"{line}\n")
    if not wrong and not left_out:
        sys.stdout.write("Nothing is known against the locked packages; the bill of materials is valid.\n")
    return 1 if wrong else CANNOT if left_out else 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m panel.sbom", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    written = commands.add_parser("write", help="print the bill of materials (CycloneDX 1.6, JSON)")
    written.add_argument("groups", nargs="*", metavar="GROUP", default=list(SHIPPED))
    looked = commands.add_parser("audit", help="look for known vulnerabilities, where a network is there")
    looked.add_argument("--must", action="store_true", help="fail where it cannot be looked")
    options = parser.parse_args(argv)
    if options.command == "audit":
        code = audit(ROOT / ".venv" / "audit")
        return 0 if code == CANNOT and not options.must else code  # without a network this is no failure
    if unknown := set(options.groups) - set(lock.GROUPS):
        parser.error(f"no such group: {', '.join(sorted(unknown))}; there are {', '.join(lock.GROUPS)}")
    sys.stdout.write(text(options.groups))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
