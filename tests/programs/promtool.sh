#!/bin/sh
# promtool.sh: prints the path of Prometheus' promtool: that of PATH, or the one of Debian's package
# prometheus, unpacked into $KAFKAWIRE_TEST_HOME (~/.cache/kafkawire-tests)/programs/promtool. The
# package is not installed, since that would start a server. Building it with Go would fetch the
# clients of every cloud. Exits with 1 where it cannot be had.
set -eu
if command -v promtool; then exit 0; fi
home=${KAFKAWIRE_TEST_HOME:-$HOME/.cache/kafkawire-tests}/programs/promtool
program=$home/promtool
if [ ! -x "$program" ]; then
  command -v apt-get >/dev/null && command -v dpkg >/dev/null || { echo "no Debian" >&2; exit 1; }
  mkdir -p "$home"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  if ! apt-get download -qq prometheus >&2; then
    apt-get update -qq >&2 && apt-get download -qq prometheus >&2
  fi
  dpkg -x prometheus_*.deb unpacked
  cp unpacked/usr/bin/promtool "$program.new"
  mv "$program.new" "$program"
fi
echo "$program"
