#!/bin/sh
# Records in S3, the loss of the broker, and a restore from the bucket alone.
#
#   pip install './kafkawire[s3]'; export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...
#   sh s3_log.sh s3://BUCKET/PREFIX [PORT]
#
# Other S3 storage than AWS: export AWS_ENDPOINT_URL=http://minio:9000
set -eu
tier=$1 port=${2:-9092} folder=$(mktemp -d)
export KAFKAWIRE_SERVER="127.0.0.1:$port"

serve() { # DATA: start a broker, and return when it is ready
  : >"$folder/log" # at once: the lines of an earlier broker say that it is ready, too
  kafkawire serve --listen "$KAFKAWIRE_SERVER" --data "$1" --tier "$tier" >"$folder/log" 2>&1 &
  broker=$!
  until grep -q "listens on" "$folder/log"; do
    kill -0 "$broker" || { cat "$folder/log"; exit 1; }
    sleep 0.1
  done
}
trap 'kill "$broker" 2>/dev/null || true; rm -rf "$folder"' EXIT

serve "$folder/first"
kafkawire topics create clicks --config tiering.max.lag.ms=5s
seq 1000 | kafkawire produce clicks
until kafkawire tier why | grep "all records are in the remote tier"; do sleep 1; done

kill -9 "$broker" && rm -rf "$folder/first" # the machine and its disk are gone

kafkawire tier restore --tier "$tier" --data "$folder/second" --yes
serve "$folder/second"
echo "$(kafkawire consume clicks | wc -l) records after the restore"
