"""In Chinese, no page has an English word left: neither in what is shown nor in what is read out.

Every page that the browser looks at (tests/browser/cases_*.py) is rendered with its sample rows. What people typed, code,
logs and the names of the trade may stay.
"""

import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from django.apps import apps
from django.db import models
from django.test import Client

from panel.accounts.models import User
from tests.browser.cases import Case, all_cases
from tests.house.test_translations import CATALOG, entries

# Words that are the same in both languages.
NAMES = set(
    re.findall(
        r"\S+",
        """
    Berth English vLLM SGLang llama cpp Ollama Hugging Face Django PostgreSQL Valkey Redis Python JavaScript Linux systemd
    GPU GPUs CPU RAM CUDA NVIDIA ROCm NPU PID pid API URL HTTP HTTPS TLS SHA SSH CSV JSON YAML KV token GGUF LoRA MoE OpenAI
    GiB MiB KiB TiB GB MB ms min TTFT FP BF INT AWQ GPTQ NVFP MXFP bitsandbytes safetensors tokenizer transformers flashinfer NCCL PyTorch
    curl pip venv conda shim SIGTERM SIGKILL TERM KILL UUID IP IPv DNS NFS HF ID id root sudo nightly Docker NVML USB PCI
    PATH vllm sglang llamacpp ollama FlashInfer OpenAPI NTP iOS LTS Ubuntu Debian Idempotency-Key GET POST PUT PATCH DELETE
    llama-server berth-agent agent-wheels main Accept-Language Accept Bearer Authorization
    ModelScope modelscope hf ssh rsync README compose Compose docker bos
    null true false json cpu hf-token Web RTX PRO balanced warning error WARNING ERROR
    Chrome Firefox Safari Edge Chromium macOS Windows Android iPhone iPad Ctrl Esc Enter Tab UTC ASCII UTF v MCP
        """,
    )
)
CODE = {"code", "pre", "script", "style", "svg", "kbd", "samp", "textarea", "noscript"}
CODE_CLASSES = {"mono", "log", "cmd", "logline", "av", "lang"}
SPOKEN = ("aria-label", "title", "placeholder", "alt", "data-say", "data-said", "aria-description")
VOID = {"meta", "link", "input", "br", "hr", "img", "use", "rect", "path", "source", "wbr", "col"}
WORD = re.compile(r"[A-Za-z][A-Za-z’'-]*[A-Za-z]")
# Paths, addresses, flags, file and model names, versions, settings, tokens: anything with such a sign inside.
# A single Latin word in quotation marks is the name of a value.
TECHNICAL = re.compile(
    r"`[^`]*`|“[\w.:-]+”|make engine|X-Log-\w+|\b[0-9a-f]{8,}\b|\S*[/_@=\\]\S*|(?<![\w-])--?[a-z][\w-]*|\S*[A-Za-z]\S*\d\S*|\S*\d\S*[A-Za-z]\S*|\w+(?:[.:]\w+)+"
)


class Words(HTMLParser):
    """The texts of a page that stand in no code; attributes that are read out count too."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._open: list[tuple[str, bool]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        code = tag in CODE or bool(CODE_CLASSES & set((values.get("class") or "").split()))
        code = code or values.get("translate") == "no" or values.get("lang") == "en"
        if not (self._code or code):
            self.texts += [text for name in SPOKEN if (text := values.get(name))]
            if tag == "input" and values.get("type") == "submit":
                self.texts.append(values.get("value") or "")
        if tag not in VOID:
            self._open.append((tag, code))

    def handle_endtag(self, tag: str) -> None:
        while self._open and any(name == tag for name, _code in self._open):
            if self._open.pop()[0] == tag:
                break

    def handle_data(self, data: str) -> None:
        if data.strip() and not self._code:
            self.texts.append(" ".join(data.split()))

    @property
    def _code(self) -> bool:
        return any(code for _name, code in self._open)


def test_words_are_found_where_people_meet_them() -> None:
    """The finder itself: it sees texts and labels, and passes over code."""
    page = '<p title="A hint">Hello <code>no</code> there<br><b class="mono">no</b></p><input placeholder="Type"><i>端口</i>'
    words = Words()
    words.feed(page)
    assert words.texts == ["A hint", "Hello", "there", "Type", "端口"]
    assert left_in("启动 failed now", set()) == ["failed", "now"]
    assert left_in("在 GPU 0 上用 vLLM 0.32.0 打开 /models/x-Y 和 --dtype", set()) == []
    assert left_in("support-chat by ada", {"support-chat", "ada"}) == ["by"]


def left_in(text: str, data: set[str]) -> list[str]:
    """English words of a text that are neither names nor sample data."""
    for value in sorted(data, key=len, reverse=True):
        if value in text:
            text = re.sub(rf"(?<![A-Za-z]){re.escape(value)}(?![A-Za-z])", " ", text)
    return [word for word in WORD.findall(TECHNICAL.sub(" ", text)) if word not in NAMES]


def sample_data() -> set[str]:
    """Every text that the rows hold, whole; states and other words of the program are not data."""
    said = {entry.text.casefold() for entry in entries(CATALOG)}
    found: set[str] = set()
    for model in apps.get_models():
        names = [
            field.name
            for field in model._meta.concrete_fields
            if isinstance(field, models.CharField | models.TextField | models.JSONField) and not field.choices
        ]
        for row in model._base_manager.values_list(*names) if names else ():
            for value in row:
                found |= set(_texts(value))
    return {text for text in found if len(text) > 1 and text.casefold() not in said}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str):
        yield " ".join(value.split())
        yield from (" ".join(line.split()) for line in value.splitlines())
        if value[:1] in "[{":
            try:
                yield from _texts(json.loads(value))
            except ValueError:
                return


@pytest.fixture
def rendered(db: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """A listed page with its rows, in a language."""
    monkeypatch.setattr("panel.core.sse.publish", lambda *args, **kwargs: True)

    def render(shown: Case, language: str) -> str:
        path = shown.make()
        client = Client(headers={"Accept-Language": language, "Accept": "text/html", "Sec-Fetch-Mode": "navigate"})
        if shown.role:
            person = User.objects.get_or_create(username=f"{shown.role}-person", defaults={"role": shown.role})[0]
            client.force_login(person)
        answer = client.get(path)
        assert answer.status_code == shown.status
        return str(answer.content.decode())

    return render


@pytest.mark.parametrize("shown", all_cases(), ids=lambda shown: shown.name)
def test_no_english_is_left_on_a_chinese_page(shown: Case, rendered: Callable[..., str]) -> None:
    words = Words()
    words.feed(rendered(shown, "zh-CN"))
    data = sample_data()
    left = [f"{' '.join(found)!r} in {text[:120]!r}" for text in words.texts if (found := left_in(text, data))]
    assert not left, "\n".join(left)


# What stands in a form's answer, and the conversation, are read out where they are.
APART = {"chat", "token-new", "link-new", "checks"}


@pytest.mark.parametrize(
    "shown", [case for case in all_cases() if case.role and case.status == 200], ids=lambda shown: shown.name
)
def test_a_page_has_one_voice(shown: Case, rendered: Callable[..., str]) -> None:
    """What changes is said in #announce alone (`data-say`); a second live region would say it twice."""
    tags = re.findall(
        r"<[^>]*(?:role=\"(?:status|alert)\"|aria-live=\"(?:polite|assertive)\")[^>]*>", rendered(shown, "en")
    )
    voices = [found[1] if (found := re.search(r'\bid="([^"]*)"', tag)) else tag for tag in tags]
    assert [voice for voice in voices if voice not in APART] == ["announce"]
