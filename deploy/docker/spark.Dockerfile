# The image toc-spark: that of toc with Java and the extra `reconcile`, for `toc nightly` and `toc reconcile`.
# In the root of the clone, once toc:0.1.0 is built:
# docker build --file deploy/docker/spark.Dockerfile --tag toc-spark:0.1.0 .
ARG BASE=python:3.11.15-slim-bookworm

FROM ${BASE} AS build
WORKDIR /build
RUN python3 -m venv tools
COPY requirements-build.lock requirements-spark.lock ./
RUN tools/bin/pip install --no-cache-dir --only-binary :all: --require-hashes --requirement requirements-build.lock
# PySpark comes as source, which is built here.
RUN tools/bin/pip wheel --no-cache-dir --no-build-isolation --only-binary :all: --no-binary pyspark \
    --no-deps --require-hashes --wheel-dir wheels --requirement requirements-spark.lock
COPY --from=toc:0.1.0 /opt/toc /opt/toc
RUN tools/bin/pip --python /opt/toc/bin/python install --no-cache-dir --no-deps --no-index wheels/*.whl

FROM toc:0.1.0
USER 0:0
# A slim base has no folder of manual pages, in which Java's package makes links.
RUN mkdir -p /usr/share/man/man1 \
    && apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/toc /opt/toc
# For reconcile.directory: a new volume gets the owner of this folder.
RUN install --directory --owner=10001 --group=10001 /var/lib/toc
USER 10001:10001
