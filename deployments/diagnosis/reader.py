"""Reads an engine's log as it comes and keeps what a diagnosis needs. Pure; its memory does not grow with the log.

A look at all patterns for every line would be slow, so a line is looked at only when it is new in kind (lines that
differ in digits alone are one kind) and holds one of a few words. What is left is cleaned and compared with the rules.
"""

from __future__ import annotations

from functools import lru_cache

from deployments.diagnosis import error_lines, notices, phases, words
from deployments.diagnosis.found import DULL, MAX_FOUND, Found, Start, kind_of, make_room
from deployments.diagnosis.lines import Line, clean
from deployments.diagnosis.rule import Rule
from deployments.diagnosis.rules import BY_CODE, BY_ENGINE, index_of, tests_of

BLOCK = 28 << 10  # bytes that are looked at in one go (searches in more are slower); a longer line is cut
MAX_TEXT = 4000  # characters of one line
MAX_LOOKED = 1600  # bytes of it that are searched for words
MAX_MATCHED = 1200  # characters of it that are compared with the rules
MAX_KINDS = 2 << 20  # bytes of kinds of lines that are remembered
SAME = 16  # lines of one kind that are looked at in one start
SAME_MARK = 512  # the same for lines that tell the phase
LOOK_BACK = 240  # lines before an error in which its traceback may begin
FLOOD = 1 << 20  # bytes of new kinds of lines, none of which told anything, from which it is a flood
KEPT_LINES = 40  # lines of one error block
WEARY = 128  # lines of one start that begin alike and told nothing, after which such lines are passed over
HEAD, HEAD_NONE = 32, 12  # characters of a line's own text by which errors, and other lines, begin alike
MAX_HEADS, MAX_HEAD_SIZES = 2048, 8
# Digits, and the letters of hexadecimal numbers: lines that differ in these alone are of one kind.
_DIGITS = b"0123456789abcdef"


