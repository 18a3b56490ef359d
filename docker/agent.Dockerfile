# The agent of a GPU host, in an image that brings the engine. Build from the checkout:
#   docker build -f docker/agent.Dockerfile -t berth-agent .
# Join and run it with the host's network (engines listen on loopback there) and its GPUs; see docs/install.md.
# Engines live in this container: a restart of it stops them. On a host of its own the agent needs no container.
ARG ENGINE_IMAGE=vllm/vllm-openai:v0.32.0
FROM ${ENGINE_IMAGE} AS packages
WORKDIR /berth
COPY panel/__init__.py panel/lock.py panel/
COPY requirements.lock ./
# An environment of its own: the engine's packages stay as its image has them.
RUN python3 -m panel.lock select agent > wanted.txt \
 && python3 -m venv /agent \
 && /agent/bin/python -m pip install --no-cache-dir --no-deps --require-hashes -r wanted.txt

FROM ${ENGINE_IMAGE}
# Engines keep their caches in the home folder: on the volume they survive a new container.
RUN useradd --no-log-init --no-create-home --home-dir /data/home --uid 10001 berth \
 && install -d -o berth -g berth -m 0700 /data /data/home
COPY --from=packages /agent /agent
WORKDIR /berth
COPY panel/__init__.py panel/
COPY panel/core/__init__.py panel/core/mask.py panel/core/outbound.py panel/core/tracebacks.py panel/core/
COPY panel/fleet panel/fleet
COPY models_catalog/__init__.py models_catalog/facts.py models_catalog/
COPY models_catalog/inspect models_catalog/inspect
COPY models_catalog/sources models_catalog/sources
ENV HOME=/data/home PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 10001
VOLUME /data
HEALTHCHECK --interval=60s --timeout=20s --start-period=60s \
    CMD ["/agent/bin/python", "-m", "panel.fleet.agent", "--dir", "/data", "--check"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/agent/bin/python", "-m", "panel.fleet.agent", "--dir", "/data"]
