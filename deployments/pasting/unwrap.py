"""Finds the engine that a text starts, under sudo, env, nohup, `python -m`, containers and the rest. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from deployments.pasting import containers, units
from deployments.pasting.shell import split
from deployments.pasting.start import Finding, Level, Start, base_name, listed
from deployments.pasting.text import Script, Word, plain

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w{0,100})\+?=")
_POWERSHELL = re.compile(r"\$env:(\w{1,100})(?:=(.*))?", re.IGNORECASE | re.DOTALL)
_LAUNCHER = re.compile(
    r"vllm[ \t]+serve|-m[ \t]+(?:vllm|sglang|llama_cpp)\b|(?:docker|podman|nerdctl)[ \t]+run\b|llama-server"
    r"|\bollama[ \t]+(?:run|serve)"
)
_KEYWORDS = frozenset(listed("then do else { ! & time command builtin"))
DEEPEST = 4

# Programs that start another one: how many words of their own follow, and which of their options take a value.
_WRAPPERS: dict[str, tuple[int, str]] = {
    "sudo": (0, "-u -g -h -p -C -r -t --user --group"),
    "doas": (0, "-u -C"),
    "env": (0, "-u --unset -C --chdir -S"),
    "exec": (0, "-a"),
    "nohup": (0, ""),
    "nice": (0, "-n --adjustment"),
    "ionice": (0, "-c -n -p --class --classdata"),
    "numactl": (0, "-m -N -C -i -p -l --membind --cpunodebind --physcpubind --interleave --preferred"),
    "taskset": (1, ""),
    "setsid": (0, ""),
    "stdbuf": (0, "-i -o -e"),
    "timeout": (1, "-s -k --signal --kill-after"),
    "srun": (0, "-n -N -c -p -G -t -J -w --gres --partition --time"),
    "caffeinate": (0, "-t -w"),
    "unbuffer": (0, ""),
    "uvx": (0, "--from --with --python --index-url --extra-index-url"),
    "proxychains": (0, "-f"),
    "proxychains4": (0, "-f"),
    "start": (0, ""),
}
_RUNNERS = {"uv": ("run",), "poetry": ("run",), "pipenv": ("run",), "pixi": ("run",), "pdm": ("run",)}
_RUNNER_VALUES = frozenset(
    listed(
        """
    -n --name -p --prefix --with --python --extra --group --project --env-file -e
    """
    )
)
_MODULES = {
    "vllm.entrypoints.openai.api_server": ("vllm", ()),
    "vllm.entrypoints.api_server": ("vllm", ()),
    "vllm.entrypoints.cli.main": ("vllm", ("serve",)),
    "vllm": ("vllm", ("serve",)),
    "sglang.launch_server": ("sglang", ()),
    "sglang": ("sglang", ("serve",)),
    "llama_cpp.server": ("llamacpp", ()),
}


@dataclass
class Found:
    """The engine, if the text starts one, what had to be mended, and what else the text would do."""

    start: Start | None = None
    marks: set[str] = field(default_factory=set)
    others: list[str] = field(default_factory=list)  # names of programs that are left out
    more: list[str] = field(default_factory=list)  # further engines that are started
    comments: list[str] = field(default_factory=list)


def find(text: str) -> Found:
    """The first engine that a text starts. Never raises."""
    if (start := units.read(text)) is not None or (start := containers.read_compose(text)) is not None:
        comments = [line.lstrip(" \t#") for line in text[:200_000].split("\n") if line.lstrip().startswith("#")]
        found = Found(comments=comments[:200])
        found.start = _begun(start, found, 0)
        if found.start is not None:
            return found
    script = split(text)
    found = _walk(script)
    if found.start is None and script.comments:  # a prompt of root looks like a comment
        lines = [re.sub(r"^[ \t]*#[ \t]?", "", line) for line in text[:200_000].splitlines()]
        again = _walk(split("\n".join(lines)))
        found = again if again.start is not None else found
    for place in list(_LAUNCHER.finditer(text[:200_000]))[:5] if found.start is None else ():
        again = _walk(split(text[text.rfind("\n", 0, place.start()) + 1 :]))
        if again.start is None:  # in the middle of a sentence
            again = _walk(split(text[place.start() :]))
        if again.start is not None:
            return again
    return found


# --- one command after the other --------------------------------------------------------------------------------------


@dataclass
class _Shell:
    """What the commands before have said."""

    known: dict[str, str] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    cwd: str = ""


def _walk(script: Script) -> Found:
    found = Found(marks=script.marks, comments=script.comments)
    shell = _Shell()
    for command in script.commands:
        start = _one(command.words, shell, found, 0)
        if start is None:
            continue
        if found.start is None:
            found.start = start
        elif found.start.engine == start.engine == "ollama" and _joins(found.start, start):
            continue
        else:
            found.more.append(start.engine)
    return found


def _joins(first: Start, second: Start) -> bool:
    """`ollama serve` and `ollama run` are two halves of one start."""
    has = [any(word in ("run", "pull") for word in start.words[:1]) for start in (first, second)]
    if has == [False, True] or (
        has[0] and second.words[:1] == first.words[:1] and second.words[1:2] == first.words[1:2]
    ):
        first.words = second.words
        first.env |= second.env
    return has != [True, True] or first.words == second.words


def _one(words: list[Word], shell: _Shell, found: Found, depth: int) -> Start | None:
    """The engine that one command starts; else what it says about variables and folders is kept."""
    words = list(words)
    while words and words[0].text in _KEYWORDS and not words[0].quoted:
        words.pop(0)
    env, rest = _assigned(words, shell)
    if not rest:
        shell.known |= env
        return None
    filled = [word.filled(shell.known | env) for word in rest]
    if _settles(filled, rest, shell):
        return None
    start = _launched(filled, env, found, depth)
    if start is None:
        if len(found.others) < 20:
            found.others.append(base_name(filled[0])[:40])
        return None
    outer = {name: shell.known[name] for name in shell.exported if name in shell.known}
    if not start.image:
        start.loose |= set(outer) - set(start.env)
        start.env = {**outer, **start.env}
    start.cwd = start.cwd or shell.cwd
    return start


def _assigned(words: list[Word], shell: _Shell) -> tuple[dict[str, str], list[Word]]:
    """NAME=value before a command."""
    env: dict[str, str] = {}
    at = 0
    while at < len(words):
        first = words[at].parts[0]
        sign = None if first[1] else _ASSIGNMENT.match(first[0])
        if sign is None:
            break
        env[sign[1]] = words[at].filled(shell.known | env)[sign.end() :]
        at += 1
    return env, words[at:]


def _settles(filled: list[str], words: list[Word], shell: _Shell) -> bool:
    """Commands that only prepare: export, set, cd and PowerShell's `$env:NAME = value`."""
    head = filled[0]
    if head in ("export", "declare", "set", "setx", "local", "typeset"):
        for text in filled[1:]:
            name, sign, value = text.partition("=")
            if re.fullmatch(r"[A-Za-z_]\w{0,100}", name):
                shell.known |= {name: value} if sign else {}
                shell.exported.add(name)
        return True
    if head in ("cd", "pushd", "Set-Location"):
        target = filled[1] if len(filled) > 1 else ""
        below = f"{shell.cwd.rstrip('/')}/{target.removeprefix('./')}" if shell.cwd else ""
        shell.cwd = target if target.startswith(("/", "~")) else below
        return True
    if said := _POWERSHELL.fullmatch(words[0].text):
        value = said[2] if said[2] else filled[2] if filled[1:2] == ["="] and len(filled) > 2 else ""
        shell.known[said[1]] = value
        shell.exported.add(said[1])
        return True
    return False


