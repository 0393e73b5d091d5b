#!/bin/sh
# install.sh HOME: Apache Kafka's jars into HOME/kafka/libs, by Maven. Needs Java 17 and mvn.
# Exit code 3 with a sentence where that is not possible here.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
libs=$1/kafka/libs
if ls "$libs"/kafka_2.13-*.jar >/dev/null 2>&1; then exit 0; fi
for tool in java mvn; do
  command -v $tool >/dev/null || { echo "Apache Kafka needs $tool"; exit 3; }
done
mkdir -p "$1/kafka"
mvn -q -B -ntp -f "$here/pom.xml" dependency:copy-dependencies \
  -DincludeScope=runtime -DoutputDirectory="$libs.new"
mv "$libs.new" "$libs"
