"""A pasted text split into commands and words, as a shell would split it; nothing in it is run or looked up. Pure.

Takes what blogs and chats make of commands: curly quotes, long dashes, blanks that are none, prompts, comments, lines
that lost their backslash. Costs time in proportion to the text's length, which is bounded.
"""

from __future__ import annotations

import json
import re

from deployments.pasting.text import DASHES, LONGEST, VARIABLE, Command, Part, Script, Word, joined, meant, protected

MOST_WORDS = 4_000
TRIES = 40  # how often something that has no end may be looked for: each look may cost the text's whole length

DOUBLE = '"“”„‟＂'
SINGLE = "'‘’‚‛＇"
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u200e\u200f"
_LINE_ENDS = re.compile(r"\r\n?|[\u2028\u2029\x85\x0b\x0c]")
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n`]*$", re.MULTILINE)
_WINDOWS = re.compile(
    r"^[ \t]*(?:PS )?[A-Za-z]:\\[^>\n]{0,200}>|\$env:|(?:^|[\s\"'=“])[A-Za-z]:\\"
    r"|[ \t]\^[ \t]*$|[ \t]`[ \t]*$|^set [A-Z_]{1,80}=",
    re.MULTILINE,
)
_PROMPT = re.compile(
    r"[ \t]*(?:\([\w.-]{1,40}\)[ \t]*)?"
    r"(?:PS [A-Za-z]:\\[^>\n]{0,200}> ?|PS> |[A-Za-z]:\\[^>\n]{0,200}>"
    r"|\[?[\w.-]{1,40}@[\w.-]{1,80}[: ]?[^\s$#%>]{0,200}[$#%>][ \t]|[$%❯➜»][ \t]+|!(?=\w))"
)
_CONTINUED = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")
_COMMENT_LINES = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*#[^\n]*\n|(?:[ \t]*\n)+")
_PLAIN = re.compile(r"[A-Za-z0-9_./:,=+@%~\[\]-]+")
_PLACEHOLDER = re.compile(r"<[A-Za-z][\w ./:-]{0,60}>")
_REDIRECT = re.compile(r"&>>?|>&|<<<|<<-?|<>|>>|>\||[<>]&?")
_HEREDOC = re.compile(r"[ \t]*['\"]?(\w{1,40})['\"]?")
_JSON = json.JSONDecoder()


def split(text: str) -> Script:
    """The commands of a text. Never raises."""
    reader = _Reader(text)
    reader.read()
    return reader.script


