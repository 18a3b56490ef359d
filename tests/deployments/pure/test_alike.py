"""Errors that say the same have one key; others have not."""

import time

import pytest

from deployments.diagnosis.alike import key_of, normalised

SAME = [
    "ValueError: KV cache is needed (5.63 GiB), larger than the available KV cache memory (2.30 GiB).",
    "ValueError: KV cache is needed (15.6 GiB), larger than the available KV cache memory (12 GiB).",
]


def test_numbers_places_and_names_do_not_matter() -> None:
    assert key_of(SAME[0]) == key_of(SAME[1])
    assert key_of("OSError: no file '/models/a/config.json' at 0x7f00ab") == key_of(
        "OSError: no file '/data/Qwen 3/config.json' at 0x11"
    )
    assert key_of("cannot open /usr/lib/x86/libcudart.so.12") == key_of("cannot open /opt/conda/lib/libcudart.so.13")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: the block size is wrong", "ValueError: the page size is wrong"),
        ("RuntimeError: CUDA error", "RuntimeError: NCCL error"),
        ("KeyError: layers", "ValueError: layers"),
    ],
)
def test_other_words_are_another_error(one: str, other: str) -> None:
    assert key_of(one) != key_of(other)


@pytest.mark.parametrize("line", ["", "   ", "12345", "-----", "/…"])
def test_a_line_without_words_is_like_no_other(line: str) -> None:
    assert key_of(line) == ""


def test_a_hostile_line_costs_little() -> None:
    began = time.process_time()
    for text in ("'" * 100_000, "/a" * 100_000, "#." * 100_000, "0x" * 100_000, "9" * 100_000, "\ud800é" * 1000):
        assert len(normalised(text)) <= 800  # a text in quotes becomes three signs
        key_of(text)
    assert time.process_time() - began < 0.5
