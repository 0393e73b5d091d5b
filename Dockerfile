# kafkawire in a slim image, as a user without rights, data in the volume /data.
#   docker build -t kafkawire . && docker run -p 9092:9092 kafkawire --advertise 127.0.0.1:9092
FROM python:3.13-slim AS build
WORKDIR /src
COPY . .
RUN python -m venv /opt/kafkawire \
 && /opt/kafkawire/bin/pip install --no-cache-dir '.[postgres]' \
 && /opt/kafkawire/bin/python -m compileall -q /opt/kafkawire/lib

FROM python:3.13-slim
RUN groupadd --system --gid 10001 kafkawire \
 && useradd --system --uid 10001 --gid kafkawire --home-dir /data --no-create-home kafkawire \
 && install --directory --owner=kafkawire --group=kafkawire /data
COPY --from=build /opt/kafkawire /opt/kafkawire
ENV PATH=/opt/kafkawire/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    KAFKAWIRE_DATA=/data \
    KAFKAWIRE_LISTEN=0.0.0.0:9092 \
    KAFKAWIRE_LOG_FORMAT=json
USER kafkawire
WORKDIR /data
VOLUME /data
EXPOSE 9092
# Asks the broker for its topics, as any client would; KAFKAWIRE_SERVER where 9092 is not listened on.
HEALTHCHECK --interval=10s --timeout=5s --start-period=5s --retries=3 \
  CMD ["kafkawire", "topics", "list", "--json"]
# SIGTERM is what the broker shuts down in order on; that is docker's default for stop.
ENTRYPOINT ["kafkawire", "serve"]
