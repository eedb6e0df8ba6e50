# Two stages: one builds the environment, the other carries it, without compilers and without root.
FROM python:3.11-slim AS build
WORKDIR /src
RUN python -m venv /opt/bco
COPY pyproject.toml constraints.txt README.md LICENSE ./
# torch's CPU build has its own index; set TORCH_INDEX to it, or leave it empty to use the default one.
ARG TORCH_INDEX=""
# The dependencies first: they change less often than the code, and a layer of their own is built less often.
RUN mkdir app bco_core migrations \
    && /opt/bco/bin/pip install --no-cache-dir ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} --constraint constraints.txt . \
    && /opt/bco/bin/pip uninstall --yes bco-service
COPY app app
COPY bco_core bco_core
COPY migrations migrations
RUN /opt/bco/bin/pip install --no-cache-dir --no-deps .

FROM python:3.11-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/bco --create-home bco
COPY --from=build /opt/bco /opt/bco
# The file system may be read-only: only /tmp is written to, and /var/lib/bco where SQLite is used.
ENV PATH=/opt/bco/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=/tmp \
    BCO_HOST=0.0.0.0 \
    BCO_DATABASE_URL=sqlite:////var/lib/bco/bco.db
WORKDIR /var/lib/bco
USER bco
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/livez', timeout=2)"]
CMD ["bco", "serve"]
