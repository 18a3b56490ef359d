"""Hides what looks like a secret in a pasted text before it is shown again. Pure.

panel.core.mask knows the names and the looks of secrets. People paste whole scripts, in which secrets stand as words
of other programs (`docker login -p …`), under names of their own (`HFTOKEN=…`) or in a sentence ("the key is …"). So
here a word that nobody would think up is hidden wherever a word beside it says that it is a secret. Names of models,
hashes and UUIDs stay: without them the text would mean nothing.
"""

from __future__ import annotations

import re
from itertools import groupby

from panel.core.mask import HIDDEN, is_secret_key, mask_text

# One word, quoted or not.
_WORD = r"(?P<secret>\"[^\"\n]{1,500}\"|'[^'\n]{1,500}'|[^\s;|&\"']{1,500})"
_REST = r"(?:[^\n|;&]|\\\r?\n)"  # of one command, also over several lines
# Every repetition is bounded, so that the time grows with the length of the text alone.
_PLACES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\blogin\b{_REST}{{0,300}}?\s-p(?:\s{{1,4}}|=)?(?!-){_WORD}",  # docker login -u me -p …
        rf"\b(?:sshpass|mysql|mysqldump|mysqladmin|mariadb)\b{_REST}{{0,300}}?\s-p(?:\s{{1,4}})?(?!-){_WORD}",
        rf"\bredis-cli\b{_REST}{{0,300}}?\s-a\s{{1,4}}{_WORD}",
        rf"\b(?:echo|printf)\s{{1,4}}(?:-n\s{{1,4}}|[\"']?%s[\"']?\s{{1,4}})?{_WORD}\s{{0,4}}\|[^\n]{{0,300}}(?:login|--password-stdin)",
        rf"\b(?:wandb|modelscope|hf|huggingface-cli|ngc)[ \t](?:auth[ \t])?login[ \t](?:--relogin[ \t])?(?!-){_WORD}",
        r"(?<=\s)(?:-u|--user|--proxy-user)(?:\s{1,4}|=)[\"']?(?P<name>[^\s:\"'/$]{1,200}):(?P<secret>[^\s\"'$]{1,500})",
        r"(?<![\w./:@-])[A-Za-z0-9._-]{1,64}:(?P<secret>[^\s:/@\"'$]{3,200})@(?!sha256:)(?=[A-Za-z0-9])",
        r"://(?P<secret>[^\s/:@'\"$]{12,500})@",
    )
)
_NAME = re.compile(r"(?<![A-Za-z0-9_.])(?P<name>[A-Za-z][A-Za-z0-9_.\-]{0,79})[\"']?\s?[=:]\s?[\"']?")
_VALUE = re.compile(r"[^\s,;&\"'}\])]{8,500}")
_NAMES = re.compile(r"(token|key|secret|password|passwd|pass|pwd|pw|auth|creds?|credentials?|sig|signature|sas|pat)$")
# Words of a line, and the Chinese ones that say the same without blanks around them.
_LINE = re.compile(r"[A-Za-z0-9_\-+/=.~:@$%!*^?#]{1,600}|密码|密钥|令牌|口令")
_SAYS = frozenset(
    [
        "key", "token", "secret", "password", "passwd", "passphrase", "pass", "pwd", "pw", "credential", "credentials",
        "apikey", "bearer", "auth", "pat", "密码", "密钥", "令牌", "口令",
    ]
)  # fmt: skip
_HASHES = frozenset(
    ["sha256", "sha1", "sha512", "md5", "digest", "checksum", "commit", "revision", "rev", "hash", "blob"]
)
_LINKS = frozenset(["is", "was", "as", "#", "//", "=>", "->"])
BESIDE = 5  # words that are looked at after one that says what they are
_UUID = re.compile(r"(?:(?:GPU|MIG)-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_LICENCE = re.compile(r"(?:[A-Z0-9]{4,6}-){3,8}[A-Z0-9]{4,6}")
_HEX = re.compile(r"[0-9a-f]{32,}", re.IGNORECASE)
_SPOKEN = re.compile(r"[A-Z]?[a-z]{3,}|[A-Z]{4,}")
_MUTE = re.compile(r"[^aeiouyAEIOUY]{5,}")


def hide(text: str) -> str:
    """The text with everything hidden that looks like a secret."""
    text = mask_text(text)
    for pattern in _PLACES:
        text = pattern.sub(_place, text)
    text = _pairs(text)
    return "".join(_line(line) for line in text.splitlines(keepends=True))


def _without(found: re.Match[str]) -> str:
    """What was found, with its secret hidden; quotes stay."""
    secret = found["secret"]
    quote = secret[0] if secret[:1] in ("'", '"') else ""
    start, end = found.start("secret") - found.start(), found.end("secret") - found.start()
    return f"{found[0][:start]}{quote}{HIDDEN}{quote}{found[0][end:]}"


def _place(found: re.Match[str]) -> str:
    """Hidden by its place, whatever it looks like."""
    secret = found["secret"].strip("\"'")
    name = found.groupdict().get("name") or ""
    # `$PASSWORD` is somewhere else; `docker run --user 1000:1000` names no password
    plain = secret.startswith(("$", "%")) or HIDDEN in secret or (name and (secret.isdecimal() or secret == name))
    lone = found.re is _PLACES[-1] and not looks_random(secret, least=12)  # https://me@host
    return found[0] if plain or lone else _without(found)


def _pairs(text: str) -> str:
    """Hidden by a name that ends like that of a secret: `HFTOKEN=…`, where the value is no word."""
    parts, at = list[str](), 0
    for found in _NAME.finditer(text):
        says = found.start() >= at and _NAMES.search(found["name"].lower()) is not None
        value = _VALUE.match(text, found.end()) if says else None
        if value is not None and looks_random(value[0], least=8, hexadecimal=True):
            parts += [text[at : value.start()], HIDDEN]
            at = value.end()
    return "".join([*parts, text[at:]])


def _line(line: str) -> str:
    """Words that follow one which says what they are, or are said to be it: "my token: …", "… is the key"."""
    words = list(_LINE.finditer(line))
    hidden: list[tuple[int, int]] = []
    left, hashes = 0, False
    for at, found in enumerate(words):
        word = found[0]
        last = _last(word)
        if last in _HASHES:
            left, hashes = 0, True
        elif last in _SAYS or is_secret_key(word.strip("-:=#")):
            left = BESIDE + 1
        elif word.startswith("-") or HIDDEN in word:
            left = 0
        elif (left > 0 or _said_to_be(words, at)) and looks_random(word, hexadecimal=not hashes):
            hidden.append(found.span())
        left = max(0, left - 1)
    for start, end in reversed(hidden):
        line = f"{line[:start]}{HIDDEN}{line[end:]}"
    return line


def _last(word: str) -> str:
    parts = [part for part in re.split(r"[^A-Za-z0-9\u4e00-\u9fff]+", word) if part]
    return parts[-1].lower() if parts else ""


def _said_to_be(words: list[re.Match[str]], at: int) -> bool:
    following = [words[place][0].lower() for place in range(at + 1, min(at + 5, len(words)))]
    return following[:1] != [] and following[0] in _LINKS and any(_last(word) in _SAYS for word in following[1:])


# --- what nobody would think up ---------------------------------------------------------------------------------------


def looks_random(word: str, *, least: int = 16, hexadecimal: bool = False) -> bool:
    """Whether a word is made by a machine and no name: not of a model, a file, a version, a UUID.

    `hexadecimal`: also where it is a hash by its look, since a word beside it says that it is none.
    """
    word = word.strip(".,:;!?#\"'()")
    if len(word) < least or HIDDEN in word or word.startswith(("$", "/", "~", "./", "../", "%")):
        return False
    if _UUID.fullmatch(word) or "sha256:" in word:
        return False
    if _LICENCE.fullmatch(word):
        return True
    if re.fullmatch(r"[A-Za-z0-9+/]{24,}={0,2}", word) and not re.search(r"[A-Za-z0-9]/[A-Za-z]{3,}", word[:24]):
        word = re.sub(r"[+/=]", "", word)  # base64
    return any(_dense(piece, least, hexadecimal) for piece in re.split(r"[^A-Za-z0-9]+", word))


def _dense(piece: str, least: int, hexadecimal: bool) -> bool:
    """Whether an unbroken piece has letters and digits, or capitals and small ones, in no order of a language."""
    if len(piece) < min(least, 12):
        return False
    if _HEX.fullmatch(piece):
        return hexadecimal
    digits, letters = sum(c.isdigit() for c in piece), sum(c.isalpha() for c in piece)
    if not letters:
        return False
    changes = sum(1 for _kind, _run in groupby(piece, _kind_of)) - 1
    if changes < (3 if digits else len(piece) // 4):
        return False
    spoken = sum(len(run) for run in _SPOKEN.findall(piece) if len(run) > 3 and _can_be_said(run))
    return spoken < 0.55 * len(piece)


def _kind_of(character: str) -> str:
    return "0" if character.isdigit() else "a" if character.islower() else "A"


def _can_be_said(run: str) -> bool:
    return re.search(r"[aeiouyAEIOUY]", run) is not None and _MUTE.search(run) is None
