# Two stages: the first builds the environment, the second runs it, without compilers and without root.
# A tag may move to another image, a digest cannot: docs/operations.md explains how to pin this one.
ARG PYTHON_IMAGE=python:3.11-slim
FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python -m venv /opt/bco
COPY requirements.lock ./
# torch's CPU build has its own index: set TORCH_INDEX to it, or leave it empty for the default one. Builds differ, so
# pass the hash of the file to install as TORCH_SHA256.
ARG TORCH_INDEX=""
ARG TORCH_SHA256=""
# Dependencies have a layer of their own, because they change less often than the code.
RUN echo "torch==2.13.0${TORCH_SHA256:+ --hash=sha256:$TORCH_SHA256}" > torch.txt \
    && /opt/bco/bin/pip install --no-cache-dir --no-deps ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --requirement torch.txt \
    && /opt/bco/bin/pip install --no-cache-dir --no-deps --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY app app
COPY bco_core bco_core
COPY migrations migrations
RUN /opt/bco/bin/pip install --no-cache-dir --no-deps .

FROM ${PYTHON_IMAGE}
# Boosted trees need OpenMP, which slim images lack.
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --home-dir /var/lib/bco --create-home bco \
    && install --directory --owner=bco --mode=0700 /var/cache/bco
COPY --from=build /opt/bco /opt/bco
# The file system may be read-only except for /tmp, /var/cache/bco (compiled kernels; a volume keeps them over restarts)
# and, with SQLite, /var/lib/bco.
ENV PATH=/opt/bco/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=/var/cache/bco \
    BCO_HOST=0.0.0.0 \
    BCO_PORT=8000 \
    BCO_DATABASE_URL=sqlite:////var/lib/bco/bco.db
WORKDIR /var/lib/bco
USER bco
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python", "-P", "-c", "import os, urllib.request as u; u.urlopen('http://127.0.0.1:' + os.environ['BCO_PORT'] + '/livez', timeout=2)"]
CMD ["bco", "serve"]
