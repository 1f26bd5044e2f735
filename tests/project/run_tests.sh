#!/usr/bin/env bash
# run_tests.sh RUN_TESTS: how tools/run_tests handles cases that pass, fail, skip, crash, end the process, hang, never end, vanish or are disabled, programs
# without cases, scripts, and where a skip is allowed. Then what .ci/run and tools/gpu_check pass to the tests, and what tools/mutations --check reports about docs/testing.md.
set -euo pipefail
run_tests=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat >"$folder/program" <<'END'
#!/usr/bin/env python3
# A GoogleTest program as run_tests sees it: a case's name says what it does.
import json, os, sys, time
options = dict(word[len("--gtest_"):].split("=", 1) if "=" in word else (word[len("--gtest_"):], "") for word in sys.argv[1:])
record = options["output"].removeprefix("json:")
suites = dict(word.split("=") for word in open(os.path.dirname(sys.argv[0]) + "/suites").read().split())
everything = [(suite, case) for suite, cases in suites.items() for case in cases.split(",")]
wanted = everything if "list_tests" in options else [one for one in everything if ".".join(one) in options["filter"].split(":") and one[1] != "Vanish"]
done = []
def write():
    groups = {}
    for suite, case in wanted:
        row = {"name": case, "file": "tests/room/some_test.cpp", "status": "RUN", "result": "SKIPPED" if case == "Skip" else "COMPLETED", "time": "0.002s"}
        if case == "Fail": row["failures"] = [{"failure": "wrong"}]
        groups.setdefault(suite, []).append(row)
    json.dump({"testsuites": [{"name": suite, "testsuite": rows} for suite, rows in groups.items()]}, open(record, "w"))
if "list_tests" in options: write(), sys.exit(0)
for suite, case in wanted:
    print(f"[ RUN      ] {suite}.{case}", flush=True)
    if case == "Crash": print("about to crash", flush=True), os.abort()
    if case == "Leave": os._exit(0)
    if case == "Hang": time.sleep(60)
    while case == "Chatter": print("still here", flush=True), time.sleep(0.1)
    if case == "Pins" and "TEST_WRITE_PINS" in os.environ: os.abort()
    print("a line without an end ", end="")
    if case == "Fail": print("this is wrong")
    print(f"[{'  FAILED  ' if case == 'Fail' else '  SKIPPED ' if case == 'Skip' else '       OK '}] {suite}.{case} (2 ms)", flush=True)
write()
sys.exit(23 if any(suite == "Leaky" for suite, _ in wanted) else any(case == "Fail" for _, case in wanted))
END
chmod +x "$folder/program"
cat >"$folder/CTestTestfile.cmake" <<END
add_test(program "$folder/program")
set_tests_properties(program PROPERTIES LABELS cases TIMEOUT 1)
add_test(script.good true)
add_test(script.skipped sh -c "exit 77")
add_test(script.bad sh -c "echo words of a script; exit 3")
set_tests_properties(script.good script.skipped script.bad PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 10)
END
printf '[always] room.Plain.Sk?p   # a reason\n[always] script.skipped # another\n' >"$folder/allowed"

