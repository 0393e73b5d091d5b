#!/bin/sh
# install.sh NAME: fetches the jars of NAME/pom.xml by Maven into $KAFKAWIRE_TEST_HOME
# (~/.cache/kafkawire-tests)/NAME, for tables (by which Spark reads tables), catalog (a REST catalog)
# or kafka (Apache Kafka, its tools, Streams and Connect) and kafka-4.4 (a newer one without Connect).
# Does nothing when they are there; prints their folder. Called by make test and tests/kit/jars.py.
set -eu
pom=$(cd "$(dirname "$0")" && pwd)/$1/pom.xml
home=${KAFKAWIRE_TEST_HOME:-$HOME/.cache/kafkawire-tests}/$1
case $1 in
  tables) more=-DexcludeTransitive=true ;; # the rest Spark brings
  kafka*) more=-DincludeScope=runtime ;;
  *) more= ;;
esac
want=$(cksum < "$pom")

if [ "$(cat "$home/installed" 2>/dev/null)" != "$want" ]; then
  rm -rf "$home"
  mkdir -p "$home"
  mvn -q -B -ntp -f "$pom" dependency:copy-dependencies -DoutputDirectory="$home/libs" $more >&2
  echo "$want" > "$home/installed"
fi
echo "$home/libs"
