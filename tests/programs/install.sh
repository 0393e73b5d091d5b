#!/bin/sh
# install.sh NAME: builds the program of the folder NAME (franz-go and helm by Go, rdkafka by Cargo) into
# $KAFKAWIRE_TEST_HOME (~/.cache/kafkawire-tests)/programs/NAME. Does nothing when it is there and
# its sources have not changed; prints its path. rdkafka compiles librdkafka, helm the libraries of
# Kubernetes: one to two minutes each.
# Called by make test and tests/kit/programs.py.
set -eu
source=$(cd "$(dirname "$0")" && pwd)/$1
home=${KAFKAWIRE_TEST_HOME:-$HOME/.cache/kafkawire-tests}/programs/$1
version=$(find "$source" -type f -not -path '*/target/*' | LC_ALL=C sort | xargs cat | cksum | cut -d' ' -f1)
program=$home/copy-$version # of two clones with other sources, each keeps its own

if [ ! -x "$program" ]; then
  mkdir -p "$home"
  cd "$source"
  case $1 in
    franz-go) CGO_ENABLED=0 go build -trimpath -buildvcs=false -o "$program.new" . >&2 ;;
    helm) go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$program.new" helm.sh/helm/v3/cmd/helm >&2 ;;
    rdkafka)
      CARGO_TARGET_DIR="$home/target" cargo build --quiet --release --locked >&2
      cp "$home/target/release/copy" "$program.new" ;; # target stays: librdkafka is in it
  esac
  mv "$program.new" "$program"
fi
echo "$program"
