"""The one way in: a pasted text becomes a draft of a deployment, or findings that say why not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

from deployments.engines.base import RuntimeFacts
from deployments.pasting import llamacpp, marker, ollama, sglang, unwrap, vllm
from deployments.pasting.draft import Draft
from deployments.pasting.secret_names import is_secret
from deployments.pasting.start import Finding, Start
from deployments.pasting.text import plain

ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp", "ollama": "Ollama"}
_READERS = {"vllm": vllm.read, "sglang": sglang.read, "llamacpp": llamacpp.read, "ollama": ollama.read}
STARTED = ("vllm",)  # engines that a deployment can name


class Pasted:
    """A text that was looked through once; drafts of it can be made for one engine after another."""

    def __init__(self, text: str) -> None:
        found = unwrap.find(text)
        self.start: Start | None = found.start
        self.findings: list[Finding] = unwrap.findings(found)
        self.marker: Mapping[str, object] = marker.read(found.comments)

    def secrets(self) -> list[str]:
        """Values in the text that are secrets by their names, the longest first; for hiding them where it is shown."""
        start = self.start
        if start is None:
            return []
        found = [value for name, value in start.env.items() if is_secret(name)]
        for word, after in zip(start.words, [*start.words[1:], ""], strict=False):
            name, sign, value = word.partition("=")
            if word.startswith("-") and is_secret(name.lstrip("-").replace("-", "_")):
                found.append(value if sign else after)
        found = [plain(one) for one in found]
        return sorted({one for one in found if len(one) > 3 and not one.startswith(("--", "$"))}, key=len, reverse=True)

    def draft(self, runtime: RuntimeFacts | None = None, roots: tuple[str, ...] = ("/",)) -> Draft | None:
        """The settings for an engine of this kind; None where the text starts none. Never raises."""
        if self.start is None:
            return None
        draft = Draft(deepcopy(self.start), runtime or RuntimeFacts(""), roots)
        engine = self.start.engine
        if engine not in STARTED:
            draft.tell("warning", "paste.other_engine", "changed", engine=ENGINES[engine])
        _READERS[engine](draft)
        draft.finish()
        marker.apply(draft, self.marker)
        return draft


def findings_of(pasted: Pasted, draft: Draft | None) -> list[Finding]:
    """What is to be told of all of it, the worst first."""
    order = {"error": 0, "warning": 1, "note": 2}
    found = [*pasted.findings, *(draft.findings if draft is not None else [])]
    return sorted(found, key=lambda finding: order[finding.level])
