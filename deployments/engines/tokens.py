"""Further flags as people paste them: one line or many, quotes, JSON, a whole `vllm serve` command. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

from deployments.engines.base import EngineRefusal, Reason

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_JSON = json.JSONDecoder()


def split_args(text: str) -> list[str]:
    """Words of a pasted text, split as a shell would but never run by one.

    JSON that starts a word (or follows `=`) is one word, blanks and quotes included, even where a shell would have
    eaten its quotes. A leading `vllm serve MODEL`, a prompt sign and variables before it are left out. Raises
    EngineRefusal for an open quote.
    """
    text = re.sub(r"\\\r?\n", " ", text)
    words = list(_words(text))
    while words and (words[0] in ("$", "#", "exec", "nohup", "sudo") or _ASSIGNMENT.match(words[0])):
        words.pop(0)
    if len(words) > 1 and words[0].rpartition("/")[2] == "vllm" and words[1] == "serve":
        words = words[2:]
        if words and not words[0].startswith("-"):
            words.pop(0)
    return words


def expand(elements: Iterable[str]) -> list[str]:
    """argv elements, where one that holds several words (`--a b --c`) is split; others stay as they are."""
    return [word for element in elements for word in (split_args(element) if _several(element) else [element])]


def _several(element: str) -> bool:
    head, equals, value = element.partition("=")
    if not element.lstrip().startswith("-") or not re.search(r"\s", element):
        return False
    if not equals or re.search(r"\s", head):
        return True
    quoted = value[:1] in ("'", '"')
    return not _is_json(value) and (quoted or re.search(r"\s--?[A-Za-z]", value) is not None)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _words(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        word, position = _word(text, position)
        yield word


def _word(text: str, position: int) -> tuple[str, int]:
    """One word from here, and where it ends."""
    parts: list[str] = []
    while position < len(text) and not text[position].isspace():
        char = text[position]
        fresh = not parts or parts[-1].endswith("=")
        if char in "{[" and fresh and (value := _json_at(text, position)):
            parts.append(value)
            position += len(value)
        elif char == "'":
            end = _closing(text, position, "'")
            parts.append(text[position + 1 : end])
            position = end + 1
        elif char == '"':
            piece, position = _double_quoted(text, position)
            parts.append(piece)
        elif char == "\\" and position + 1 < len(text):
            parts.append(text[position + 1])
            position += 2
        else:
            parts.append(char)
            position += 1
    return "".join(parts), position


def _json_at(text: str, position: int) -> str:
    """The JSON value that starts here, verbatim; "" when there is none."""
    try:
        _value, end = _JSON.raw_decode(text, position)
    except (ValueError, RecursionError):
        return ""
    return text[position:end]


def _closing(text: str, position: int, quote: str) -> int:
    end = text.find(quote, position + 1)
    if end < 0:
        raise EngineRefusal([Reason("args.open_quote", {"text": text[position : position + 40]})])
    return end


def _double_quoted(text: str, position: int) -> tuple[str, int]:
    piece: list[str] = []
    index = position + 1
    while index < len(text) and text[index] != '"':
        if text[index] == "\\" and text[index + 1 : index + 2] in ('"', "\\", "$", "`"):
            index += 1
        piece.append(text[index])
        index += 1
    if index >= len(text):
        raise EngineRefusal([Reason("args.open_quote", {"text": text[position : position + 40]})])
    return "".join(piece), index + 1
