"""`python -m panel.alive`: health checks of containers say in one line what is silent. That they pass is seen in the
walk of docker/compose.yml."""

import pytest

from panel import alive
from tests.waiting import free_port


def test_it_says_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert alive.main([]) == alive.main(["web", "loop"]) == alive.main(["door"]) == 2
    assert "web|loop|probe" in capsys.readouterr().err


def test_a_silent_web_process_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BERTH_BIND", f"0.0.0.0:{free_port()}")
    assert alive.main(["web"]) == 1
    assert capsys.readouterr().err.startswith("the web process does not answer on port")


def test_a_broker_that_is_away_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{free_port()}/0")
    assert alive.main(["loop"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("the broker does not answer") and said.count("\n") == 1


def test_a_worker_that_is_not_there_is_one_line(
    broker, servers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REDIS_URL", servers.redis_url)
    monkeypatch.setattr(alive, "ANSWER_S", 0.5)
    assert alive.main(["probe"]) == 1
    assert capsys.readouterr().err.startswith("the worker probe@")


def test_a_wrong_setting_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("BERTH_BIND", "host.example:80")
    assert alive.main(["web"]) == 1
    assert "BERTH_BIND" in capsys.readouterr().err
