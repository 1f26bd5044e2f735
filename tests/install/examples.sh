#!/usr/bin/env bash
# examples.sh BUILD_FOLDER EXAMPLES_FOLDER: installs Ridge into a temporary folder, builds the examples against that package with find_package(ridge), and runs
# each of them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --install "$1" --prefix "$folder/installed" >/dev/null
cmake -S "$2" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$folder/installed" \
  -DCMAKE_RUNTIME_OUTPUT_DIRECTORY="$folder/bin" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
cmake --build "$folder/build" -j 2
cd "$folder"
for program in bin/*; do
  echo "== $(basename "$program")"
  "$program"
done
