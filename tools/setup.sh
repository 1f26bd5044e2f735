# Sourced by ./run, ./test and .ci/run: packages, configuration, build, and a test run with its skip check. Prints its own messages to stderr only. Expects
# $root, the project's folder.

build_packages=(g++ cmake ninja-build ccache libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libhwy-dev libhwloc-dev libsqlite3-dev
                libyaml-cpp-dev libxxhash-dev libgif-dev libgtest-dev)
test_packages=(clang-format binutils python3)
arm_packages=(g++-aarch64-linux-gnu qemu-user googletest)
tidy_packages=(clang-tidy-16)  # earlier versions lack C++20 features that are used

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# Installs the named packages that are missing. If none are, it prints nothing and takes a few milliseconds.
need_packages() {
  command -v dpkg-query >/dev/null || { say "not a Debian system: please see to it that these are installed: $*"; return 0; }
  local present missing=() package
  present=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
  for package in "$@"; do
    grep -qx "installed $package" <<<"$present" || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || die "missing packages and neither root nor sudo; as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing: ${missing[*]}"
  local log
  log=$(mktemp)
  if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 30 "$log" >&2
    rm -f "$log"
    die "apt-get could not install: ${missing[*]}"
  fi
  rm -f "$log"
}

# NVIDIA's run-time compiler, for tests that compile kernel sources: about 100 MB in a project folder, downloaded once. If it is not available, those tests are
# skipped; with CI=true they fail.
need_nvrtc() {
  local folder="$root/build/nvrtc" part
  compgen -G "$folder/nvidia/*/lib/libnvrtc.so.*" >/dev/null && return 0
  [ "$(uname -m)" = x86_64 ] || return 0
  if python3 -m pip --version >/dev/null 2>&1 || (need_packages python3-pip); then
    say "installing: nvidia-cuda-nvrtc (into build/nvrtc)"
    mkdir -p "$root/build"
    part=$(mktemp -d "$root/build/nvrtc.XXXXXX")
    # Register and spill counts of kernels are pinned for this version.
    if python3 -m pip install --quiet --no-deps --disable-pip-version-check --root-user-action ignore --retries 2 --target "$part" nvidia-cuda-nvrtc==13.4.92 >&2; then
      rm -rf "$folder" && mv "$part" "$folder"
      return 0
    fi
    rm -rf "$part"
  fi
  say "nvidia-cuda-nvrtc could not be installed: tests that compile kernel texts are skipped"
}

# configure PRESET: runs CMake unless it has already run with these options. If set, test_folders, test_files, unchecked and skipped_checks become CMake's
# RIDGE_TEST_FOLDERS, RIDGE_TEST_FILES, RIDGE_UNCHECKED and RIDGE_SKIPPED_CHECKS: which tests to build, and what to build without sanitizers.
configure() {
  local folder="$root/build/$1"
  local unchecked_list=${unchecked:-}
  unchecked_list=${unchecked_list// /;}
  local options=(-DRIDGE_TEST_FOLDERS="${test_folders:-}" -DRIDGE_TEST_FILES="${test_files:-}" -DRIDGE_UNCHECKED="${unchecked_list}"
                 -DRIDGE_SKIPPED_CHECKS="${skipped_checks:-}")
  mkdir -p "$folder"
  if [ -f "$folder/build.ninja" ] && [ "$(cat "$folder/.options" 2>/dev/null)" = "${options[*]}" ]; then return 0; fi
  say "configuring $1 (the first build takes a few minutes)"
  (cd "$root" && cmake --preset "$1" "${options[@]}") >"$folder/configure.log" 2>&1 || { cat "$folder/configure.log" >&2; exit 1; }
  echo "${options[*]}" >"$folder/.options"
}

# build PRESET [TARGET…]: configures if needed and builds what changed. Concurrent callers take turns.
build() {
  local preset=$1 folder="$root/build/$1" target targets=()
  shift
  for target in "$@"; do targets+=(--target "$target"); done
  mkdir -p "$folder"
  (
    exec 9>"$folder/.lock"
    flock 9
    cd "$root"
    configure "$preset"
    if [ -t 2 ]; then  # interactive: show ninja's live line
      cmake --build "$folder" "${targets[@]}" -- -j "$(nproc)" >&2 9>&-
    else
      cmake --build "$folder" "${targets[@]}" -- -j "$(nproc)" --quiet 9>&- | sed '/^-- /d; /^ninja: no work to do/d' >&2
    fi
  ) || die "the $preset build failed"
}

# count_cpu: starts counting CPU-seconds of this script and of all processes it waits for. tell_cpu WORDS: prints the count so far.
cpu_ticks() {
  local words
  read -r -a words <"/proc/$$/stat"
  echo $((words[13] + words[14] + words[15] + words[16]))
}
count_cpu() { cpu_before=$(cpu_ticks) seconds_before=$SECONDS; }
tell_cpu() { echo "$1 $((($(cpu_ticks) - cpu_before) / $(getconf CLK_TCK))) CPU-seconds, $((SECONDS - seconds_before)) s"; }

# run_tests PRESET [ARGS…]: runs tools/run_tests on the preset's build. Fails on a failed test or a skip that is not allowed.
run_tests() {
  "$root/tools/run_tests" "$root/build/$1" "${@:2}"
}