class Reader:
    """Feed it bytes as they come; ask `decide.diagnose` at the end.

    `engine` names the engine when it is known; otherwise the log tells it.
    """

    def __init__(self, engine: str = "", now: float = 0.0) -> None:
        self.engine = engine if engine in BY_ENGINE else ""
        self.known = bool(self.engine)
        self.now = now
        self.count = 0  # lines that are complete
        self.size = 0
        self.start = Start(phases.new_state(now))
        self.failed: Start | None = None  # the last start before it that had errors
        self.starts = 1
        self._rest = b""
        self._dull: set[bytes] = {b""}
        self._tired: dict[bytes, int] = {}
        self._heard: set[tuple[str, str]] = set()
        self._heads: dict[bytes, int] = {}
        self._weary: set[bytes] = set()
        self._weary_sizes: set[int] = set()
        self._told = False  # the line that is looked at tells something
        self._kinds = 0
        self._before_this = b""  # the newest bytes that were looked at
        self._unheard = 0
        self._asgi = -LOOK_BACK * 2
        self._header: tuple[Found, int, str] | None = None
        self._aside = ("", -LOOK_BACK)  # the process whose thread failed, and where
        self._chained = -LOOK_BACK  # where its error stood, which another may follow

    def feed(self, chunk: bytes, now: float | None = None) -> None:
        """The next bytes. `now` is when they were written, in Unix seconds."""
        self.now = self.now if now is None else now
        self.size += len(chunk)
        at = 0
        while at < len(chunk):
            part = self._rest + chunk[at : at + BLOCK] if self._rest else chunk[at : at + BLOCK]
            at += BLOCK
            end = part.rfind(b"\n") + 1
            if not end and len(part) >= BLOCK:  # no end of a line in sight
                end = part.rfind(b"\r") + 1 or len(part)
            self._rest = part[end:]
            if end:
                self._block(part[:end])

    def flush(self) -> None:
        """Take what stands after the last end of a line, too."""
        if self._rest:
            rest, self._rest = self._rest, b""
            self._block(rest)

    def skip(self, chunk: bytes) -> None:
        """The next bytes, of which only the lines are counted."""
        self.flush()
        self.count += chunk.count(b"\n")
        self.size += len(chunk)
        self._before_this = b""

    def _block(self, block: bytes) -> None:
        if not self.known and self.engine not in ("sglang", "ollama"):
            self._guess(block)
        kinds = block.translate(None, _DIGITS).split(b"\n")
        if not self._dull.issuperset(kinds):
            lines = block.split(b"\n")
            dull = self._dull
            self._look(lines, kinds, [index for index, kind in enumerate(kinds) if kind not in dull])
        self._before_this = block if len(block) >= BLOCK else (self._before_this + block)[-BLOCK:]
        self.count += len(kinds) - 1

    def _guess(self, block: bytes) -> None:
        """Which engine prints this. SGLang prints vLLM's paths too, and Ollama those of llama.cpp."""
        for name, hints in words.HINTS:
            if name == self.engine:
                return
            if any(hint in block for hint in hints):
                self.engine = name
                return

    def _look(self, lines: list[bytes], kinds: list[bytes], fresh: list[int]) -> None:
        # Frames of tracebacks are read when their error is found; of long lines the beginning tells.
        fresh = [index for index in fresh if words.FRAME not in lines[index]]
        for index in fresh:
            if b"\r" in lines[index]:
                lines[index] = _pictures(lines[index], kinds[index])
        joined = b"\n".join([line if b"\r" in (line := lines[index]) else line[:MAX_LOOKED] for index in fresh])
        flood, served = self._unheard > FLOOD, self.start.served
        wanted = words.wanted(flood=flood, served=served)
        heard = [] if flood or served else [word for word in notices.BYTES if word in joined]
        self._unheard += len(joined)
        present = [word for word in wanted if word in joined]
        header = self._header is not None
        for index in fresh:
            raw, kind = lines[index], kinds[index]
            if heard and any(word in raw for word in heard):
                notices.take(self.start.state["facts"], _line(raw).text, self.count + index + 1)
            if raw and header:
                header = self._follow(lines, index)
            if self._weary and any(kind[:size] in self._weary for size in self._weary_sizes):
                continue
            for word in present:
                if word in raw:
                    break
            else:
                self._forget(kind)
                continue
            self._candidate(lines, index, raw, kind)
            header = self._header is not None

    def _forget(self, kind: bytes) -> None:
        """This kind of line tells nothing: it is passed over from now on."""
        if len(kind) <= MAX_TEXT:
            self._kinds += len(kind) + 80
            if self._kinds > MAX_KINDS:
                self._dull = {b""}
                self._kinds = len(kind) + 80
            self._dull.add(kind)

    def _candidate(self, lines: list[bytes], index: int, raw: bytes, kind: bytes) -> None:
        marked = took = self._told = False
        pieces = [piece for piece in raw.split(b"\r") if piece] if b"\r" in raw else [raw]
        for piece in pieces[:25] + pieces[25:][-25:]:
            line = _line(piece)
            marked = self._mark(line, index) or marked
            took = self._error(lines, index, line) or took
        if not (marked or self._told) and len(pieces) == 1:
            self._tire(raw, kind, line, took)
        if not (marked or took):
            self._forget(kind)
            return
        self._unheard = 0
        seen = self._tired.get(kind, 0) + 1
        if seen >= (SAME_MARK if marked else SAME):
            self._forget(kind)
        elif len(self._tired) < 4096 and len(kind) <= MAX_TEXT:
            self._tired[kind] = seen

    def _tire(self, raw: bytes, kind: bytes, line: Line, error: bool) -> None:
        """A flood of ever new lines that begin alike, as of failing requests, need not be looked at to its end."""
        at = raw.find(line.text[:20].encode())
        if at < 0:
            return
        before = len(raw[:at].translate(None, _DIGITS))
        name = line.text[:120].partition(": ")[0].encode()
        # Behind a process or a level the name of the error is enough, where there are very many.
        named = len(name.translate(None, _DIGITS)) if before and b" " not in name else 0
        for most, enough in ((HEAD, WEARY), (named, 8 * WEARY)) if error else ((HEAD_NONE, WEARY),):
            size = before + most
            if not most or len(kind) <= size:  # a short line is a kind of its own
                continue
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            seen = self._heads[kind[:size]] = self._heads.get(kind[:size], 0) + 1
            if seen >= enough and (size in self._weary_sizes or len(self._weary_sizes) < MAX_HEAD_SIZES):
                self._weary_sizes.add(size)
                self._weary.add(kind[:size])

    # --- phases and facts ---------------------------------------------------------------------------------------------

    def _mark(self, line: Line, index: int) -> bool:
        text = line.text
        if words.may_start(text) and words.NEW_START.search(text) and self._anew(index):
            phases.take(self.start.state, line, self.now)
            return True
        if self.start.served and words.may_stop(text) and words.STOP.search(text):
            self.start.stopped = True
        if "args" in line.text[:400]:
            self._options(line.text)
        told = phases.take(self.start.state, line, self.now)
        if told and self.start.served and "Dumping input" not in text:
            self.start.up = True
        if told and line.process and len(self.start.processes) < MAX_FOUND:
            self.start.processes.add(line.process)
        return told

    def _anew(self, index: int) -> bool:
        """A new start in the same log. What failed before counts only if nothing fails from here on."""
        start = self.start
        far = phases.ORDER.index(start.phase) > phases.ORDER.index("config")
        if not far and not start.all:
            return False
        # An engine of several processes prints its banner once; before it there may be errors of its own import.
        if not far and all(found.kind in ("weak", "quiet", "aside") for found in start.all):
            return False
        if any(found.kind not in ("request", "quiet", "aside") for found in start.all):
            self.failed = start
        self.start = Start(phases.new_state(self.now), first_line=self.count + index + 1)
        self.starts += 1
        self._dull = {b""}
        self._kinds = 0
        for kept in (self._tired, self._heads, self._weary, self._weary_sizes):
            kept.clear()
        self._heard.clear()
        self._header = None
        return True

    def _options(self, text: str) -> None:
        for name, quoted, plain in words.OPTION.findall(text[:MAX_TEXT]):
            self.start.options.setdefault(name, quoted or plain)

    # --- errors -------------------------------------------------------------------------------------------------------

    def _error(self, lines: list[bytes], index: int, line: Line) -> bool:
        text = line.text
        leveled, number = line.level in ("DEBUG", "INFO", "WARNING"), self.count + index + 1
        if not text or (leveled and not words.WARNED.search(text)) or words.SKIPPED.match(text):
            return False
        if words.ASIDE.match(text) or (number <= self._chained + 4 and words.CHAINED.match(text)):
            self._aside = (line.process, number)
            return True
        if "Exception in ASGI application" in text:
            self._asgi = number
            return True
        quiet = leveled or words.WARNING.match(text) is not None
        if (quiet and not words.WARNED.search(text)) or words.HARMLESS.search(text):
            return False
        if (line.process, text) in self._heard:
            self._told = True  # it was looked at before
            return True
        rule, groups = match(self.engine, text[:MAX_MATCHED])
        if rule is None and (quiet or not error_lines.is_error(line)):
            return False
        if len(self._heard) < MAX_FOUND:
            self._heard.add((line.process, text))
        found = self._found(lines, index, line, rule, groups)
        if self._request(found, line):
            found.kind = "request"
        elif self._is_aside(found) or "thrown while requesting" in text:
            found.kind = "aside"
        if words.HEADER.search(text):
            self._header = (found, 6, "")
        self._keep(found)
        return True

    def _found(self, lines: list[bytes], index: int, line: Line, rule: Rule | None, groups: dict[str, str]) -> Found:
        start = self.start
        kind = kind_of(rule, line)
        few = (len(start.found) < 24 or start.served) and kind not in ("echo", "request")
        texts, numbers = self._before(lines, index, line) if few else ([line.text[:2000]], [self.count + index + 1])
        weights = "weights_gib" in start.state["facts"]
        return Found(
            self.count + index + 1, line.text[:MAX_TEXT], line.process, kind, rule, groups, start.phase,
            weights, start.served, tuple(texts), tuple(numbers), line.clock,
        )  # fmt: skip

    def _is_aside(self, found: Found) -> bool:
        """Whether it ends the traceback of a thread, or of a clean-up, that the start does not need."""
        process, at = self._aside
        aside = found.process in (process, "") and 0 < found.number - at <= LOOK_BACK
        if aside:
            self._aside, self._chained = ("", -LOOK_BACK), found.number
        return aside

    def _request(self, found: Found, line: Line) -> bool:
        """Whether only a request failed: the server says so, not the engine's core or a worker."""
        generic = found.rule is not None and found.rule.code == "run.bug"
        if not found.served or not (generic or found.kind in ("unknown", "cause", "peer")):
            return False
        if line.process:
            return line.process.startswith(("APIServer", "ApiServer"))
        return bool(words.SERVER_PLACE.match(line.place)) or (0 < found.number - self._asgi <= LOOK_BACK)

    def _keep(self, found: Found) -> None:
        self._told = found.kind not in DULL
        if self.start.stopped and found.served and found.kind != "cause":
            return  # what is printed while it stops is no failure
        if self.failed and self._of_before(found):
            return
        if not found.served:
            if len(self.start.found) < MAX_FOUND:
                self.start.found.append(found)
            return
        # While it serves, requests fail without harm; what ends the engine is among the last, or the end of all is told
        # by each request that comes after.
        if len(self.start.late) >= MAX_FOUND:
            make_room(self.start.late)
        self.start.late.append(found)

    def _of_before(self, found: Found) -> bool:
        """Whether a process of the start before repeats itself, while another has taken its place."""
        if found.process in self.start.processes:
            return False
        name = found.process.partition(" ")[0]
        replaced = any(other != found.process and other.partition(" ")[0] == name for other in self.start.processes)
        before = self.failed.all if replaced and self.failed else []
        return any((old.process, old.text) == (found.process, found.text) for old in before)

    def _follow(self, lines: list[bytes], index: int) -> bool:
        """The reason of a refused setting stands in one of the next lines. True while it is still looked for."""
        if self._header is None:
            return False
        header, left, name = self._header
        line = _line(lines[index])
        if words.VALUE.match(line.text) or (left and error_lines.is_error(line) and line.process == header.process):
            text = f"{name} {line.text}".strip() if name else line.text
            rule, groups = match(self.engine, text[:MAX_MATCHED])
            self._header = None
            found = self._found(lines, index, Line(text, line.process, "ERROR", line.clock), rule, groups)
            if found.kind == "unknown" and words.VALUE.match(line.text):
                found.rule, found.kind = BY_CODE["config.invalid_config"], "weak"
            for kept in (self.start.found, self.start.late):
                if header in kept:
                    kept.remove(header)
            self._keep(found)
            return False
        if words.FIELD.match(line.text.strip()):
            name = line.text.strip()
        self._header = (header, left - 1, name) if left > 1 else None
        return self._header is not None

    def _before(self, lines: list[bytes], index: int, line: Line) -> tuple[list[str], list[int]]:
        """The traceback that ends in this line: texts and numbers, of the same process only."""
        texts, numbers = [line.text[:2000]], [self.count + index + 1]
        at = lines[index].find(line.text[:60].encode())
        prefix = lines[index][: max(0, at)]
        before = lines[max(0, index - LOOK_BACK) : index]
        if index < LOOK_BACK:
            before = [*self._before_this.split(b"\n")[:-1], *before]
        for back, raw in enumerate(reversed(before), 1):
            if back > LOOK_BACK or len(texts) > 3 * KEPT_LINES:
                break
            # Frames stand behind the same prefix as their error: those need no cleaning.
            same = raw.startswith(prefix + b" ") and b"\x1b" not in raw and b"\r" not in raw
            other = Line(_text(raw[len(prefix) :]), line.process, line.level) if same else _line(raw, 1000)
            if other.process != line.process:
                continue
            if other.text.startswith("Traceback (most recent"):
                break
            if not (other.text.startswith((" ", "\t", "File ")) or not other.text or other.level == "ERROR"):
                break
            texts.append(other.text)
            numbers.append(self.count + index + 1 - back)
        return texts[::-1], numbers[::-1]


