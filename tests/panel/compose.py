"""docker/compose.yml as a program reads it: values filled in, and what each service runs with which settings."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker"
SECRETS = {
    "BERTH_SECRET_KEY": "k7Qw2-e9ZtRb5yXn1Lm8Uc4Va6_Sd0Pf3Gh-Jk2Wq9Er7Ty5Ui1Op8As4Df6",
    "POSTGRES_PASSWORD": "aB3-dE5_fG7hJ9",
}


class Absent(Exception):
    """A value that the file asks for (`${NAME:?why}`) is not there."""


def example() -> dict[str, str]:
    """docker/.env of someone who copied the example and filled in what is empty."""
    text = (FOLDER / "env.example").read_text(encoding="utf-8")
    return {**dict(re.findall(r"^([A-Z_]+)=(.*)$", text, flags=re.MULTILINE)), **SECRETS}


def fill(text: str, values: dict[str, str]) -> str:
    """`${NAME}`, `${NAME:-default}` and `${NAME:?why}`, as compose fills them in."""

    def one(found: re.Match[str]) -> str:
        name, kind, rest = found.groups()
        if value := values.get(name, ""):
            return value
        if kind == ":?":
            raise Absent(f"{name}: {rest}")
        return rest or "" if kind == ":-" else ""

    return re.sub(r"\$\{(\w+)(?:(:[-?])([^}]*))?\}", one, text)


def _filled(node: Any, values: dict[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _filled(value, values) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, values) for value in node]
    return fill(node, values) if isinstance(node, str) else node


def image_environment(name: str) -> dict[str, str]:
    """What the image's ENV lines give, without PATH."""
    text = re.sub(r"\\\n", " ", (FOLDER / f"{name}.Dockerfile").read_text(encoding="utf-8"))
    pairs = [
        pair.split("=", 1) for line in re.findall(r"^ENV (.*)$", text, flags=re.MULTILINE) for pair in line.split()
    ]
    return {key: value for key, value in pairs if key != "PATH"}


@dataclass(frozen=True)
class Service:
    name: str
    spec: dict[str, Any]
    values: dict[str, str]

    @property
    def command(self) -> list[str]:
        command: list[str] = self.spec["command"]
        return command

    @property
    def environment(self) -> dict[str, str]:
        """Image, then env_file, then the service's own, the last one wins."""
        ours = "build" in self.spec
        return {
            **(image_environment("panel") if ours else {}),
            **(self.values if self.spec.get("env_file") else {}),
            **self.spec.get("environment", {}),
        }

    @property
    def health(self) -> list[str]:
        kind, *argv = self.spec["healthcheck"]["test"]
        assert kind == "CMD", f"{self.name}: no shell in a health check"
        return list(argv)

    @property
    def signal(self) -> str:
        return str(self.spec.get("stop_signal", "SIGTERM"))

    @property
    def grace_s(self) -> float:
        return float(str(self.spec.get("stop_grace_period", "10s")).removesuffix("s"))


class Compose:
    """The file with these values; raises Absent."""

    def __init__(self, values: dict[str, str]) -> None:
        self.values = values
        self.raw: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yml").read_text(encoding="utf-8"))
        self.file = _filled(self.raw, values)

    def service(self, name: str) -> Service:
        return Service(name, self.file["services"][name], self.values)

    @property
    def services(self) -> dict[str, Service]:
        return {name: self.service(name) for name in self.file["services"]}

    @property
    def ours(self) -> dict[str, Service]:
        """Those that run the panel's image."""
        return {name: one for name, one in self.services.items() if "build" in one.spec}
