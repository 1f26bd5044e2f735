#!/usr/bin/env bash
# exit_codes.sh RIDGE: what a script may rely on: exit codes, stdout for results only, errors that name the way out.
set -euo pipefail
ridge=$1
failures=0
check() { # check CODE STREAM TEXT ARGS…: the exit code, and a text that the stream must hold
  local code=$1 stream=$2 text=$3 got=0 out err
  shift 3
  err=$(mktemp)
  out=$("$ridge" "$@" 2>"$err") || got=$?
  [ "$stream" = stderr ] && out=$(cat "$err")
  rm -f "$err"
  if [ "$got" != "$code" ] || ! grep -qF -- "$text" <<<"$out"; then
    echo "ridge $*: exit $got (expected $code), $stream: $out (expected to hold: $text)"
    failures=$((failures + 1))
  fi
}
check 0 stdout "ridge 0." --version
check 0 stdout "Usage" --help
check 0 stdout "Usage"
check 2 stderr "unknown command 'no-such-command'" no-such-command
check 2 stderr "--no-such-flag" --no-such-flag
RIDGE_ISA=avx3 check 2 stderr "valid: " --version
[ "$("$ridge" no-such-command 2>/dev/null | wc -c)" = 0 ] || { echo "an error spoke on stdout"; failures=$((failures + 1)); }
if "$ridge" --help | grep -q '^  bench '; then check 2 stderr "did you mean 'bench'" bnech; fi
exit $((failures > 0))
