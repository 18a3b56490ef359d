"""Secrets are hidden by key, flag and look; what is no secret stays readable; the cost is the length of the text."""

import time

import pytest

from panel.core.crypto import CannotUnseal, seal, unseal
from panel.core.mask import HIDDEN, is_secret_key, mask, mask_text

SECRET = "Zq8fW2kLmN4pR7tV0xYb"


@pytest.mark.parametrize(
    "text",
    [
        f"hf_{SECRET}",
        f"using token hf_{SECRET}, ok",
        f"berth_{SECRET}{SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"curl -H 'Authorization: Bearer {SECRET}' http://x",
        f"https://user:{SECRET}@example.org/repo",
        f"redis://:{SECRET}@localhost",
        f"https://{SECRET}@packages.example.org/simple",
        f"vllm serve m --api-key {SECRET} --port 1",
        f"vllm serve m --api-key={SECRET}",
        f"HF_TOKEN={SECRET} vllm serve",
        f'{{"api_key": "{SECRET}"}}',
        f"password: {SECRET}",
        f"https://hub.example.org/a?token={SECRET}",
        f"url=https://hub.example.org/a?access_token={SECRET}&x=1",
        f"""vllm serve m --loader-config '{{"token": "{SECRET}"}}'""",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}",
        f"eyJhbGciOiJIUzI1NiJ9.eyJ{SECRET}.{SECRET}",
    ],
)
def test_hidden_in_text(text: str) -> None:
    shown = mask_text(text)
    assert SECRET not in shown and HIDDEN in shown
    assert mask_text(shown).count(SECRET) == 0


@pytest.mark.parametrize(
    "text",
    [
        "the token was refused",
        "max_tokens: 4096, eos_token: </s>",
        "Avg prompt throughput: 12.0 tokens/s",
        "vllm serve /models/hf_cache --served-model-name chat --max-num-batched-tokens 512",
        "INFO 11-30 10:00:01 [core.py:12] KV cache key: 3",
        "http://127.0.0.1:8000/v1/models",
        "git clone ssh://git@hub.example.org/acme/tiny",
    ],
)
def test_left_as_it_is(text: str) -> None:
    assert mask_text(text) == text


@pytest.mark.parametrize(
    "key", ["HF_TOKEN", "api-key", "apiKey", "VLLM_API_KEY", "dbPassword", "AWS_SECRET_ACCESS_KEY"]
)
def test_secret_keys(key: str) -> None:
    assert is_secret_key(key)
    assert mask({key: SECRET, "n": [{key: SECRET}]}) == {key: HIDDEN, "n": [{key: HIDDEN}]}


@pytest.mark.parametrize("key", ["max_tokens", "eos_token", "tokenizer", "kv_cache_key", "monkey", "token_hash", "key"])
def test_other_keys(key: str) -> None:
    assert not is_secret_key(key)


def test_command_lines_and_other_values() -> None:
    assert mask(["serve", "--api-key", "k1", "k2", "--port", "1", "--hf-token=abc"]) == [
        "serve", "--api-key", HIDDEN, HIDDEN, "--port", "1", f"--hf-token={HIDDEN}",
    ]  # fmt: skip
    assert mask({"token": 5, "password": None, "secret": True, "blob": b"x"}) == {
        "token": 5, "password": None, "secret": True, "blob": HIDDEN,
    }  # fmt: skip


@pytest.mark.parametrize(
    "piece", ["a", "a:", "://", "b:b", "a-", "a=", "eyJaaaaaaaaa-", "bearer ", "-----BEGIN PRIVATE KEY-----"]
)
def test_time_grows_with_length_only(piece: str) -> None:
    def seconds(length: int) -> float:
        text = (piece * length)[:length]
        return min(_timed(text) for _ in range(3))

    def _timed(text: str) -> float:
        begin = time.process_time()
        mask_text(text)
        return time.process_time() - begin

    assert seconds(80_000) < 0.02 + 12 * seconds(20_000)  # a quadratic pattern takes 16 times as long


def test_sealed_secrets_open_with_the_same_key_only(settings: object) -> None:
    blob = seal("hf_geheim 秘密")
    assert b"geheim" not in blob and unseal(memoryview(blob)) == "hf_geheim 秘密"
    with pytest.raises(CannotUnseal):
        unseal(blob[:-1] + bytes([blob[-1] ^ 1]))
    former, settings.SECRET_KEY = settings.SECRET_KEY, "another" * 8  # type: ignore[attr-defined]
    with pytest.raises(CannotUnseal):
        unseal(blob)
    settings.SECRET_KEY_FALLBACKS = [former]  # type: ignore[attr-defined]
    assert unseal(blob) == "hf_geheim 秘密"
