#!/bin/sh
# Fetches the jars of pom.xml by Maven into $KAFKAWIRE_TEST_HOME (~/.cache/kafkawire-tests)/kafka.
# Does nothing when they are there; prints their folder. Called by make test and tests/java.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
home=${KAFKAWIRE_TEST_HOME:-$HOME/.cache/kafkawire-tests}/kafka
want=$(cksum < "$here/pom.xml")

if [ "$(cat "$home/installed" 2>/dev/null)" != "$want" ]; then
  rm -rf "$home"
  mkdir -p "$home"
  mvn -q -B -ntp -f "$here/pom.xml" dependency:copy-dependencies \
    -DoutputDirectory="$home/libs" -DincludeScope=runtime >&2
  echo "$want" > "$home/installed"
fi
echo "$home/libs"
