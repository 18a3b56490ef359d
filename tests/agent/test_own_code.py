"""Only the code that an admin allowed reaches the engine, whatever becomes of the model's folder."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from panel.fleet.agent import own_code
from panel.fleet.agent.guard import Refused
from panel.fleet.wire import EngineTask

CODE = "class M: pass\n"


def sum_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "own model"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "modeling.py").write_text(CODE)
    (folder / "config.json").write_text(json.dumps({"auto_map": {"AutoModel": "modeling.M"}}))
    (folder / "model.safetensors").write_bytes(b"weights")
    (folder / "1_Pooling" / "config.json").write_text("{}")
    return folder


def order(model: Path, *more: str, code: list[tuple[str, str]] | None = None) -> EngineTask:
    pins = [("modeling.py", sum_of(CODE))] if code is None else code
    argv = ["/e/vllm", "serve", str(model), "--host", "::1", "--port", "{port}", "--trust-remote-code", *more]
    return EngineTask(argv=argv, model_path=str(model), allow_remote_code=True, code=pins)


def seal(task: EngineTask, tmp_path: Path) -> list[str]:
    job = tmp_path / "job"
    job.mkdir(exist_ok=True)
    return own_code.seal(task, job, [tmp_path / "models"])


def refusal(task: EngineTask, tmp_path: Path) -> tuple[str, Any]:
    with pytest.raises(Refused) as caught:
        seal(task, tmp_path)
    found = caught.value.refusal
    return found.code, found.params.get("files") or found.params.get("place")


def test_what_runs_does_not_change_with_the_folder(model: Path, tmp_path: Path) -> None:
    argv = seal(order(model, "--tokenizer", str(model), f"--hf-config-path={model}"), tmp_path)
    made = Path(argv[2])
    assert made.parent == tmp_path / "job" / "model" and made.name == "own model"
    assert argv[-2:] == [str(made), f"--hf-config-path={made}"]
    (model / "modeling.py").write_text("import os; os.system('evil')")
    (model / "config.json").write_text('{"auto_map": {"AutoModel": "/tmp/evil.M"}}')
    (model / "new.py").write_text("evil")
    assert (made / "modeling.py").read_text() == CODE and "evil" not in (made / "config.json").read_text()
    assert (made / "model.safetensors").read_bytes() == b"weights" and (made / "model.safetensors").is_symlink()
    assert (made / "1_Pooling" / "config.json").exists() and not (made / "new.py").exists()


@pytest.mark.parametrize("name", ["modeling.py", "more.py", "SETUP.PY"])
def test_another_or_a_further_file_is_refused_by_name(model: Path, tmp_path: Path, name: str) -> None:
    (model / name).write_text("evil")
    assert refusal(order(model), tmp_path) == ("code_changed", [name])


def test_code_that_is_no_file_of_a_sane_size_is_refused(model: Path, tmp_path: Path) -> None:
    big = "#" * (own_code.MAX_BYTES + 1)
    (model / "big.py").write_text(big)
    pins = [("modeling.py", sum_of(CODE)), ("big.py", sum_of(big))]
    assert refusal(order(model, code=pins), tmp_path) == ("code_changed", ["big.py"])


def test_a_configuration_that_is_too_long_to_be_looked_at_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_code, "MAX_JSON", 60)
    (model / "tokenizer_config.json").write_text(json.dumps({"words": "x" * 60}))
    (model / "other.json").write_text(json.dumps({"words": "x" * 60}))  # a mere list of words stays a link
    assert refusal(order(model), tmp_path) == ("code_changed", ["tokenizer_config.json"])


def test_code_of_a_folder_below_is_out_of_reach(model: Path, tmp_path: Path) -> None:
    (model / "sub").mkdir()
    (model / "sub" / "evil.py").write_text("evil")
    assert not (Path(seal(order(model), tmp_path)[2]) / "sub" / "evil.py").exists()
    (tmp_path / "models" / "beside").mkdir()
    (tmp_path / "models" / "beside" / "evil.py").write_text("evil")
    (model / "linked").symlink_to(tmp_path / "models" / "beside")
    assert not (Path(seal(order(model), tmp_path)[2]) / "linked").exists()


def test_a_link_out_of_the_model_folders_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (model / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(Refused) as caught:
        seal(order(model), tmp_path)
    assert caught.value.refusal.code == "path_not_allowed"


@pytest.mark.parametrize(
    "auto_map",
    [
        {"AutoModel": "org/repo--modeling.M"},
        {"AutoTokenizer": ["modeling.T", "org/repo--tok.T"]},
        {"AutoModel": "sub/modeling.M"},
        {"AutoModel": "/tmp/evil.M"},
        {"AutoModel": "../beside/evil.M"},
    ],
    ids=["repo", "second", "below", "absolute", "beside"],
)
@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
@pytest.mark.parametrize("escaped", [False, True], ids=["plain", "escaped"])
def test_a_configuration_may_name_only_files_beside_it(
    model: Path, tmp_path: Path, auto_map: dict[str, Any], file: str, escaped: bool
) -> None:
    text = json.dumps({"text_config": {"auto_map": auto_map}})
    (model / file).write_text(text.replace("auto_map", "\\u0061uto_map") if escaped else text)
    assert refusal(order(model), tmp_path)[0] == "code_elsewhere"


@pytest.mark.parametrize(
    "more",
    [
        ["--tokenizer", "org/repo"],
        ["--tokenizer=/models/other"],
        ["--tokeniz", "org/repo"],
        ["--hf_config_path", "org/repo"],
        ["--speculative-config", '{"model": "org/draft"}'],
        ["--speculative_config.model", "org/draft"],
        ["--speculative-config.model=org/draft"],
        ["-sc", '{"model": "org/draft"}'],
        ["-sc.model=org/draft"],
        ["--speculative-config", "not json"],
        ["--spec-model", "org/draft"],
    ],
)
def test_the_permission_is_for_this_model_alone(model: Path, tmp_path: Path, more: list[str]) -> None:
    assert refusal(order(model, *more), tmp_path)[0] == "code_elsewhere"


@pytest.mark.parametrize(
    "more",
    [
        ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 4}'],
        ["--tokenizer-mode", "auto"],
        ["--seed", "1", "-tp", "2"],
        ["--spec-tokens", "3"],
    ],
)
def test_other_options_stay(model: Path, tmp_path: Path, more: list[str]) -> None:
    assert seal(order(model, *more), tmp_path)[-len(more) :] == more


def test_it_is_for_models_whose_code_is_allowed(model: Path) -> None:
    task = order(model)
    assert own_code.applies(task)
    assert not own_code.applies(task.model_copy(update={"allow_remote_code": False}))
    assert not own_code.applies(task.model_copy(update={"code": None}))  # a panel that names no files
    assert not own_code.applies(task.model_copy(update={"argv": task.argv[:-1]}))


def test_a_second_try_of_the_same_job_begins_anew(model: Path, tmp_path: Path) -> None:
    seal(order(model), tmp_path)
    (model / "extra.txt").write_text("x")
    assert (Path(seal(order(model), tmp_path)[2]) / "extra.txt").exists()
