# Prelude for scripts that run whole processes (source it): a temporary folder, removed at the end, and checks of a command in it.
set -u
ridge=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export COLUMNS=300 RIDGE_CACHE="$folder/cache" RIDGE_CUDA_LIBRARY=libno_such_driver.so
cd "$folder" || exit 1
failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
check() {  # CODE STREAM WORDS ARGS…: checks the exit code, and that out or err contains the words; errors are on stderr only
  local code=$1 stream=$2 words=$3 got; shift 3
  timeout 100 "$ridge" "$@" >out.txt 2>err.txt
  got=$?
  [ $got = "$code" ] || { fail "ridge $* ended with $got, not $code"; cat out.txt err.txt | tail -5; }
  grep -qF -- "$words" "$stream.txt" || { fail "ridge $* does not say on std$stream: $words"; cat out.txt err.txt | tail -5; }
  grep -q "^ridge: " out.txt && fail "ridge $*: an error spoke on stdout"
}
has() { for f in "$@"; do [ -s "$f" ] || fail "$f is missing or empty"; done; }
number() { sed -n "s/.*\"$1\": *\([-0-9.e]*\).*/\1/p" "$2" | head -1; }  # KEY FILE: the value of "KEY": 3
small="layers=1 heads=2 width=16 block=32 batch=4 threads=1 optimize_perf=false sample_interval=none"
printf 'to be or not to be, that is the question: whether it is nobler in the mind to suffer\n%.0s' {1..60} >plays.txt