# --- one command ------------------------------------------------------------------------------------------------------


def _launched(words: list[str], env: dict[str, str], found: Found, depth: int) -> Start | None:
    """Take off what stands before the engine."""
    env = dict(env)
    for _turn in range(12):
        if not words or depth > DEEPEST:
            return None
        head = base_name(words[0])
        if (inner := _quoted_command(head, words)) is not None:
            return _inner(inner, env, found, depth)
        if head in ("docker", "podman", "nerdctl", "docker-compose", "nvidia-docker"):
            return _container(words, env, found, depth)
        peeled = _peeled(head, words)
        if peeled is None:
            break
        words = peeled
        while words and (sign := _ASSIGNMENT.match(words[0])):  # env A=1 B=2 …
            env[sign[1]] = words[0][sign.end() :]
            words = words[1:]
    return _engine(words, env)


def _peeled(head: str, words: list[str]) -> list[str] | None:
    """The words after a program that starts another one; None when this is none."""
    if head in _RUNNERS and words[1:2] and words[1] in _RUNNERS[head]:
        return _after_options(words[2:], _RUNNER_VALUES, 0)
    if head in ("conda", "mamba", "micromamba") and words[1:2] == ["run"]:
        return _after_options(words[2:], _RUNNER_VALUES, 0)
    if head not in _WRAPPERS:
        return None
    own, values = _WRAPPERS[head]
    return _after_options(words[1:], frozenset(values.split()), own)


def _after_options(words: list[str], values: Iterable[str], own: int) -> list[str]:
    at = 0
    while at < len(words) and words[at].startswith("-") and len(words[at]) > 1:
        if words[at] == "--":
            at += 1
            break
        at += 2 if words[at] in values else 1
    return words[at + own :]


