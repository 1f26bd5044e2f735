#!/usr/bin/env bash
# self_contained.sh BUILD_FOLDER: the portable folder is under 30 MB, depends only on libc, libm and its own files, and on nothing newer than glibc 2.36.
set -euo pipefail
build=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --install "$build" --component portable --strip --prefix "$folder" >/dev/null

bytes=$(du -sb "$folder" | cut -f1)
echo "$bytes bytes in $(find "$folder" -type f | wc -l) files"
[ "$bytes" -lt $((30 * 1000 * 1000)) ] || { echo "more than 30 MB"; exit 1; }
while read -r file; do
  while read -r library; do
    case $library in
      libc.so.6 | libm.so.6 | ld-linux*) ;;
      *) [ -f "$folder/$library" ] || { echo "$(basename "$file") needs $library, which is not beside it"; exit 1; } ;;
    esac
  done < <(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
  newest=$(objdump -T "$file" | { grep -o 'GLIBC_2\.[0-9]*' || true; } | sort -t. -k2 -n -u | tail -n 1)
  [ -z "$newest" ] || [ "${newest#GLIBC_2.}" -le 36 ] || { echo "$(basename "$file") needs $newest; the promise is 2.36"; exit 1; }
  [[ $file == *.so ]] || readelf -l "$file" | grep -q INTERP || { echo "$(basename "$file") is linked with -static: dlopen would not work"; exit 1; }
done < <(find "$folder" -type f ! -name gpu_check)
