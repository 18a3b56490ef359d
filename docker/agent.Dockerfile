# The agent of a GPU host, in an image that brings the engine. Build from the checkout:
#   docker build -f docker/agent.Dockerfile -t berth-agent .
# Run it with the host's network (the agent listens nowhere, engines listen on loopback) and its GPUs; see docs/running.md.
ARG ENGINE_IMAGE=vllm/vllm-openai:v0.32.0
FROM ${ENGINE_IMAGE}
WORKDIR /berth
COPY panel/__init__.py panel/lock.py panel/
COPY requirements.lock .
# An environment of its own: the engine's packages stay as its image has them.
RUN python3 -m panel.lock select agent > wanted.txt \
 && python3 -m venv /agent \
 && /agent/bin/pip install --no-cache-dir --no-deps --require-hashes -r wanted.txt
COPY panel/core/__init__.py panel/core/
COPY panel/fleet panel/fleet
COPY models_catalog/__init__.py models_catalog/facts.py models_catalog/
COPY models_catalog/inspect models_catalog/inspect
RUN install -d -m 0700 /data
VOLUME /data
STOPSIGNAL SIGTERM
ENTRYPOINT ["/agent/bin/python", "-m", "panel.fleet.agent", "--dir", "/data"]
