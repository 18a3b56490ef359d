"""What is exported, read by what will read it: a shell runs the command, systemd looks at the unit."""

import json
import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.engines.base import Launch, LaunchContext
from deployments.engines.vllm import VLLM
from deployments.exporting.forms import Exported, Form, export
from deployments.spec import DeploymentSpec
from tests.deployments.pasting.test_round_trip import CUDA, KEY, UUIDS

SAYS = """#!/bin/sh
env -0 > "$0.env"
printf '%s\\0' "$@" > "$0.words"
"""
ODD: dict[str, Any] = {
    "options": {"max_model_len": 4096, "hf_overrides": {"a": 'x "y" $HOME `id` 100%', "b c": "it's; true | false & #"}},
    "extra_args": ["--chat-template", '/models/it\'s a "t" $HOME %d.jinja', "--seed", "-5"],
    "env": {"TZ": "a b", "OMP_NUM_THREADS": "4", "NCCL_DEBUG": 'q"$(id)`id` 100%'},
    "restart": {"policy": "on_failure", "max_attempts": 3},
}


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    """It writes down its words and its environment."""
    path = tmp_path / "vllm 0.32" / "vllm"
    path.parent.mkdir()
    path.write_text(SAYS)
    path.chmod(0o755)
    return path


def exported(engine: Path, form: Form) -> tuple[str, Launch]:
    spec = DeploymentSpec(artifact_id=7, gpu_uuids=list(UUIDS[:2]), gpu_count=2, **ODD)
    runtime = replace(CUDA, executable=str(engine))
    made = VLLM().launch(
        LaunchContext(spec=spec, runtime=runtime, served_name="team-chat", api_key=KEY, model_path="/models/a b/Qwen",
                      model_facts={"heads": 16, "dtype": "bfloat16"}, roots=("/models",), gpu_uuids=UUIDS[:2])
    )  # fmt: skip
    return export(Exported("team-chat", spec, made, runtime, "Deployment team-chat", folders=("/models",)), form), made


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_gives_the_engine_the_very_words_and_variables(engine: Path, tmp_path: Path, shell: str) -> None:
    text, made = exported(engine, "command")
    subprocess.run([shell, "-c", text], check=True, cwd=tmp_path, env={"PATH": os.environ["PATH"], "VLLM_API_KEY": "x"})
    words = Path(f"{engine}.words").read_text().split("\0")[:-1]
    assert words == ["8000" if word == "{port}" else word for word in made.argv[1:]]
    told = dict(pair.split("=", 1) for pair in Path(f"{engine}.env").read_text().split("\0") if "=" in pair)
    assert {name: told.get(name) for name in made.env} == made.env
    assert told["CUDA_VISIBLE_DEVICES"] == ",".join(UUIDS[:2]) and told["VLLM_API_KEY"] == "x"
    assert json.loads(words[words.index("--hf-overrides") + 1]) == ODD["options"]["hf_overrides"]


def test_systemd_has_nothing_against_the_unit(engine: Path, tmp_path: Path) -> None:
    text, made = exported(engine, "systemd")
    lines = dict(
        line.split("=", 1) for line in text.replace("\\\n", " ").splitlines() if line[:1].isalpha() and "=" in line
    )
    words = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(lines["ExecStart"])]
    assert words == ["8000" if word == "{port}" else word for word in made.argv]
    assert lines["Restart"] == "on-failure"
    if shutil.which("systemd-analyze") is None:  # then the unit was read here, and no more
        return
    unit = tmp_path / "team-chat.service"
    unit.write_text(text)

    def said(of: Path) -> list[str]:
        argv = ["systemd-analyze", "verify", of]
        done = subprocess.run(
            argv, capture_output=True, text=True, env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
        )
        return [line for line in done.stderr.splitlines() if of.name in line and "XDG" not in line]

    assert not said(unit), text
    broken = tmp_path / "broken.service"
    broken.write_text(text.replace("Restart=on-failure", "Restart=sometimes"))
    assert said(broken)
