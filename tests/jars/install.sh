#!/bin/sh
# Fetches the jars of pom.xml by Maven into $KAFKAWIRE_TEST_HOME (~/.cache/kafkawire-tests)/tables.
# Does nothing when they are there; prints their folder. Called by make test and tests/kit/jars.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
home=${KAFKAWIRE_TEST_HOME:-$HOME/.cache/kafkawire-tests}/tables
want=$(cksum < "$here/pom.xml")

if [ "$(cat "$home/installed" 2>/dev/null)" != "$want" ]; then
  rm -rf "$home"
  mkdir -p "$home"
  # What they need besides, Spark brings.
  mvn -q -B -ntp -f "$here/pom.xml" dependency:copy-dependencies \
    -DoutputDirectory="$home/libs" -DexcludeTransitive=true >&2
  echo "$want" > "$home/installed"
fi
echo "$home/libs"
