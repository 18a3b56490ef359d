"""Which model of the catalog a command means: by path, by repository, by name; or those it could mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

How = Literal["path", "inside", "repository", "name", "chosen", "several", "near", "none"]
MOST = 8  # candidates that are shown
_CACHE = re.compile(r"models--([\w.-]+?)--([\w.-]+?)(?:/|$)")
_QUANT = re.compile(r"(?:IQ|Q|UD-Q|UD-IQ|TQ)\d\w*|BF16|F16|F32|MXFP4\w*", re.IGNORECASE)


@dataclass(frozen=True)
class Form:
    """One form of a model on one host: an artifact's copy. `repository` is where it came from, "" when unknown."""

    artifact_id: int
    model: str
    label: str
    format: str
    path: str
    host_id: int
    host: str
    repository: str = ""
    usable: bool = True


@dataclass(frozen=True)
class Match:
    """`found` holds the copies of the one artifact that is meant; else `candidates` those that could be, best first."""

    how: How
    found: tuple[Form, ...] = ()
    candidates: tuple[Form, ...] = ()

    @property
    def artifact_id(self) -> int | None:
        return self.found[0].artifact_id if self.found else None


def match(text: str, quant: str, forms: Sequence[Form]) -> Match:
    """What a path, repository or name means here. A model that several hosts hold is one model."""
    text = text.strip().rstrip("/").replace("\\", "/")
    if not text:
        return Match("none")
    for how, found in _ways(text, forms):
        if found:
            return _one_of(how, found, quant)
    return Match("none", candidates=_near(text, forms))


def _ways(text: str, forms: Sequence[Form]) -> Iterable[tuple[How, list[Form]]]:
    """The surest way first."""
    yield "path", [form for form in forms if form.path == text]
    if "/" in text:
        yield "inside", [form for form in forms if form.path.startswith(text + "/") or _holds(form, text)]
    home = re.match(r"(?:~|\$HOME|\$\{HOME\}|\.|\.\.)/(.+)", text)
    if home and len(home[1]) > 3:
        ends = "/" + home[1].lstrip("./")
        yield "path", [form for form in forms if form.path.endswith(ends)]
        yield "inside", [form for form in forms if f"{ends}/" in form.path]
    cached = _CACHE.search(text)
    repository = f"{cached[1]}/{cached[2]}" if cached else text
    if repository.count("/") == 1 and repository[0] not in "/~.$":
        yield "repository", [form for form in forms if _same(form.repository, repository)]
        yield (
            "repository",
            [form for form in forms if _in_cache(form.path, repository) or _same(form.model, repository)],
        )
    tagged = text if ":" in text else f"{text}:latest"  # as Ollama calls them
    yield "name", [form for form in forms if _same(form.model, text) or _same(form.repository, tagged)]
    last = repository.rpartition("/")[2]
    yield "name", [form for form in forms if _same(_last(form.path), last) or _same(_last(form.model), last)]


def _holds(form: Form, text: str) -> bool:
    """A file of a folder that is a model: the folder is meant."""
    return form.format != "gguf" and text.startswith(form.path + "/") and "/" not in text[len(form.path) + 1 :]


def _one_of(how: How, found: list[Form], quant: str) -> Match:
    """One artifact, or a choice: quantisation and file narrow it, and what cannot be used comes last."""
    if quant:
        exact = [form for form in found if _is_quant(form, quant)]
        found = exact or found
    usable = [form for form in found if form.usable] or found
    ids = {form.artifact_id for form in usable}
    if len(ids) == 1:
        return Match(how, found=tuple(form for form in found if form.artifact_id in ids))
    return Match("several", candidates=_shown(usable))


def _is_quant(form: Form, quant: str) -> bool:
    quant = quant.lower()
    if quant.endswith(".gguf"):
        return form.path.lower().endswith("/" + quant.rpartition("/")[2])
    return form.label.lower() == quant or quant in _last(form.path).lower()


def _shown(forms: Iterable[Form]) -> tuple[Form, ...]:
    """Each artifact once."""
    return tuple({form.artifact_id: form for form in reversed(list(forms))}.values())[::-1][:MOST]


def _near(text: str, forms: Sequence[Form]) -> tuple[Form, ...]:
    """Models whose names share most words with what was said."""
    wanted = _words(text)
    scored = []
    for form in forms:
        have = _words(form.model) | _words(_last(form.path))
        common = wanted & have
        score = len(common) / max(1, len(wanted | have))
        if any(len(word) > 2 and not word.isdigit() for word in common) and score >= 0.25:
            scored.append((-score, form.model, form.path, form))
    return _shown(form for *_order, form in sorted(scored, key=lambda one: one[:3]))


def _words(text: str) -> set[str]:
    """Words of a name; what stands for a quantisation says nothing of the model."""
    last = text.rstrip("/").rpartition("/")[2].lower().removesuffix(".gguf")
    return {word for word in re.findall(r"[a-z]+|\d+(?:\.\d+)?", last) if not _QUANT.fullmatch(word)}


def _last(text: str) -> str:
    return text.rstrip("/").rpartition("/")[2]


def _same(one: str, other: str) -> bool:
    return bool(one) and one.lower() == other.lower()


def _in_cache(path: str, repository: str) -> bool:
    return f"/models--{repository.replace('/', '--')}/".lower() in f"{path}/".lower()