failures=0
expect() {  # STATUS LAST_LINE WORDS… -- ARGS…: run_tests' exit status and last line, and words in its output
  local status=$1 last=$2 words=() got=0
  shift 2
  while [ "$1" != -- ]; do words+=("$1"); shift; done
  shift
  "$run_tests" "$folder" --allowed "$folder/allowed" "$@" >"$folder/out" 2>&1 || got=$?
  local wrong=
  [ $got = "$status" ] && [ "$(tail -n 1 "$folder/out")" = "$last" ] || wrong="status $got, last line not '$last'"
  for word in "${words[@]}"; do grep -qF -- "$word" "$folder/out" || wrong+="; does not say '$word'"; done
  [ -z "$wrong" ] || { echo "FAILED: $(cat "$folder/suites"), run_tests $*: $wrong"; cat "$folder/out"; failures=1; }
}
echo "Plain=A,B,Skip Other=C" >"$folder/suites"
expect 0 "4 passed, 0 failed, 2 skipped" "skipped (allowed): room.Plain.Skip" "skipped (allowed): script.skipped" -- -E bad
expect 0 "1 passed, 0 failed, 0 skipped" -- -R 'Other\.C'
expect 1 "0 passed, 1 failed, 0 skipped" "words of a script" "FAILED: script.bad (exit code 3)" -- -R bad
expect 1 "no test has such a name" -- -R nothing
echo "Plain=A,Fail,B Loose=Skip" >"$folder/suites"
expect 1 "2 passed, 2 failed, 1 skipped" "this is wrong" "FAILED: room.Plain.Fail" "skipped (NOT ALLOWED): room.Loose.Skip" -- --no-scripts
echo "Plain=A,Crash,B,Crash2,C" >"$folder/suites"  # the cases after the crash still run
expect 1 "4 passed, 1 failed, 0 skipped" "FAILED: room.Plain.Crash: the process ended in the middle of it (signal 6)" "about to crash" -- --no-scripts
echo "Plain=A,Leave,B" >"$folder/suites"
expect 1 "2 passed, 1 failed, 0 skipped" "room.Plain.Leave: the process ended in the middle of it (exit code 0)" -- --no-scripts
echo "Plain=A,Hang,B" >"$folder/suites"
expect 1 "2 passed, 1 failed, 0 skipped" "room.Plain.Hang: the process ended in the middle of it (nothing was written for 1 s)" -- --no-scripts
echo "Plain=A,Chatter,B" >"$folder/suites"
expect 1 "2 passed, 1 failed, 0 skipped" "room.Plain.Chatter: the process ended in the middle of it (still running after 2 s)" -- --no-scripts --whole 2
echo "Plain=A,Vanish" >"$folder/suites"
expect 1 "1 passed, 1 failed, 0 skipped" "room.Plain.Vanish: it is listed, but did not run" -- --no-scripts
echo "Leaky=A" >"$folder/suites"  # a sanitizer reports at exit
expect 1 "1 passed, 1 failed, 0 skipped" "room.Leaky: exit code 23 although no case failed" -- --no-scripts
echo "Plain=A,DISABLED_B DISABLED_Other=C In/DISABLED_Other=D/0" >"$folder/suites"
expect 1 "1 passed, 3 failed, 3 skipped" "skipped (NOT ALLOWED): room.Plain.DISABLED_B" "skipped (NOT ALLOWED): room.In/DISABLED_Other.D/0" -- --no-scripts
printf '[always] room.*DISABLED_* # a reason\n' >>"$folder/allowed"
expect 0 "1 passed, 0 failed, 3 skipped" "skipped (allowed): room.DISABLED_Other.C" -- --no-scripts
expect 0 "0 passed, 0 failed, 1 skipped" -- -R 'Plain\.DISABLED_B'
echo "Plain=A Hard=Skip" >"$folder/suites"  # a line counts only where its condition holds
allow() { printf '[%s] room.Hard.Skip # a reason\n' "$1" >"$folder/allowed"; }
allowed() { expect 0 "1 passed, 0 failed, 1 skipped" "skipped (allowed): room.Hard.Skip" -- --no-scripts "$@"; }
refused() { expect 1 "1 passed, 1 failed, 1 skipped" "skipped (NOT ALLOWED): room.Hard.Skip" -- --no-scripts "$@"; }
allow sanitized
refused
echo 'RIDGE_SANITIZE:STRING=' >"$folder/CMakeCache.txt"
refused
echo 'RIDGE_SANITIZE:STRING=thread' >"$folder/CMakeCache.txt"
allowed
allow 'no nvrtc, sanitized'
allowed
rm "$folder/CMakeCache.txt"
allow gpu
RIDGE_TEST_GPU=1 allowed
RIDGE_TEST_GPU=0 refused
allow 'no nvrtc'
mkdir -p "$folder/nvidia/cu13/lib"
allowed --nvrtc "$folder"
touch "$folder/nvidia/cu13/lib/libnvrtc.so.13"
refused --nvrtc "$folder"
allow 'not root'
if [ "$(id -u)" = 0 ]; then refused; else allowed; fi
for line in '[moonlight] room.Hard.Skip # a reason' 'room.Hard.Skip # a reason' '[always] room.Hard.Skip'; do
  echo "$line" >"$folder/allowed"
  expect 1 "allowed_skips.txt: '$line' is not '[CONDITION] NAME # REASON'; conditions: always, gpu, no nvrtc, not root, sanitized" -- --no-scripts
