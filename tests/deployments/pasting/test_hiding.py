"""What is hidden in a pasted text before it is shown again: each of a table of examples; and near misses stay."""

import time

import pytest

from deployments.pasting.hiding import hide, looks_random
from panel.core.mask import HIDDEN

SECRET = "Zq8fW2kLmN4pR7tV0xYb"
HEX = "3f9ac1d2e4b5a6978812fedc90ab34cd3f9ac1d2e4b5a6978812fedc90ab34cd"
GPU = "GPU-5f2d8c1e-77aa-4b0c-9e6d-1a2b3c4d5e6f"

# (text, what must not be in what is shown)
HIDDEN_ONES = [
    ("docker login -u me -p plainword registry.example.org", "plainword"),
    ("docker login -u me -pplainword", "plainword"),
    ("docker login --username me --password plainword", "plainword"),
    ("docker login \\\n  -u me \\\n  -p 'plain word' && docker run x", "plain word"),
    ("podman login -u=me -p=plainword host", "plainword"),
    ("echo plainword | docker login -u me --password-stdin", "plainword"),
    ('echo -n "plainword" | huggingface-cli login', "plainword"),
    ("huggingface-cli login --token plainword", "plainword"),
    ("hf auth login --token=plainword", "plainword"),
    ("wandb login plainword", "plainword"),
    ("sshpass -p plainword ssh me@host", "plainword"),
    ("mysql -u root -pplainword db", "plainword"),
    ("redis-cli -h x -a plainword ping", "plainword"),
    ("docker run -e TOKEN=plainword image", "plainword"),
    ("docker run --env HF_TOKEN=plainword image", "plainword"),
    (f"docker run -e HFTOKEN={SECRET} image", SECRET),
    (f"docker run -e MY_TOK_KEY={SECRET} image", SECRET),
    ("PGPASSWORD=plainword psql", "plainword"),
    ("curl -H 'Authorization: Bearer plainword' http://x/v1/models", "plainword"),
    ("curl -H 'Authorization: Basic cGxhaW53b3Jk' http://x", "cGxhaW53b3Jk"),
    ("curl -H 'Authorization: Token plainword' http://x", "plainword"),
    ("curl -H 'X-API-Key: plainword' http://x", "plainword"),
    ("curl -u me:plainword http://x", "plainword"),
    ("curl --user 'me:plainword' http://x", "plainword"),
    ("git clone https://me:plainword@example.org/a/b", "plainword"),
    ("git clone https://me:plain@word@example.org/a/b", "word"),
    (f"git clone https://{SECRET}@example.org/a/b", SECRET),
    ("pip install --index-url https://me:plainword@example.org/simple vllm", "plainword"),
    ("postgres me:plainword@db.example.org:5432", "plainword"),
    (f"wget 'https://x.example.org/m.gguf?X-Amz-Signature={HEX}'", HEX),
    (f"curl 'https://x/blob?sig={SECRET}%2B&se=1'", SECRET),
    (f"# my token: {SECRET}", SECRET),
    (f"# the key for the hub is {SECRET}, ask Mina", SECRET),
    (f"password {SECRET}", SECRET),
    (f"{SECRET} is my token", SECRET),
    (f"{SECRET} # hub token", SECRET),
    (f"密码是{SECRET}", SECRET),
    (f"secret {HEX}", HEX),
    ("licence key ABCDE-12345-FGHIJ-67890", "ABCDE-12345"),
    ("key: dGhpcyBpcyBhIHZlcnkgc2VjcmV0IHRoaW5n/+A=", "dGhpcyBpcyBh"),
    ("dckr_pat_abcdefghijklmnopqrstuv", "abcdefghijklmn"),
    ("export GROQ=gsk_abcdefghijklmnopqrstuv", "abcdefghijklmn"),
    ("AIzaSyabcdefghijklmnopqrstuvwxyz0123456", "abcdefghijklm"),
]  # fmt: skip

