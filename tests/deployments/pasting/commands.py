"""Commands as people paste them, and what each must become. One row: (name, text, what is expected)."""

from typing import Any

# Keys of the expectation: engine, model, quant, name, device, task, gpus, count, opt (options), args, env, kv, restart,
# mounts-free paths by `model`; `codes` must be among the findings, `no` must not.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("plain", "vllm serve Qwen/Qwen3-8B", {"model": "Qwen/Qwen3-8B"}),
    ("prompt", "$ vllm serve Qwen/Qwen3-8B", {"model": "Qwen/Qwen3-8B"}),
    ("root-prompt", "# vllm serve Qwen/Qwen3-8B --dtype half", {"model": "Qwen/Qwen3-8B", "opt": {"dtype": "float16"}}),
    (
        "user-prompt",
        "(venv) me@gpu-01:~/llm$ vllm serve /data/models/Qwen3-8B --port 9000",
        {"model": "/data/models/Qwen3-8B", "codes": ["paste.own"]},
    ),
    ("bracket-prompt", "[root@node ~]# vllm serve a/b", {"model": "a/b"}),
    ("notebook", "!vllm serve a/b --max-num-seqs 8", {"model": "a/b", "opt": {"max_num_seqs": 8}}),
    ("fence", "```bash\nvllm serve a/b\n```", {"model": "a/b"}),
    ("inline-code", "Start it by `vllm serve a/b --seed 7`, then wait.", {"model": "a/b", "args": ["--seed", "7"]}),
    ("prose", "Don't forget to run:\nvllm serve a/b\nIt's easy.", {"model": "a/b"}),
    (
        "old-server",
        "python -m vllm.entrypoints.openai.api_server --model /srv/llama --tensor-parallel-size 4 --swap-space 16"
        " --disable-log-requests",
        {"model": "/srv/llama", "count": 4, "codes": ["flag.removed_no_effect", "flag.translated"]},
    ),
    ("python-options", "python3.11 -u -X dev -m vllm.entrypoints.openai.api_server --model=a/b", {"model": "a/b"}),
    ("path-of-program", "/opt/venvs/vllm/bin/vllm serve a/b", {"model": "a/b"}),
    ("python-program", "/opt/v/bin/python /opt/v/bin/vllm serve a/b", {"model": "a/b"}),
    ("uv", "uv run --with vllm vllm serve a/b", {"model": "a/b"}),
    ("conda", "conda run -n llm vllm serve a/b", {"model": "a/b"}),
    (
        "gpus-by-variable",
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve a/b --tensor-parallel-size 2",
        {"gpus": ["0", "1"], "count": 2, "args": []},
    ),
    (
        "gpus-without-parts",
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve a/b",
        {"gpus": ["0", "1"], "codes": ["paste.gpus_without_parts"]},
    ),
    (
        "more-gpus-than-parts",
        "CUDA_VISIBLE_DEVICES=2,3 vllm serve a/b -tp 1",
        {"gpus": ["2"], "codes": ["paste.first_gpus"]},
    ),
    (
        "too-few-gpus",
        "CUDA_VISIBLE_DEVICES=0 vllm serve a/b -tp=4",
        {"gpus": [], "count": 4, "codes": ["paste.too_few_gpus"]},
    ),
    ("no-gpu", "CUDA_VISIBLE_DEVICES= vllm serve a/b", {"device": "cpu", "gpus": []}),
    (
        "parts",
        "vllm serve a/b -tp 2 -pp 2",
        {"count": 4, "args": ["--tensor-parallel-size", "2", "--pipeline-parallel-size", "2"]},
    ),
    ("cpu", "VLLM_CPU_KVCACHE_SPACE=40 VLLM_TARGET_DEVICE=cpu vllm serve a/b", {"device": "cpu", "kv": 40, "env": {}}),
    (
        "wrapped",
        "sudo -E nohup env CUDA_VISIBLE_DEVICES=1 numactl -N 0 -m 0 vllm serve a/b > vllm.log 2>&1 &",
        {"model": "a/b", "gpus": ["1"], "args": []},
    ),
    ("timeout-exec", "exec timeout -s INT 3600 nice -n 5 vllm serve a/b", {"model": "a/b"}),
    ("tmux", 'tmux new -d -s llm "vllm serve a/b --seed 3"', {"model": "a/b", "args": ["--seed", "3"]}),
    ("bash-c", "bash -lc 'CUDA_VISIBLE_DEVICES=1 vllm serve a/b'", {"model": "a/b", "gpus": ["1"]}),
    (
        "several-commands",
        "cd /data && source venv/bin/activate && pip install -U vllm; export CUDA_VISIBLE_DEVICES=0\nvllm serve ./Qwen3",
        {"model": "/data/Qwen3", "gpus": ["0"], "codes": ["paste.other_commands"]},
    ),
    (
        "variables-of-the-text",
        'MODEL=Qwen/Qwen3-8B\nexport LEN="32k"\nvllm serve $MODEL --max-model-len ${LEN} --seed ${SEED:-5}',
        {"model": "Qwen/Qwen3-8B", "opt": {"max_model_len": 32000}, "args": ["--seed", "5"]},
    ),
    ("unknown-variable", "vllm serve $HOME/models/x", {"model": "", "codes": ["paste.model_unresolved"]}),
    ("command-substitution", "vllm serve a/b --seed $(date +%s)", {"args": [], "codes": ["paste.unresolved"]}),
    ("backticks", "vllm serve a/b --seed `date +%s`", {"model": "a/b", "codes": ["paste.unresolved"], "args": []}),
    ("placeholder", "vllm serve <your-model>", {"model": "", "codes": ["paste.model_unresolved"]}),
    (
        "continued",
        "vllm serve a/b \\\n    --max-model-len 8192 \\\n    --gpu-memory-utilization=0.85",
        {"opt": {"max_model_len": 8192, "gpu_memory_utilization": 0.85}},
    ),
    (
        "continued-with-comments",
        "vllm serve a/b \\   # the model\n  # --seed 1 \\\n  --seed 2 \\\n",
        {"args": ["--seed", "2"]},
    ),
    (
        "lost-backslash",
        "vllm serve a/b\n  --seed 2\n  --enforce-eager",
        {"args": ["--seed", "2", "--enforce-eager"], "codes": ["paste.joined"]},
    ),
    ("second-prompt", "$ vllm serve a/b \\\n> --seed 2", {"args": ["--seed", "2"]}),
    ("crlf", "vllm serve a/b \\\r\n  --seed 2\r\n", {"args": ["--seed", "2"]}),
    (
        "typography",
        "vllm\u00a0serve “/srv/my models/Qwen” —max-model-len 4096 –seed 7 －－dtype half",
        {
            "model": "/srv/my models/Qwen",
            "opt": {"max_model_len": 4096, "dtype": "float16"},
            "args": ["--seed", "7"],
            "codes": ["paste.typography"],
        },
    ),
    ("zero-width", "vllm\u200b serve a/b\ufeff", {"model": "a/b"}),
    ("full-width-equals", "vllm serve a/b --seed＝4", {"args": ["--seed", "4"]}),
    ("short-dash", "llama-server –m /m/x.gguf", {"model": "/m/x.gguf"}),
    ("minus-signs", "vllm serve a/b −−seed 4", {"args": ["--seed", "4"]}),
    ("curly-single", "vllm serve a/b --chat-template ‘/m/t.jinja’", {"args": ["--chat-template", "/m/t.jinja"]}),
    (
        "json-quoted",
        """vllm serve a/b --speculative-config '{"method": "ngram", "num_speculative_tokens": 3}'""",
        {"args": ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']},
    ),
    (
        "json-bare",
        'vllm serve a/b --speculative-config {"method": "ngram", "num_speculative_tokens": 3}',
        {"args": ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']},
    ),
    (
        "json-escaped",
        'vllm serve a/b --hf-overrides "{\\"max_position_embeddings\\": 9}"',
        {"args": ["--hf-overrides", '{"max_position_embeddings": 9}']},
    ),
    (
        "json-by-parts",
        "vllm serve a/b --speculative-config.method ngram --speculative-config.num_speculative_tokens=3",
        {"args": ["--speculative-config.method=ngram", "--speculative-config.num-speculative-tokens=3"]},
    ),
    ("negative", "vllm serve a/b --no-enable-prefix-caching", {"args": ["--no-enable-prefix-caching"]}),
    ("switch-true", "vllm serve a/b --enable-prefix-caching True", {"args": ["--enable-prefix-caching"]}),
    (
        "underscores",
        "vllm serve a/b --max_model_len 1K --max_num_seqs=2",
        {"opt": {"max_model_len": 1024, "max_num_seqs": 2}},
    ),
    ("usual", "vllm serve a/b --dtype auto --max-model-len -1", {"opt": {}, "codes": ["paste.usual"]}),
    ("level", "vllm serve a/b -O3", {"args": ["--optimization-level", "3"]}),
    ("model-flag-and-positional", "vllm serve a/b --model c/d", {"model": "a/b", "codes": ["paste.two_models"]}),
    (
        "model-last",
        "vllm serve --enforce-eager --seed 3 a/b",
        {"model": "a/b", "args": ["--enforce-eager", "--seed", "3"]},
    ),
    (
        "served-names",
        "vllm serve a/b --served-model-name Org/My_Model gpt-4",
        {"name": "my-model", "codes": ["paste.first_name", "paste.name_changed"]},
    ),
    ("task-embed", "vllm serve a/b --task embed", {"task": "embed", "args": []}),
    ("runner-pooling", "vllm serve a/b --runner pooling --convert classify", {"task": "score", "args": []}),
    ("remote-code", "vllm serve a/b --trust-remote-code", {"args": [], "codes": ["paste.remote_code"]}),
    (
        "loads-code",
        "vllm serve a/b --middleware evil.Mod --tool-parser-plugin /x.py",
        {"args": [], "codes": ["option.denied_code"]},
    ),
    ("network", "vllm serve a/b --otlp-traces-endpoint http://x:1", {"args": [], "codes": ["option.denied_network"]}),
    ("unknown", "vllm serve a/b --max-modle-len 5", {"args": [], "codes": ["flag.unknown"]}),
    (
        "bad-number",
        "vllm serve a/b --max-num-seqs many --seed x",
        {"opt": {}, "args": [], "codes": ["paste.bad_value", "option.not_an_int"]},
    ),
    ("config-file", "vllm serve a/b --config c.yaml", {"codes": ["paste.config_file"]}),
    ("twice", "vllm serve a/b --seed 1 --seed 2", {"args": ["--seed", "2"], "codes": ["paste.twice"]}),
    (
        "gone-speculative",
        "vllm serve a/b --speculative-model /m/d --num-speculative-tokens 5",
        {
            "args": ["--speculative-config", '{"model": "/m/d", "num_speculative_tokens": 5}'],
            "codes": ["flag.translated"],
        },
    ),
    ("device-flag", "vllm serve a/b --device cuda", {"device": "gpu"}),
    ("host-port-only", "vllm serve a/b --host 0.0.0.0 --port 80", {"args": [], "codes": ["paste.own"]}),
    (
        "variables",
        "VLLM_USE_V1=1 OMP_NUM_THREADS=8 LD_PRELOAD=/x.so vllm serve a/b",
        {"env": {"VLLM_USE_V1": "1", "OMP_NUM_THREADS": "8"}, "codes": ["env.denied"]},
    ),
    (
        "exported-noise",
        "export PATH=/x:$PATH\nexport OMP_NUM_THREADS=8\nvllm serve a/b",
        {"env": {"OMP_NUM_THREADS": "8"}, "codes": ["paste.loose_variables"]},
    ),
    (
        "hub-variables",
        "HF_ENDPOINT=https://m HF_HUB_OFFLINE=1 vllm serve a/b",
        {"env": {}, "codes": ["paste.model_variable", "paste.own"]},
    ),
    ("two-engines", "vllm serve a/b &\nvllm serve c/d", {"model": "a/b", "codes": ["paste.more_engines"]}),
    (
        "gguf",
        "vllm serve /m/x-Q4_K_M.gguf --tokenizer Qwen/Qwen3-8B",
        {"model": "/m/x-Q4_K_M.gguf", "args": ["--tokenizer", "Qwen/Qwen3-8B"]},
    ),
    # containers
    (
        "docker",
        "docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/root/.cache/huggingface -p 8000:8000 --ipc=host"
        " vllm/vllm-openai:latest --model mistralai/Mistral-7B-v0.1",
        {"model": "mistralai/Mistral-7B-v0.1", "count": 1},
    ),
    (
        "docker-devices",
        "sudo docker run -itd --rm --name qwen --gpus '\"device=2,3\"' --shm-size 16g -v /data/models:/models:ro -e VLLM_USE_V1=1"
        " --restart unless-stopped vllm/vllm-openai:v0.8.5 --model /models/Qwen3 --tensor-parallel-size 2"
        " --chat-template /models/t.jinja",
        {
            "model": "/data/models/Qwen3",
            "gpus": ["2", "3"],
            "name": "qwen",
            "env": {"VLLM_USE_V1": "1"},
            "args": ["--chat-template", "/data/models/t.jinja"],
            "restart": {"policy": "on_failure"},
        },
    ),
    ("docker-count", "docker run --gpus=2 -p8000:8000 -eA=b vllm/vllm-openai --model a/b -tp 2", {"count": 2}),
    (
        "docker-mount",
        "docker run --mount type=bind,source=/d,target=/m vllm/vllm-openai --model /m/x/y",
        {"model": "/d/x/y"},
    ),
    ("docker-deepest-mount", "docker run -v /a:/m -v /b:/m/x vllm/vllm-openai --model /m/x/y", {"model": "/b/y"}),
    (
        "docker-entrypoint",
        "docker run --entrypoint python3 img:1 -m vllm.entrypoints.openai.api_server --model a/b",
        {"model": "a/b"},
    ),
    (
        "docker-bash",
        'docker run img bash -c "pip install x && vllm serve a/b --seed 2"',
        {"model": "a/b", "args": ["--seed", "2"]},
    ),
    ("docker-no-restart", "docker run --restart no vllm/vllm-openai --model a/b", {"restart": {"policy": "never"}}),
    (
        "docker-tries",
        "docker run --restart on-failure:3 vllm/vllm-openai a/b",
        {"restart": {"policy": "on_failure", "max_attempts": 3}},
    ),
    (
        "docker-inner-gpus",
        "docker run --gpus device=4,5,6 -e CUDA_VISIBLE_DEVICES=0,2 vllm/vllm-openai -tp 2 --model a/b",
        {"gpus": ["4", "6"]},
    ),
    ("docker-env-file", "docker run --env-file x.env vllm/vllm-openai --model a/b", {"codes": ["paste.env_file"]}),
    (
        "docker-windows",
        "docker run -v C:\\models:/models vllm/vllm-openai --model /models/x",
        {"model": "C:\\models/x"},
    ),
    ("podman", "podman run --device nvidia.com/gpu=1 docker.io/vllm/vllm-openai:latest --model a/b", {"gpus": ["1"]}),
    (
        "visible-devices",
        "docker run -e NVIDIA_VISIBLE_DEVICES=3 vllm/vllm-openai --model a/b",
        {"gpus": ["3"], "env": {}},
    ),
    (
        "own-image",
        "docker run my/image --model a/b --max-model-len 4096",
        {"model": "a/b", "opt": {"max_model_len": 4096}},
    ),
    (
        "compose",
        "services:\n  llm:\n    image: vllm/vllm-openai:latest\n    command: >\n      --model Qwen/Qwen3-8B\n      --tensor-parallel-size 2\n"
        "    environment:\n      - HF_TOKEN=${HF_TOKEN}\n      - OMP_NUM_THREADS=4\n    volumes: ['/d:/m']\n"
        "    deploy:\n      resources:\n        reservations:\n          devices:\n            - {driver: nvidia, count: 2, capabilities: [gpu]}\n",
        {
            "model": "Qwen/Qwen3-8B",
            "count": 2,
            "env": {"OMP_NUM_THREADS": "4"},
            "name": "llm",
            "codes": ["paste.secret_hub"],
        },
    ),
    (
        "systemd",
        '[Service]\nUser=llm\nEnvironment="CUDA_VISIBLE_DEVICES=1" OMP_NUM_THREADS=4\nExecStart=/opt/v/bin/vllm serve /m/x \\\n'
        "  --seed 3\nRestart=always\nTimeoutStopSec=45\n",
        {
            "model": "/m/x",
            "gpus": ["1"],
            "env": {"OMP_NUM_THREADS": "4"},
            "args": ["--seed", "3"],
            "restart": {"policy": "on_failure"},
        },
    ),
    # other engines
    (
        "llama-server",
        "llama-server -m /m/q.gguf -c 32768 -np 4 -ngl 99 -fa on --jinja --temp 0.6 --host 0.0.0.0 --port 8080 --alias qwen",
        {
            "engine": "llamacpp",
            "model": "/m/q.gguf",
            "name": "qwen",
            "opt": {"max_model_len": 8192, "max_num_seqs": 4},
            "codes": ["paste.other_engine", "paste.shared_context", "paste.no_counterpart"],
        },
    ),
    (
        "llama-hub",
        "llama-server -hf ggml-org/gemma-3-1b-it-GGUF:Q4_K_M",
        {"engine": "llamacpp", "model": "ggml-org/gemma-3-1b-it-GGUF", "quant": "Q4_K_M"},
    ),
    (
        "llama-old",
        "./server -m models/7B/ggml-model.gguf -c 2048",
        {"engine": "llamacpp", "model": "models/7B/ggml-model.gguf"},
    ),
    ("llama-build", "./build/bin/llama-server --model /m/x.gguf --n-gpu-layers 0", {"device": "cpu"}),
    ("llama-some-layers", "llama-server -m /m/x.gguf -ngl 12", {"codes": ["paste.some_layers"]}),
    ("llama-embedding", "llama-server -m /m/e.gguf --embedding --pooling mean", {"task": "embed"}),
    ("llama-rerank", "llama-server -m /m/e.gguf --reranking", {"task": "score"}),
    ("llama-devices", "llama-server -m /m/x.gguf -dev CUDA1,CUDA2 -ts 1,1", {"gpus": ["1", "2"], "count": 2}),
    (
        "llama-url",
        "llama-server -mu https://hub.example/a/b-GGUF/resolve/main/b-Q8_0.gguf",
        {"model": "a/b-GGUF", "quant": "b-Q8_0.gguf"},
    ),
    (
        "llama-docker",
        "docker run -v /m:/models --gpus all ghcr.io/ggml-org/llama.cpp:server-cuda -m /models/x.gguf --port 80",
        {"engine": "llamacpp", "model": "/m/x.gguf"},
    ),
    (
        "llama-python",
        "python -m llama_cpp.server --model /m/x.gguf --n_gpu_layers -1 --n_ctx 4096",
        {"engine": "llamacpp", "opt": {"max_model_len": 4096}},
    ),
    (
        "powershell",
        'PS C:\\Users\\me> $env:CUDA_VISIBLE_DEVICES = "0"\nPS C:\\Users\\me> .\\llama-server.exe -m "C:\\my models\\x.gguf" `\n   -c 4096',
        {"engine": "llamacpp", "model": "C:\\my models\\x.gguf", "gpus": ["0"], "opt": {"max_model_len": 4096}},
    ),
    (
        "cmd",
        'C:\\llm>set CUDA_VISIBLE_DEVICES=1\nC:\\llm>llama-server.exe -m C:\\m\\x.gguf ^\n  --ctx-size 4096 --alias "my model"',
        {"model": "C:\\m\\x.gguf", "gpus": ["1"], "name": "my-model", "opt": {"max_model_len": 4096}},
    ),
    ("ollama", 'ollama run llama3.2:1b "why is the sky blue?"', {"engine": "ollama", "model": "llama3.2:1b"}),
    (
        "ollama-pair",
        "OLLAMA_CONTEXT_LENGTH=8192 OLLAMA_HOST=0.0.0.0 ollama serve &\nollama run qwen3:8b --verbose",
        {"engine": "ollama", "model": "qwen3:8b", "opt": {"max_model_len": 8192}, "env": {}},
    ),
    (
        "ollama-serve-alone",
        "OLLAMA_NUM_PARALLEL=4 ollama serve",
        {"engine": "ollama", "model": "", "opt": {"max_num_seqs": 4}, "codes": ["paste.no_model"]},
    ),
    (
        "ollama-docker",
        "docker run -d --gpus=all -v ollama:/root/.ollama --name ollama ollama/ollama\ndocker exec -it ollama ollama run llama3",
        {"engine": "ollama", "model": "llama3"},
    ),
    (
        "sglang",
        "python -m sglang.launch_server --model-path Qwen/QwQ-32B --tp 2 --context-length 32768 --mem-fraction-static 0.8"
        " --max-running-requests 64 --disable-radix-cache --attention-backend flashinfer --port 30000",
        {
            "engine": "sglang",
            "model": "Qwen/QwQ-32B",
            "count": 2,
            "args": ["--no-enable-prefix-caching"],
            "opt": {"max_model_len": 32768, "gpu_memory_utilization": 0.8, "max_num_seqs": 64},
        },
    ),
    (
        "sglang-docker",
        'export model=a/b\nexport tp=2\nsudo docker run --gpus all --env "HF_TOKEN=${TOKEN}" --ipc=host lmsysorg/sglang:latest'
        " python3 -m sglang.launch_server --model-path ${model} --host 0.0.0.0 --tp ${tp}",
        {"engine": "sglang", "model": "a/b", "count": 2},
    ),
    ("sglang-embedding", "python3 -m sglang.launch_server --model-path a/b --is-embedding", {"task": "embed"}),
    ("sglang-serve", "sglang serve --model-path a/b", {"engine": "sglang", "model": "a/b"}),
]

NOTHING = [
    "", "   \n\t", "hello world", "rm -rf / --no-preserve-root", "pip install vllm", "docker ps", "docker run ubuntu ls",
    "ollama list", "vllm bench serve --model x", "python -m http.server", "services: []", "ExecStart=", "#", "$", "`", "“",
]  # fmt: skip

# (text, what must not be anywhere in what comes of it)
SECRETS = [
    ("vllm serve a/b --api-key sk-thisisverysecret123", "thisisverysecret"),
    ("vllm serve a/b --api-key=plainword", "plainword"),
    ("vllm serve a/b --api-key -dashed-secret-value", "dashed-secret"),
    ("vllm serve a/b --api-key one-key-here two-key-here --seed 1", "two-key"),
    ("VLLM_API_KEY=plainword vllm serve a/b", "plainword"),
    ("HF_TOKEN=hf_abcdefghijklmnopqrst vllm serve a/b", "abcdefghij"),
    ("export HUGGING_FACE_HUB_TOKEN=justletters\nvllm serve a/b", "justletters"),
    ("docker run -e HF_TOKEN=justletters vllm/vllm-openai --model a/b", "justletters"),
    ("docker run --env MY_SECRET=justletters vllm/vllm-openai --model a/b", "justletters"),
    ("KEY=justletters\nvllm serve a/b --api-key $KEY", "justletters"),
    ("OPENAI_API_KEY=justletters vllm serve a/b", "justletters"),
    ("WANDB_API_KEY=justletters AWS_SECRET_ACCESS_KEY=othersecret vllm serve a/b", "othersecret"),
    ("llama-server -m /m/x.gguf --api-key justletters", "justletters"),
    ("llama-server -hf a/b -hft justletters", "justletters"),
    ("python -m sglang.launch_server --model-path a/b --api-key justletters", "justletters"),
    ("vllm serve a/b --hf-token justletters", "justletters"),
    ("""vllm serve a/b --hf-overrides '{"api_key": "justletters"}'""", "justletters"),
    ("vllm serve a/b --otlp-traces-endpoint https://me:justletters@host", "justletters"),
    ("bash -c 'VLLM_API_KEY=justletters vllm serve a/b'", "justletters"),
    ("services:\n  a:\n    image: vllm/vllm-openai\n    command: --model a/b\n    environment: {VLLM_API_KEY: justletters}", "justletters"),
    ("[Service]\nEnvironment=VLLM_API_KEY=justletters\nExecStart=/v/vllm serve a/b", "justletters"),
    ("$env:VLLM_API_KEY = 'justletters'\nvllm serve a/b", "justletters"),
    ("set HF_TOKEN=justletters\nvllm serve C:\\m", "justletters"),
]  # fmt: skip