def _pictures(raw: bytes, kind: bytes) -> bytes:
    """Of a progress bar that is drawn again and again the last picture of each kind."""
    return b"\r".join(dict(zip(kind.split(b"\r"), raw.split(b"\r"), strict=True)).values())


def _text(raw: bytes) -> str:
    return raw[:1000].decode("utf-8", "replace").replace("\0", " ").rstrip()


def _line(raw: bytes, most: int = MAX_TEXT) -> Line:
    """A cleaned line; of a progress bar the last picture."""
    if b"\r" in raw:
        raw = raw.rstrip(b"\r").rpartition(b"\r")[2]
    return _cleaned(raw[:most])


@lru_cache(maxsize=256)  # a line is looked at for itself, and again before the error that follows it
def _cleaned(raw: bytes) -> Line:
    return clean(raw.decode("utf-8", "replace").replace("\0", " "))


@lru_cache(maxsize=512)  # workers of one engine print the same error
def match(engine: str, text: str) -> tuple[Rule | None, dict[str, str]]:
    """The first rule that knows this text, and what its pattern found."""
    tests = tests_of(engine or "vllm")
    for number in index_of(engine or "vllm").of(text):
        literal, pattern, rule = tests[number]
        if literal in text and (found := pattern.search(text)):
            return rule, {name: value for name, value in found.groupdict().items() if value is not None}
    return None, {}
