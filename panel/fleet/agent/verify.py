"""Prove that an installed engine works: it imports, is the version and device that was wanted, tells its flags, and
(on a CPU) starts a tiny model and answers once. Problems are SetupProblem `verify_failed` with the line that shows it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from panel.fleet.agent import sample_model, tiny_model
from panel.fleet.agent.flag_schema import probe_env, probe_runtime
from panel.fleet.agent.install_pip import Teller, run
from panel.fleet.agent.provision import SetupProblem, read_marker, signal_name

PROBE_S = 300.0
START_S = 600.0
CAUSE_S = 3.0
NAME = "check"


def failed(what: str, line: str, *, signal: str = "") -> SetupProblem:
    """`what`: import, version, device, torch, launcher, start, answer."""
    reason = f"it was ended by {signal}" if signal else line
    if signal == "SIGILL":
        reason += ": it has no kernels for this CPU"
    return SetupProblem(
        "verify_failed",
        f"The installed vLLM does not work: {reason}",
        "Look at the log; another version may work.",
        what=what,
        line=line[:500],
        signal=signal,
    )


def described(executable: Path, teller: Teller, *, version: str, variant: str) -> dict[str, Any]:
    """What the engine says of itself (flag_schema), when that is what was wanted. Raises SetupProblem."""
    teller.say(f"Asking {executable} for its version and its flags …")
    found = probe_runtime(executable, PROBE_S)
    if not found["ok"]:
        teller.say(f"It did not answer ({found['code']}): {found['detail']}")
        ended = found["detail"] if found["code"] == "signal" else ""
        raise failed("import", found["detail"] or found["code"], signal=ended)
    teller.say(
        f"vLLM {found['distribution']}, device {found['device'] or 'unknown'}, torch {found['torch'] or 'unknown'}, "
        f"Python {found['python']}, {len(found['flags'])} flags"
    )
    if found["distribution"] != version:
        raise failed("version", f"{found['distribution']} instead of {version}")
    if variant == "cpu" and found["torch"] and not found["torch"].endswith("+cpu"):
        raise failed("torch", f"torch {found['torch']} is no build for the CPU")
    # A host without a free GPU names no device; then only another device than the wanted one speaks against it.
    if found["device"] != variant and (variant == "cpu" or found["device"]):
        raise failed("device", f"device {found['device'] or 'unknown'} instead of {variant}")
    return found


def launches(executable: Path, teller: Teller, keep: Sequence[int] = ()) -> None:
    """`vllm --version` ends well: the command itself works. Raises SetupProblem."""
    code, output = run([str(executable), "--version"], teller, env=probe_env(), timeout_s=PROBE_S, keep=keep)
    if code != 0:
        lines = output.strip().splitlines() or ["no output"]
        raise failed("launcher", lines[-1], signal=signal_name(-code) if code < 0 else "")


# --- the start of a tiny model ----------------------------------------------------------------------------------------


def model_for(managed: Path, scratch: Path) -> Path:
    """The sample model when it lies there, else one of random weights, made in milliseconds."""
    folder, _ = sample_model.folders(managed)
    if read_marker(folder) == sample_model.marker_content():
        return folder
    return tiny_model.make(scratch / "model")


def answers(executable: Path, model: Path, teller: Teller, *, timeout_s: float = START_S) -> str:
    """Start the engine on this model, ask for one token, stop it. Returns the answer; raises SetupProblem."""
    with tempfile.TemporaryDirectory(prefix="berth-check-") as scratch:
        out = Path(scratch, "out")
        port, key = _free_port(), secrets.token_hex(16)
        argv = [str(executable), "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
        argv += ["--served-model-name", NAME, "--max-model-len", "128", "--max-num-seqs", "1", "--enforce-eager"]
        argv += ["--dtype", "float16"]
        env = probe_env() | {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_API_KEY": key}
        env |= {"BERTH_JOB": os.environ["BERTH_JOB"]} if os.environ.get("BERTH_JOB") else {}
        teller.say(f"$ {' '.join(argv)}")
        with out.open("wb") as stdout:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=subprocess.STDOUT,
                env=env | {"VLLM_LOGGING_LEVEL": "INFO"},
                cwd=scratch,
                start_new_session=True,
            )
        try:
            return _ask_until(child, out, port, key, teller, time.monotonic() + timeout_s)
        finally:
            _end(child)
            _copy(out, teller)


def _ask_until(child: subprocess.Popen[bytes], out: Path, port: int, key: str, teller: Teller, deadline: float) -> str:
    what = "start"
    while time.monotonic() < deadline:
        if child.poll() is not None:
            ended = signal_name(-child.returncode) if child.returncode < 0 else ""
            raise failed(what, error_line(out) or f"exit code {child.returncode}", signal=ended)
        try:
            status, body = _ask(port, key, max(1.0, deadline - time.monotonic()))
            if status == 200:
                text = _answer(body)
                teller.say(f"It answered: {text!r}")
                return text
            if status != 503:
                said = f"HTTP {status}: {body[:300].decode('utf-8', 'replace')}"
                raise failed("answer", _cause(child, out) or said)
        except ConnectionRefusedError:  # not listening yet
            time.sleep(0.2)
        except (ConnectionError, TimeoutError):  # it took the question, and then nothing came
            what = "answer"
            time.sleep(0.2)
    raise failed(what, error_line(out) or "It did not answer in time.")


def _ask(port: int, key: str, timeout_s: float) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=min(timeout_s, 120.0))
    try:
        body = json.dumps({"model": NAME, "prompt": "Hello", "max_tokens": 1, "temperature": 0})
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", body, headers)
        reply = connection.getresponse()
        return reply.status, reply.read(1 << 20)
    except http.client.HTTPException as exc:
        raise ConnectionError(str(exc)) from exc
    finally:
        connection.close()


def _answer(body: bytes) -> str:
    try:
        reply = json.loads(body)
        text, count = reply["choices"][0]["text"], reply["usage"]["completion_tokens"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise failed("answer", body[:300].decode("utf-8", "replace")) from None
    if not isinstance(text, str) or count != 1:
        raise failed("answer", f"{count} tokens: {text!r}"[:300])
    return text


def _cause(child: subprocess.Popen[bytes], out: Path) -> str:
    """What the log says behind a bad answer; the answer may come a moment before it."""
    end = time.monotonic() + CAUSE_S
    while not own_error(out) and time.monotonic() < end:
        if child.poll() is not None:
            break
        time.sleep(0.1)
    return own_error(out)


def own_error(out: Path) -> str:
    """The first line that names an exception of its own; "" for none."""
    named = (line for line in _lines(out) if "Error:" in line and "Engine core initialization failed" not in line)
    return next(named, "")[:500]


def error_line(out: Path) -> str:
    """The first exception, else the last line that says something."""
    return own_error(out) or (_lines(out)[-1:] or [""])[0][:500]


def _lines(out: Path) -> list[str]:
    return [line.strip() for line in out.read_text("utf-8", "replace")[-(1 << 20) :].splitlines() if line.strip()]


def _copy(out: Path, teller: Teller) -> None:
    """Its output into the log of the install, bounded."""
    for line in out.read_text("utf-8", "replace")[-(256 << 10) :].splitlines():
        teller.say(line)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.terminate()  # it ends its own children in order; a signal to all of them would look like a crash in the log
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
