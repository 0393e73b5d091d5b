#!/bin/sh
# install.sh HOME: Nisshi 0.8.1 (formerly Tansu) with SQLite storage as HOME/bin/nisshi, by cargo.
# About half an hour on one core. Exit code 3 with a sentence where that is not possible here.
set -eu
version=0.8.1 rust=1.96.0
if [ -x "$1/bin/nisshi" ]; then exit 0; fi
command -v cargo >/dev/null || { echo "Nisshi needs cargo"; exit 3; }
have=$(rustc --version | cut -d' ' -f2)
if [ "$(printf '%s\n' "$have" "$rust" | sort -V | head -n1)" != "$rust" ]; then
  command -v rustup >/dev/null || { echo "Nisshi needs rustc $rust"; exit 3; }
  rustup toolchain install "$rust" --profile minimal
  RUSTUP_TOOLCHAIN=$rust
  export RUSTUP_TOOLCHAIN
fi
# A build folder of its own: an interrupted build goes on where it stopped.
CARGO_TARGET_DIR=$1/build/nisshi cargo install nisshi --version "$version" --locked \
  --no-default-features --features libsql --root "$1"
rm -rf "$1/build/nisshi"
