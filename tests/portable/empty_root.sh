#!/usr/bin/env bash
# empty_root.sh BUILD_FOLDER: the portable folder must start in a root that contains only libc, libm and the loader: no /proc, no /etc, no /tmp. Needs root or
# user namespaces; skips (77) without.
set -euo pipefail
build=$1
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cmake --install "$build" --component portable --strip --prefix "$root/ridge" >/dev/null

# This system's libc, libm and loader, at the paths that the binaries request.
loader=$(readelf -l "$root/ridge/ridge" | sed -n 's/.*program interpreter: \(.*\)\]/\1/p')
libc=$(ldd "$root/ridge/ridge" | awk '/libc\.so\.6/ { print $3 }')
mkdir -p "$root$(dirname "$loader")" "$root/lib"
cp -L "$loader" "$root$loader"
cp -L "$libc" "$(dirname "$libc")/libm.so.6" "$root/lib/"

enter=(chroot "$root")
if [ "$(id -u)" != 0 ]; then enter=(unshare --map-root-user chroot "$root"); fi
if ! "${enter[@]}" "$loader" --version >/dev/null 2>&1; then
  echo "cannot enter another root folder here"
  exit 77
fi
"${enter[@]}" /ridge/ridge --version
"${enter[@]}" /ridge/all_tests '--gtest_filter=Elementwise/SpecialValues*' --gtest_brief=1
# The engine itself, if this build has its commands.
if "$root/ridge/ridge" --help | grep -q '^  demo '; then "${enter[@]}" /ridge/ridge demo >/dev/null; fi