# What looks a little like one, and means something to who reads the text.
KEPT = [
    "vllm serve Qwen/Qwen3-30B-A3B-Instruct-2507-FP8 --max-model-len 32768",
    "vllm serve deepseek-ai/DeepSeek-R1-Distill-Qwen-7B --served-model-name DeepSeekR1DistillQwen7B",
    "--api-key $KEY --served-model-name Mixtral-8x7B-Instruct-v0.1-AWQ",
    "the key model is TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ",
    "token classification with dslim/bert-base-NER-uncased-finetuned",
    f"CUDA_VISIBLE_DEVICES={GPU} vllm serve a/b",
    f"the key GPU is {GPU}",
    f"docker run vllm/vllm-openai@sha256:{HEX}",
    f"docker run vllm/vllm-openai:v0.9.1@sha256:{HEX} --model a/b",
    f"sha256 of the key file: {HEX}",
    f"vllm serve a/b --revision {HEX[:40]} --tokenizer-revision {HEX[:40]}",
    f"vllm serve a/b --tokenizer x/y-{HEX[:8]}",
    "vllm serve a/b --max-num-batched-tokens 8192 --kv-cache-dtype fp8_e5m2 --seed 20240613123456",
    "vllm serve /models/hub/models--Qwen--Qwen3-8B/snapshots/895c8d171bc03c30e113cd7a28c02494b5e068b7",
    "docker run -p 8000:8000 --user 1000:1000 -u $(id -u):$(id -g) -v /a:/b image",
    "docker run --user vllm:vllm image",
    "docker login -u me -p $PASSWORD",
    "echo $TOKEN | docker login --password-stdin",
    "ssh -p 2222 me@host; scp a.gguf me@host:/models/",
    "git clone git@github.com:org/repo.git && cd repo",
    "curl http://127.0.0.1:8000/v1/models -H 'Content-Type: application/json'",
    "tool_call_parser=hermes reasoning_parser=deepseek_r1 --chat-template-content-format=openai",
    "tokens per second: 1234.5; keys: 8; pass: 3; auth: none",
    "OMP_NUM_THREADS=16 VLLM_CPU_KVCACHE_SPACE=40 NCCL_DEBUG=INFO",
    """--limit-mm-per-prompt '{"image": 4}' --speculative-config '{"model": "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3"}'""",
    "keyboard shortcut: ctrl-alt-delete, secretary: somebody, tokenizer: llama-tokenizer-fast",
]  # fmt: skip


@pytest.mark.parametrize(("text", "secret"), HIDDEN_ONES, ids=range(len(HIDDEN_ONES)))
def test_hidden(text: str, secret: str) -> None:
    shown = hide(f"{text}\nvllm serve a/b\n")
    assert secret not in shown and HIDDEN in shown
    assert "vllm serve a/b" in shown
    assert hide(shown) == shown, "hiding twice hides no more"


@pytest.mark.parametrize("text", KEPT, ids=range(len(KEPT)))
def test_near_misses_stay(text: str) -> None:
    assert hide(text) == text


@pytest.mark.parametrize(
    "word", ["Instruct", "Llama-3.3-70B-Instruct", "2024-06-13", "v0.10.2rc1", "model.safetensors.index.json"]
)
def test_names_do_not_look_random(word: str) -> None:
    assert not looks_random(word, least=8)


@pytest.mark.parametrize(
    "piece",
    [
        "login ", "login -p", "echo ", "a:b@", "://", "x=", "token ", "key: ", "mysql -p", f"{SECRET} ", f"key {SECRET} ",
        "is key ", "-u a:b ", "密码", "\\\n", "redis-cli -a",
    ],
)  # fmt: skip
def test_time_grows_with_length_only(piece: str) -> None:
    def seconds(length: int) -> float:
        text = (piece * length)[:length]

        def once() -> float:
            begin = time.process_time()
            hide(text)
            return time.process_time() - begin

        return min(once() for _ in range(3))

    assert seconds(40_000) < 0.05 + 12 * seconds(10_000)