def _quoted_command(head: str, words: list[str]) -> str | None:
    """The text after `bash -c`, and what tmux or screen shall run."""
    if head in ("bash", "sh", "zsh", "dash", "cmd", "powershell", "pwsh"):
        for at, word in enumerate(words[1:5], 1):
            if re.fullmatch(r"-[a-z]*c|/[cC]|-[Cc]ommand", word) and at + 1 < len(words):
                return words[at + 1] if head in ("bash", "sh", "zsh", "dash") else " ".join(words[at + 1 :])
    if head in ("tmux", "screen") and len(words) > 1:
        last = words[-1]
        if " " in last:
            return last
        for at, word in enumerate(words[1:], 1):
            if base_name(word) in ("vllm", "python", "python3", "llama-server", "ollama", "docker"):
                return " ".join(words[at:])
    return None


def _inner(text: str, env: dict[str, str], found: Found, depth: int) -> Start | None:
    """What a quoted command starts. It was filled already; its own assignments count for it alone."""
    script = split(plain(text))
    found.marks |= script.marks & {"typography", "open_quote"}
    shell = _Shell(known=dict(env), exported=set(env))
    for command in script.commands:
        start = _one(command.words, shell, found, depth + 1)
        if start is not None:
            start.loose -= set(env)
            return start
    return None


def _container(words: list[str], env: dict[str, str], found: Found, depth: int) -> Start | None:
    start = containers.read_run(words, env)
    return _begun(start, found, depth) if start is not None else None


def _begun(start: Start, found: Found, depth: int) -> Start | None:
    """A container or a unit, with the engine that its words begin, or that its image holds."""
    inside = _launched(list(start.words), dict(start.env), found, depth + 1) if start.words else None
    if inside is not None:
        start.engine, start.words, start.executable = inside.engine, inside.words, inside.executable
        start.env = inside.env
        start.mounts += inside.mounts
        return start
    start.engine = containers.engine_of(start.image, start.words)
    if start.engine == "vllm" and start.words[:1] == ["serve"]:
        start.words = start.words[1:]
    if start.engine == "llamacpp" and start.words[:1] in (["--server"], ["-s"]):
        start.words = start.words[1:]
    return start if start.engine else None


def _engine(words: list[str], env: dict[str, str]) -> Start | None:
    """The engine by its program's name."""
    if not words:
        return None
    head, rest = base_name(words[0]), words[1:]
    if re.fullmatch(r"python(\d[\d.]*)?|py|pypy3?", head):
        return _python(rest, env)
    if head == "vllm" and rest[:1] == ["serve"]:
        return Start("vllm", rest[1:], env, executable=words[0])
    if head == "sglang" and rest[:1] == ["serve"]:
        return Start("sglang", rest[1:], env, executable=words[0])
    if head in ("llama-server", "llama-cpp-server") or (head == "server" and re.search(r"[/\\]", words[0])):
        return Start("llamacpp", rest, env, executable=words[0])
    if head == "ollama" and rest[:1] and rest[0] in ("run", "serve", "start", "pull"):
        return Start("ollama", rest, env, executable=words[0])
    return None


def _python(words: list[str], env: dict[str, str]) -> Start | None:
    """`python [options] -m module …`, or a program of an environment that is started by its path."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 2 if words[at] in ("-X", "-W") else 1
    if words[at : at + 1] == ["-m"]:
        module = words[at + 1] if at + 1 < len(words) else ""
        engine, first = _MODULES.get(module, ("", ()))
        rest = words[at + 2 :]
        if not engine or tuple(rest[: len(first)]) != first:
            return None
        return Start(engine, rest[len(first) :], env)
    if at < len(words):
        if base_name(words[at]) == "api_server.py":
            return Start("vllm", words[at + 1 :], env)
        if base_name(words[at]) in ("vllm", "sglang"):
            return _engine(words[at:], env)
    return None


def findings(found: Found) -> list[Finding]:
    """What is to be told of the text itself."""
    marks: dict[str, tuple[Level, str]] = {
        "too_long": ("error", "paste.too_long"),
        "open_quote": ("warning", "paste.open_quote"),
        "typography": ("note", "paste.typography"),
        "joined": ("note", "paste.joined"),
    }
    told = [Finding(level, code) for mark, (level, code) in marks.items() if mark in found.marks]
    if found.start is None:
        return [*told, Finding("error", "paste.nothing")]
    if found.more:
        told.append(Finding("warning", "paste.more_engines", {"n": len(found.more)}))
    if names := list(dict.fromkeys(found.others)):
        told.append(Finding("note", "paste.other_commands", {"names": names[:8]}, outcome="left_out"))
    return told
