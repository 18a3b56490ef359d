"""Finding `model` in a body: agrees with a full parser on everything a full parser takes, and never holds the loop."""

import asyncio
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from panel.fleet.door.body import MAX_DEPTH, WHOLE, find_model
from panel.fleet.door.errors import BodyError

PAD = b" " * 100


def model(body: bytes) -> str:
    return asyncio.run(find_model(body))


def refusal(body: bytes) -> str:
    with pytest.raises(BodyError) as caught:
        model(body)
    return caught.value.code


def large(body: bytes) -> bytes:
    """The same object with a long text in front, so that only the scanner reads it."""
    return body.replace(b"{", b'{"pad": "' + b"x" * WHOLE + b'", ', 1)


BODIES = [
    (b'{"model": "tiny"}', "tiny"),
    (b'\n {\t"messages":[{"role":"user","model":"inner"}], "model" :\r\n "tiny" }\n', "tiny"),
    (b'{"mod\\u0065l": "t\\u0069ny"}', "tiny"),
    (b'{"a": "\\"model\\": \\"x\\"", "model": "tiny"}', "tiny"),
    (b'{"a": "\\\\", "model": "tiny"}', "tiny"),
    (b'{"a": {"model": "x", "b": ["}", "]", "\\\\\\"{"]}, "model": "tiny", "c": [[], {}]}', "tiny"),
    (b'{"n": -1.5e+10, "t": true, "f": false, "z": null, "model": "tiny"}', "tiny"),
    ('{"model": "模型"}'.encode(), "模型"),
]


@pytest.mark.parametrize(("body", "name"), BODIES)
def test_the_name_is_found(body: bytes, name: str) -> None:
    assert model(body) == name
    assert model(large(body)) == name


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"model": "a", "model": "b"}', "model.twice"),
        (b'{"model": "a", "mod\\u0065l": "a"}', "model.twice"),
        (b'{"messages": [{"model": "a"}]}', "model.missing"),
        (b'{"Model": "a"}', "model.missing"),
        (b'{"model": 1}', "model.not_text"),
        (b'{"model": ["tiny"]}', "model.not_text"),
        (b'{"model": null}', "model.not_text"),
        (b'{"model": "a"', "request.bad_json"),
        (b'{"model": "a}', "request.bad_json"),
        (b'{"model": "a",}', "request.bad_json"),
        (b'{"model": "a"} {"model": "b"}', "request.bad_json"),
        (b'{"model" "a"}', "request.bad_json"),
        (b"{'model': 'a'}", "request.bad_json"),
        (b'{"a": [1, "model": "a"}', "request.bad_json"),
        (b'{"a": nope, "model": "a"}', "request.bad_json"),
        (b'{"a": NaN, "model": "a"}', "request.bad_json"),
    ],
)
def test_what_cannot_be_read_is_refused_small_and_large(body: bytes, code: str) -> None:
    assert refusal(body) == code
    assert refusal(large(body)) == code


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "request.bad_json"),
        (b"[]", "request.not_an_object"),
        (b'"model"', "request.not_an_object"),
        (b"{}", "model.missing"),
        (b'\xef\xbb\xbf{"model": "a"}', "request.bom"),
        (b'{"model": "\xff"}', "request.not_utf8"),
        ('{"model": "a"}'.encode("utf-16"), "request.not_utf8"),
        (b'{"a": ' + b"[" * 200_000, "request.too_deep"),
        (b'{"a": ' + b"[" * 200 + b"]" * 200 + b', "model": "a"}', "request.too_deep"),
        (b'{"a": ' + b'{"b":' * 5000 + b"1" + b"}" * 5000 + b"}", "request.too_deep"),
    ],
)
def test_what_is_no_object_of_text_is_refused(body: bytes, code: str) -> None:
    assert refusal(body) == code


def test_depth_up_to_the_bound_is_fine() -> None:
    deep = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert model(b'{"a": ' + deep + b', "model": "tiny"}') == "tiny"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.text(max_size=8) | st.just("model"), JSON, max_size=6), st.booleans(), st.sampled_from([None, 1])
)
def test_it_agrees_with_a_full_parser(value: dict, ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    try:
        body.decode()
    except UnicodeDecodeError:
        return
    padded = large(body) if value else body
    if isinstance(value.get("model"), str):
        assert model(body) == model(padded) == value["model"]
    else:
        assert refusal(body) == refusal(padded)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet='{}[]",:\\ model1', max_size=60))
def test_noise_is_refused_or_read_but_never_breaks(text: str) -> None:
    for body in (text.encode(), large(text.encode())):
        try:
            model(body)
        except BodyError:
            continue


HEAVY = {
    "numbers": b'{"input": [' + b"1234," * 4_000_000 + b'1], "model": "tiny"}',
    "one text": b'{"input": "' + b"x" * 20_000_000 + b'", "model": "tiny"}',
    "quotes": b'{"input": "' + b'\\"' * 1_000_000 + b'", "model": "tiny"}',
    "backslashes": b'{"input": "' + b"\\" * 8_000_000 + b'", "model": "tiny"}',
    "odd backslashes": b'{"input": "' + (b"\\" * 65 + b'"') * 30_000 + b'", "model": "tiny"}',
    "lists": b'{"input": [' + b"[]," * 500_000 + b'1], "model": "tiny"}',
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_body_does_not_hold_the_loop(name: str) -> None:
    async def run() -> float:
        longest = 0.0

        async def tick() -> None:
            nonlocal longest
            last = time.thread_time()  # of this thread's processor: a busy machine takes it away for longer than this
            while True:
                await asyncio.sleep(0)
                now = time.thread_time()
                longest, last = max(longest, now - last), now

        ticker = asyncio.ensure_future(tick())
        await asyncio.sleep(0)
        assert await find_model(HEAVY[name]) == "tiny"
        ticker.cancel()
        return longest

    assert asyncio.run(run()) < 0.15
