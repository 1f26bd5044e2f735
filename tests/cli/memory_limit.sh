#!/usr/bin/env bash
# A control group with a memory limit: the plan keeps the whole process below it, however large the requested batch; and a requested budget is kept to the last
# byte, because the system would kill a process that exceeds it.
source "$(dirname "$0")/common.sh"
group=/sys/fs/cgroup/memory/ridge_test_$$
limit=memory.limit_in_bytes
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then group=/sys/fs/cgroup/ridge_test_$$ limit=memory.max; fi
mkdir "$group" 2>/dev/null && echo $((512 << 20)) >"$group/$limit" 2>/dev/null || { rmdir "$group" 2>/dev/null; echo "no right to make a control group with a memory limit"; exit 77; }
trap 'rm -rf "$folder"; rmdir "$group"' EXIT
limited() {  # WORDS ARGS…: runs a command in the group, which must succeed and print these words
  local words=$1 code; shift
  (
    echo "$BASHPID" >"$group/cgroup.procs"
    exec "$ridge" "$@"
  ) >out.txt 2>&1
  code=$?
  grep -q "$words" out.txt && [ $code = 0 ] || { tail -30 out.txt; fail "ridge $* ended with $code"; }
}
within() {  # RUN MOST [PERCENT]: the plan covers everything the process held, is at most MOST bytes, and not much more than was held
  local planned peak
  planned=$(number planned_bytes "$1/summary.json") peak=$(number peak_bytes "$1/summary.json")
  echo "$1: planned $planned, peak $peak of $2"
  [ "$peak" -le "$planned" ] && [ "$planned" -le "$2" ] && [ $((peak * 100)) -ge $((planned * ${3:-0})) ] || fail "$1 held $peak bytes, planned $planned of $2"
}

# Not the built-in stories: a step would touch little of the memory planned for them.
for i in $(seq 6000); do echo "line $i of a text that one step has read most of"; done >text.txt
deep="layers=12 heads=2 width=64 block=128 dropout=0 sample_interval=none eval_interval=none data=text.txt tokenizer=char batch=120"
limited "its only step is done" train gpt $deep steps=1 --out whole
within whole $((512 << 20)) 97
limited "all 2 steps done" train gpt --resume whole steps=2
within whole $((512 << 20))
limited "its only step is done" train gpt $deep steps=1 memory=512MiB --out budget
within budget $((512 << 20)) 97
limited "its only step is done" train gpt $deep steps=1 memory_fraction=0.7 --out fraction
within fraction $((359 << 20)) 97

# One word: learning its pairs takes more memory than training.
awk 'BEGIN { srand(1); for (i = 0; i < 400000; ++i) printf "%d", 10 * rand() }' >digits.txt
limited "means" train gpt $small steps=2 seeds=2 data=digits.txt tokenizer=bpe --out digits
within digits/seed_1337 $((512 << 20))
within digits/seed_1338 $((512 << 20))

# A text in which every word is new: learning a vocabulary from all of it takes more than the limit. With more memory a different one would be learnt; the run
# keeps its own.
seq 1000000 >words.txt
echo $((160 << 20)) >"$group/$limit"
limited "learned from .* evenly spread" data prepare words.txt tokenizer=bpe vocab=300 --out tokens
limited "learned from .* evenly spread" train gpt $small data=words.txt tokenizer=bpe steps=1 memory=112MiB --out words
within words $((112 << 20))
check 0 out "all 2 steps done" train gpt --resume words steps=2 memory=auto
exit $((failures > 0))
