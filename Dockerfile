# kafkawire in a slim image, as an unprivileged user, data in the volume /data.
#   docker build -t kafkawire .
#   docker run -p 127.0.0.1:9092:9092 kafkawire serve --advertise localhost:9092
#   docker run --rm kafkawire topics list --server HOST:9092
#   docker build -t kafkawire-spark --target spark .     # with Spark and Java: kafkawire pipeline
# It is built by BuildKit, the default since Docker 23, or by buildah and Podman, which ignore the
# health check unless called with --format docker. What changes rarely comes first: the dependencies
# are installed again only after a change of pyproject.toml, and a change of the sources adds one
# layer of 16 MB (4 MB packed). Files of other stages are copied, not mounted: a change of what RUN
# mounts does not invalidate buildah's cached layer, and the image would keep the old sources. Base
# images are pinned by the digest of their index, which Docker publishes in
# docker-library/repo-info.
ARG PYTHON=python:3.13.14-slim-trixie@sha256:9662417aace5ae7b8e2609cce472b72a8958e134ba372808abe9cc1a0c0125e6
ARG JAVA=eclipse-temurin:17.0.20_8-jre-noble@sha256:76bf6d763e84e4d286d5ee3df61e4adeca214977f83c7d8d2327b93db582dd9d

FROM ${JAVA} AS java

FROM ${PYTHON} AS dependencies
ARG EXTRAS=cluster
ENV PIP_CACHE_DIR=/var/cache/pip
WORKDIR /src
RUN python -m venv /opt/kafkawire
COPY pyproject.toml deploy/docker/requirements.py ./
COPY spark/pyproject.toml spark/
RUN --mount=type=cache,target=/var/cache/pip \
    python requirements.py "${EXTRAS}" > requirements.txt \
 && /opt/kafkawire/bin/pip install --requirement requirements.txt

FROM dependencies AS spark-dependencies
RUN --mount=type=cache,target=/var/cache/pip \
    python requirements.py "${EXTRAS}" spark > requirements.txt \
 && /opt/kafkawire/bin/pip install --requirement requirements.txt

# Its commands name the Python of /opt/kafkawire, where the images have them.
FROM ${PYTHON} AS package
ENV PIP_CACHE_DIR=/var/cache/pip
WORKDIR /src
RUN python -m venv /opt/kafkawire
COPY pyproject.toml MANIFEST.in LICENSE README.md ./
COPY kafkawire kafkawire
RUN --mount=type=cache,target=/var/cache/pip \
    /opt/kafkawire/bin/pip install --no-deps --prefix /package .

FROM package AS spark-package
COPY spark spark
RUN --mount=type=cache,target=/var/cache/pip \
    /opt/kafkawire/bin/pip install --no-deps --prefix /package ./spark

FROM ${PYTHON} AS base
RUN groupadd --gid 10001 kafkawire \
 && useradd --uid 10001 --gid kafkawire --home-dir /data --no-create-home kafkawire \
 && install --directory --owner=kafkawire --group=kafkawire /data
COPY --chmod=755 deploy/docker/health /usr/local/bin/kafkawire-health
# KAFKAWIRE_INSECURE: who can reach the container is decided by the ports that are published.
ENV PATH=/opt/kafkawire/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/data \
    KAFKAWIRE_DATA=/data \
    KAFKAWIRE_LISTEN=0.0.0.0:9092 \
    KAFKAWIRE_INSECURE=true \
    KAFKAWIRE_LOG_FORMAT=json \
    KAFKAWIRE_SET_METRICS_LISTENER=0.0.0.0:9404
WORKDIR /data
VOLUME /data
EXPOSE 9092 9404
# The broker shuts down in order on SIGTERM, Docker's default for stop.
ENTRYPOINT ["kafkawire"]

FROM base AS spark
COPY --from=java /opt/java/openjdk /opt/java/openjdk
COPY --from=spark-dependencies /opt/kafkawire /opt/kafkawire
COPY --from=spark-package /package /opt/kafkawire
ENV JAVA_HOME=/opt/java/openjdk \
    PYSPARK_PYTHON=/opt/kafkawire/bin/python
USER 10001:10001
HEALTHCHECK NONE
CMD ["pipeline", "--help"]

FROM base AS broker
COPY --from=dependencies /opt/kafkawire /opt/kafkawire
COPY --from=package /package /opt/kafkawire
# By number: Kubernetes cannot check a name for runAsNonRoot.
USER 10001:10001
# Starts no Python. A broker without metrics.listener is run with --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s --retries=3 CMD ["kafkawire-health"]
CMD ["serve"]