done
allow always
: >"$folder/suites"
expect 1 "program has no cases" -- -E bad
echo "Plain=Pins" >"$folder/suites"
TEST_WRITE_PINS=1 expect 0 "1 passed, 0 failed, 0 skipped" -- --no-scripts

source=$(cd "$(dirname "$run_tests")/.." && pwd)
tree=$folder/tree
mkdir -p "$tree/tools" "$tree/.ci" "$tree/docs"
verify() {  # WHAT TEXT PATTERN: checks that a line of the text matches
  grep -qE -- "$3" <<<"$2" || { echo "FAILED: $1: no line with '$3' in: $2"; failures=1; }
}
cp "$source/.ci/run" "$tree/.ci/run"
echo 'need_packages() { :; }; need_nvrtc() { :; }; count_cpu() { :; }; tell_cpu() { :; }; build() { :; }; run_tests() { printenv CI; }' >"$tree/tools/setup.sh"
printf '#!/bin/sh\necho "./test: $CI"\n' >"$tree/test"
chmod +x "$tree/test"
verify ".ci/run sets CI" "$(env -u CI "$tree/.ci/run" || true)" '^\./test: true$'

cp "$source/tools/gpu_check" "$tree/tools/gpu_check"
printf '#!/bin/sh\necho "[  FAILED  ] filter $1"\necho "[==========] 1 test ran."\n' >"$tree/all_tests"
chmod +x "$tree/all_tests"
for gpu_check in "$source/tools/gpu_check" "$tree/tools/gpu_check"; do  # with tests/fixtures and without
  verify "$gpu_check runs no circuits without their program" "$(env -u TEST_SOURCE_DIR "$gpu_check" -q "$tree/all_tests" || true)" '^circuits .*left out'
  verify "$gpu_check leaves CudaPlans out" "$(env -u TEST_SOURCE_DIR "$gpu_check" -q "$tree/all_tests" || true)" 'filter --gtest_filter=[^-]*-([^-]*:)?CudaPlans\.\*(:[^-]*)?$'
done

# Circuits run on the GPU, by the names that their suites have.
printf '#!/bin/sh\necho "[       OK ] Cells.On $TEST_CIRCUITS_DEVICE (5 ms)"\necho "[  FAILED  ] filter $1"\necho "[==========] 1 test ran."\n' >"$tree/same_everywhere_tests"
chmod +x "$tree/same_everywhere_tests"
said=$("$source/tools/gpu_check" -q "$tree/all_tests" || true)
verify "gpu_check runs circuits" "$said" '^circuits +[0-9]+ tests'
for suite in $(sed -n 's/.*--gtest_filter=\(Cells[^ ]*\).*/\1/p' <<<"$said" | head -n 1 | tr ':' ' '); do
  grep -rq "^TEST(${suite%.*}, " "$source/tests/circuits" || { echo "FAILED: gpu_check runs $suite, which is not in tests/circuits"; failures=1; }
done

cp "$source/tools/mutations" "$tree/tools/mutations"
ln -s "$source/src" "$source/tests" "$tree"
name=$(sed -n 's/^## //p' "$source/tests/mutations.txt" | head -n 1)
sed "s/\`$name\`/\`another_name\`/" "$source/docs/testing.md" >"$tree/docs/testing.md"
said=$("$tree/tools/mutations" --check) && { echo "FAILED: mutations --check accepts a docs/testing.md without $name"; failures=1; }
verify "mutations --check" "$said" "^tests/mutations.txt: $name: docs/testing.md does not name it"
verify "mutations --check" "$said" "^tests/mutations.txt: another_name: docs/testing.md names it .* no such mutation$"
exit $failures
