#!/bin/sh
# install.sh HOME: kfake (franz-go's in-memory fake cluster) as HOME/bin/kfake-bench, by go.
# Exit code 3 with a sentence where that is not possible here.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
binary=$1/bin/kfake-bench
if [ -x "$binary" ] && [ "$binary" -nt "$here/main.go" ]; then exit 0; fi
command -v go >/dev/null || { echo "kfake needs go"; exit 3; }
mkdir -p "$1/bin"
cd "$here"
CGO_ENABLED=0 go build -mod=readonly -trimpath -buildvcs=false -o "$binary.new" .
mv "$binary.new" "$binary"
