"""The examples of docs/api.md are run as they stand, with a real curl against a real web process."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments import portable
from panel.accounts.actor import Actor
from panel.accounts.services import create_token
from panel.api import document
from tests.api.conftest import person
from tests.deployments import builders
from tests.servers import Servers
from tests.web import web_process

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()
CURL = pytest.mark.skipif(shutil.which("curl") is None, reason="CURL IS MISSING: install the package curl")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


def commands() -> list[str]:
    """Each command of the shell blocks; a line that ends with a backslash goes on."""
    return [line.strip() for block in blocks("sh") for line in block.replace("\\\n", " ").splitlines() if line.strip()]


@CURL
@pytest.mark.django_db(transaction=True)
def test_every_example_works(servers: Servers, tmp_path: Path) -> None:
    copy = builders.make_copy(builders.make_host())
    row = builders.make_deployment(copy, state="ready")
    run = builders.make_run(row, copy)
    builders.ready(row, run)
    _row, token = create_token(person("admin"), "docs", actor=person("admin"), scope="api:write")
    names = {"BERTH_API_KEY": token, "ARTIFACT": str(copy.artifact_id), "DEPLOYMENT": str(row.pk), "RUN": str(run.pk)}
    assert len(commands()) >= 14
    with web_process(servers, tmp_path) as web:
        for command in commands():
            shown = command.replace("curl -s", "curl -s --noproxy '*' -w '\\n%{http_code}'", 1)
            env = {**os.environ, **names, "BERTH_URL": web.url}
            done = subprocess.run(
                ["sh", "-ec", shown], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
            )
            body, _newline, status = done.stdout.rpartition("\n")
            assert (done.returncode, status[:1]) == (0, "2"), (command, done.stdout, done.stderr)
            if body.startswith("{"):
                json.loads(body)
    exported = yaml.safe_load((tmp_path / "team-chat.yaml").read_text())
    assert exported["deployments"][0]["name"] == "team-chat"


@pytest.mark.django_db
def test_the_file_of_the_page_can_be_applied() -> None:
    copy = builders.make_copy(builders.make_host())
    assert copy.artifact.label == "bfloat16"
    (text,) = blocks("yaml")
    assert [item.action for item in portable.apply(text.encode(), actor=Actor.shell())] == ["created"]
    assert [item.differs for item in portable.apply(text.encode(), actor=Actor.shell())] == [False]


def test_the_schema_is_whole() -> None:
    """Every operation says what it does, every answer and body has words and an example, every body a schema."""
    found = document()
    assert found["openapi"].startswith("3.1") and found["components"]["securitySchemes"]["Token"]["scheme"] == "bearer"
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["summary"] and operation["security"] == [{"Token": []}], where
            assert {"400", "401", "403", "422", "500"} <= set(operation["responses"]), where
            assert ("404" in operation["responses"]) or "{" not in path, where
            assert ("requestBody" not in operation) or "413" in operation["responses"], where
            for code, answer in operation["responses"].items():
                assert answer["description"], where
                assert code == "204" or all("example" in media for media in answer["content"].values()), (where, code)
            for media in operation.get("requestBody", {}).get("content", {}).values():
                assert media["schema"] and "example" in media, where


def test_examples_of_problems_are_problems() -> None:
    import jsonschema_rs

    found = document()
    for operations in found["paths"].values():
        for operation in operations.values():
            for answer in operation["responses"].values():
                for media in answer.get("content", {}).values():
                    schema: dict[str, Any] = {**media["schema"], "components": found["components"]}
                    jsonschema_rs.validate(schema, media["example"])
