# The panel: web, workers and their start. Build from the checkout: docker build -f docker/panel.Dockerfile -t berth .
FROM python:3.13-slim AS packages
WORKDIR /berth
COPY panel/__init__.py panel/lock.py panel/
COPY requirements.lock .
RUN python -m panel.lock select agent panel > wanted.txt \
 && python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir --no-deps --require-hashes -r wanted.txt

FROM python:3.13-slim
RUN useradd --create-home --uid 10001 berth && install -d -o berth -g berth -m 0700 /data
COPY --from=packages /venv /venv
WORKDIR /berth
COPY manage.py requirements.lock ./
COPY panel panel
COPY models_catalog models_catalog
COPY deployments deployments
COPY templates templates
COPY static static
COPY locale locale
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    BERTH_DATA=/data BERTH_BIND=0.0.0.0:8080 BERTH_LOCAL_AGENT=0
RUN python -m compileall -q panel models_catalog deployments
USER berth
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
CMD ["python", "manage.py", "up"]