class _Reader:
    """Walks through the text once, left to right."""

    def __init__(self, text: str) -> None:
        self.script = Script()
        if len(text) > LONGEST:
            self.script.marks.add("too_long")
            text = text[:LONGEST]
        text = _LINE_ENDS.sub("\n", text.lstrip(_INVISIBLE)).replace("\0", "")
        self.text = _FENCE.sub("", text)
        self.at = 0
        self.windows = _WINDOWS.search(self.text) is not None
        if self.windows:
            self.script.marks.add("windows")
        self.command = Command()
        self.parts: list[Part] = []
        self.began = False  # a word is open, though it may be empty so far: ""
        self.quoted = False
        self.skip = False  # the next word is where output goes, no argument
        self.words = 0
        self.tries = TRIES
        self.endless: set[tuple[str, ...]] = set()

    def read(self) -> None:
        self._line_start()
        while self.at < len(self.text) and self.words < MOST_WORDS:
            self._step()
        if self.words >= MOST_WORDS:
            self.script.marks.add("too_long")
        self._end_command()

    def _step(self) -> None:
        char = self.text[self.at]
        if char in _INVISIBLE:
            self.at += 1
        elif char == "\n":
            self.at += 1
            self._end_line()
        elif char.isspace():
            if char not in " \t":
                self.script.marks.add("typography")
            self.at += 1
            self._end_word()
        elif not self.began and char == "#":
            self._comment()
        elif (not self.began and char in DASHES and self._dashes()) or self._quote(char) or self._special(char):
            pass
        elif found := _PLAIN.match(self.text, self.at):
            self._add(found[0])
            self.at = found.end()
        else:
            self._add("=" if char == "＝" and self._is_flag() else char)
            self.at += 1

    # --- words and commands ---

    def _add(self, text: str, name: str = "", default: str | None = None) -> None:
        self.parts.append((text, name, default))
        self.began = True

    def _dashes(self) -> bool:
        """At the start of a word, the dashes that editors put in become those that were typed."""
        end = self.at
        while end < len(self.text) and self.text[end] in DASHES and end - self.at < 4:
            end += 1
        run = self.text[self.at : end]
        if not run.strip("-"):
            return False
        self.script.marks.add("typography")
        self._add(meant(run, self.text[end : end + 2]))
        self.at = end
        return True

    def _is_flag(self) -> bool:
        return bool(self.parts) and self.parts[0][0].startswith("-")

    def _end_word(self) -> None:
        if not self.began:
            return
        if self.skip:
            self.skip = False
        else:
            self.command.words.append(Word(joined(self.parts), self.quoted))
            self.words += 1
        self.parts, self.began, self.quoted = [], False, False

    def _end_command(self) -> None:
        self._end_word()
        self.skip = False
        words = self.command.words
        if not words:
            return
        first = words[0].text
        dashed = first.startswith("-") and len(first) > 1 and not words[0].quoted
        if dashed and self.script.commands:  # a line that lost its backslash
            self.script.commands[-1].words += words
            self.script.marks.add("joined")
        else:
            self.script.commands.append(self.command)
        self.command = Command()

    def _end_line(self) -> None:
        self._end_command()
        self._line_start()

    def _line_start(self) -> None:
        if found := _PROMPT.match(self.text, self.at):
            self.at = found.end()

    def _comment(self) -> None:
        end = self.text.find("\n", self.at)
        end = len(self.text) if end < 0 else end
        if len(self.script.comments) < 200:
            self.script.comments.append(self.text[self.at + 1 : end][:4000].strip())
        self.at = end

    # --- quotes ---

    def _quote(self, char: str) -> bool:
        if char in DOUBLE and (char in '"＂' or self._fresh()):
            return self._quoted_text(char, DOUBLE)
        if char in SINGLE and (char in "'＇" or self._fresh()):
            return self._quoted_text(char, SINGLE)
        return False

    def _fresh(self) -> bool:
        return not self.began or self.parts[-1][0].endswith(("=", ":", ","))

    def _quoted_text(self, char: str, kind: str) -> bool:
        """What stands in quotes, with the variables in double ones. False: it has no end, and is a sign like others."""
        ends = (char,) if char in "\"'" else tuple(kind)
        end = self._closing(self.at + 1, ends, escapes=kind == DOUBLE)
        if end < 0:
            self.script.marks.add("open_quote")
            self._add(char)
            self.at += 1
            return True
        if char not in "\"'":
            self.script.marks.add("typography")
        inside = self.text[self.at + 1 : end]
        self.began = self.quoted = True
        if kind == SINGLE:
            self._add(protected(inside))
        else:
            self._inside_double(inside)
        self.at = end + 1
        return True

    def _closing(self, at: int, ends: tuple[str, ...], *, escapes: bool) -> int:
        if ends in self.endless:
            return -1
        while at < len(self.text):
            char = self.text[at]
            if char in ends:
                return at
            at += 2 if escapes and char == "\\" and self.text[at + 1 : at + 2] in ('"', "\\", "$", "`") else 1
        self.endless.add(ends)  # nor is there one further on
        return -1

    def _inside_double(self, inside: str) -> None:
        at, plain = 0, []
        while at < len(inside):
            char, after = inside[at], inside[at + 1 : at + 2]
            if char == "\\" and after == "\n":
                at += 2
                continue
            if char == "\\" and (after == '"' or (after in ("\\", "$", "`") and not self.windows)) and after:
                plain.append(protected(after))
                at += 2
                continue
            if char == "$" and (found := VARIABLE.match(inside, at)):
                self._add("".join(plain))
                plain = []
                self._add(found[0], found[1] or found[2], found[3])
                at = found.end()
                continue
            plain.append(char)
            at += 1
        self._add("".join(plain))

    # --- signs with a meaning ---

    def _special(self, char: str) -> bool:
        if char == "\\":
            return self._backslash()
        if self.windows and char in "^`":
            return self._continued() or self._literal_next()
        if char == "`" and self._code_mark():
            return True
        if char in "{[" and self._fresh() and (value := self._json()):
            self._add(value)
            self.at += len(value)
            return True
        if char == "$":
            return self._dollar()
        if char in "；;&|()":
            if char in "&" and self.text.startswith("&>", self.at):
                return self._redirect()
            self.at += 1
            self._end_command()
            return True
        return char in "<>" and self._redirect()

    def _code_mark(self) -> bool:
        """A backtick around a whole command, as in running text."""
        after = self.text[self.at + 1 : self.at + 2]
        if (self.began or self.command.words) and after.isalnum():
            return False
        self.at += 1
        self._end_command()
        return True

    def _backslash(self) -> bool:
        if self._continued():
            return True
        if self.windows:
            self._add("\\")
            self.at += 1
            return True
        return self._literal_next()

    def _literal_next(self) -> bool:
        self._add(protected(self.text[self.at + 1 : self.at + 2]))
        self.at += 2
        return True

    def _continued(self) -> bool:
        """A line that goes on in the next one, also where blanks or a comment follow the sign."""
        found = _CONTINUED.match(self.text, self.at + 1)
        if found is None:
            return False
        if found.end() == len(self.text) and not self.text.endswith("\n"):
            self.at = found.end()
            self._end_word()
            return True
        self._end_word()
        self.at = found.end()
        if more := _COMMENT_LINES.match(self.text, self.at):
            if more[0].strip():
                self.script.comments += [line.strip(" \t#") for line in more[0].splitlines() if line.strip()][:50]
            self.at = more.end()
        if self.text.startswith("> ", self.at):  # the prompt of a second line
            self.at += 2
        return True

    def _dollar(self) -> bool:
        if found := VARIABLE.match(self.text, self.at):
            self._add(found[0], found[1] or found[2], found[3])
            self.at = found.end()
            return True
        if self.text.startswith("$(", self.at):
            return self._substitution()
        self._add("$")
        self.at += 1
        return True

    def _substitution(self) -> bool:
        """`$(…)` is kept as it is written, up to its bracket; nothing in it is run."""
        end, depth = self.at + 2, 1
        limit = min(len(self.text), self.at + 2_000)
        while end < limit and depth:
            depth += {"(": 1, ")": -1}.get(self.text[end], 0)
            end += 1
        self._add(self.text[self.at : end])
        self.at = end
        return True

    def _redirect(self) -> bool:
        if found := _PLACEHOLDER.match(self.text, self.at):
            self._add(found[0])
            self.at = found.end()
            return True
        found = _REDIRECT.match(self.text, self.at)
        if found is None:
            return False
        if self.began and "".join(part[0] for part in self.parts).isdigit():  # 2>&1
            self.parts, self.began = [], False
        self._end_word()
        self.at = found.end()
        if found[0] in ("<<", "<<-") and self._here_document():
            return True
        self.skip = True
        return True

    def _here_document(self) -> bool:
        name = _HEREDOC.match(self.text, self.at)
        if name is None or self.tries <= 0:
            return False
        end = self.text.find(f"\n{name[1]}\n", name.end())
        if end < 0:
            self.tries -= 1
            return False
        self.at = end + len(name[1]) + 1
        return True

    def _json(self) -> str:
        """The JSON that begins here, as written: a shell would have eaten its quotes, which nobody can mean."""
        if self.tries <= 0 or self.text[self.at + 1 : self.at + 2] not in ('"', "{", "[", "}", "]", " ", "\n", "'"):
            return ""
        try:
            _value, end = _JSON.raw_decode(self.text, self.at)
        except (ValueError, RecursionError):
            self.tries -= 1
            return ""
        return self.text[self.at : end]
