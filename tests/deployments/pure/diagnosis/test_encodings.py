"""Logs that are not UTF-8: what PowerShell saves is decoded as it comes; other bytes around the cause do no harm."""

from __future__ import annotations

import codecs
from pathlib import Path

import pytest

from deployments.diagnosis.decide import diagnose
from deployments.diagnosis.encodings import LOOKED, Utf8
from deployments.diagnosis.reader import Reader
from tests.deployments.pure.diagnosis.collected import SAMPLES
from tests.deployments.pure.diagnosis.test_page_and_command import diagnose as command

SAMPLE = next(sample for sample in SAMPLES if sample.name == "016")
TEXT = SAMPLE.log.decode()
ENCODED: dict[str, bytes] = {
    "utf-16 le with a mark": codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"),
    "utf-16 be with a mark": codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"),
    "utf-16 le": TEXT.encode("utf-16-le"),
    "utf-16 be": TEXT.encode("utf-16-be"),
    "utf-16 of Windows": codecs.BOM_UTF16_LE + TEXT.replace("\n", "\r\n").encode("utf-16-le"),
    "utf-16 that is cut in a character": codecs.BOM_UTF16_LE + (TEXT + "\U0001f600").encode("utf-16-le")[:-3],
    "utf-32": codecs.BOM_UTF32_LE + TEXT.encode("utf-32-le"),
    "utf-8 with a mark": codecs.BOM_UTF8 + SAMPLE.log,
    "utf-8": SAMPLE.log,
}


def as_utf8(log: bytes, size: int) -> bytes:
    text = Utf8()
    return b"".join([*(text.feed(log[at : at + size]) for at in range(0, len(log), size)), text.end()])


@pytest.mark.parametrize("size", [1, 7, 4096])
@pytest.mark.parametrize("name", ENCODED)
def test_the_cause_is_found_in_every_encoding(name: str, size: int) -> None:
    reader = Reader()
    reader.feed(as_utf8(ENCODED[name], size))
    found = diagnose(reader, exit_code=1)
    assert (found.code, found.phase, found.root_line) == (SAMPLE.code, SAMPLE.phase, SAMPLE.root)


@pytest.mark.parametrize(
    "log",
    [b"", b"\xff", b"\xff\xfe", b"\x00", b"a\x00", b"\x00" * 3000, b"\xd8\x00" * 400, b"\xff" * (LOOKED + 1)],
    ids=["nothing", "one", "mark", "nul", "letter", "nuls", "halves", "no mark"],
)
def test_odd_bytes_raise_nothing(log: bytes) -> None:
    as_utf8(log, 3).decode("utf-8", "replace")


def test_what_is_no_utf_16_stays_as_it_is() -> None:
    for log in (
        SAMPLE.log,
        "模型加载失败\n".encode("gbk") * 100,
        b"\x00 a log with a NUL\n" * 40,
        "日志\n".encode() * 200,
    ):
        assert as_utf8(log, 100) == log


@pytest.mark.parametrize("encoding", ["gbk", "gb18030", "shift_jis", "latin-1"])
def test_other_bytes_around_the_cause_do_no_harm(encoding: str) -> None:
    said = {"latin-1": "échec du démarrage"}.get(encoding, "起動失敗")
    lines = TEXT.encode(encoding, "replace").split(b"\n")
    mixed = b"\n".join(part for line in lines for part in (f"[{said}]".encode(encoding), line))
    reader = Reader()
    reader.feed(as_utf8(mixed, 512))
    found = diagnose(reader, exit_code=1)
    assert (found.code, found.root_line) == (SAMPLE.code, 2 * SAMPLE.root)


def test_the_command_reads_what_powershell_saved(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_bytes(ENCODED["utf-16 of Windows"])
    ended = command(tmp_path, str(log))
    assert ended.returncode == 0 and SAMPLE.code in ended.stdout.decode()
