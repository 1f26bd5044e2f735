#!/usr/bin/env bash
# A control group with a memory limit: the plan keeps the whole process below it, however large the batch that is asked for; and what is asked for as a
# budget is kept to the last byte, as a process that took more would be ended by the system.
set -u
ridge=$1
group=/sys/fs/cgroup/memory/ridge_test_$$
limit=memory.limit_in_bytes
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then group=/sys/fs/cgroup/ridge_test_$$ limit=memory.max; fi
mkdir "$group" 2>/dev/null && echo $((512 << 20)) >"$group/$limit" 2>/dev/null || { rmdir "$group" 2>/dev/null; echo "no right to make a control group with a memory limit"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"; rmdir "$group"' EXIT
export RIDGE_CACHE="$folder/cache"
# Not the built-in stories: a step would see little of what is planned for them.
for i in $(seq 6000); do echo "line $i of a text that one step has read most of"; done >"$folder/text.txt"
for row in "64 512" "16 512 memory=512MiB" "16 359 memory_fraction=0.7"; do
  read -r batch most words <<<"$row"
  rm -rf "$folder/run"
  (
    echo "$BASHPID" >"$group/cgroup.procs"
    exec "$ridge" train gpt preset=shakespeare-char dropout=0 batch="$batch" steps=1 sample_interval=none eval_interval=none data="$folder/text.txt" tokenizer=char $words --out "$folder/run"
  ) >"$folder/out.txt" 2>&1
  code=$?
  [ $code = 0 ] || { tail -30 "$folder/out.txt"; echo "$row ended with $code"; exit 1; }
  number() { sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" "$folder/run/summary.json"; }
  planned=$(number planned_bytes) peak=$(number peak_bytes)
  echo "batch=$batch $words: planned $planned, peak $peak of $((most << 20))"
  [ "$planned" -le $((most << 20)) ] && [ "$peak" -le $((most << 20)) ] || exit 1
  # The plan covers all that the process holds, and not much more.
  [ $((peak * 100)) -le $((planned * 100)) ] && [ $((peak * 100)) -ge $((planned * 97)) ] || { echo "the plan is not what the system counts"; exit 1; }
done

# A text of which every word is new: to learn a vocabulary from all of it takes several times the limit.
seq 1500000 >"$folder/words.txt"
limited() {
  (
    echo "$BASHPID" >"$group/cgroup.procs"
    exec "$ridge" "$@"
  ) >"$folder/out.txt" 2>&1
  code=$?
  grep -q "learnt from .* evenly spread" "$folder/out.txt" && [ $code = 0 ] || { tail -30 "$folder/out.txt"; echo "ridge $* ended with $code"; exit 1; }
}
echo $((192 << 20)) >"$group/$limit"
limited data prepare "$folder/words.txt" tokenizer=bpe --out "$folder/tokens"
limited train gpt preset=shakespeare-cpu steps=1 sample_interval=none eval_interval=none data="$folder/words.txt" tokenizer=bpe memory=112MiB --out "$folder/words"
peak=$(sed -n 's/.*"peak_bytes": \([0-9]*\).*/\1/p' "$folder/words/summary.json")
echo "learning within 112 MiB: peak $peak"
[ "$peak" -le $((112 << 20)) ] || exit 1

# With more memory another vocabulary is learnt; the run goes on with its own.
"$ridge" train gpt preset=shakespeare-cpu steps=1 sample_interval=none eval_interval=none data="$folder/words.txt" tokenizer=bpe --out "$folder/more" >/dev/null 2>&1
cmp -s "$folder/words/model/tokenizer.json" "$folder/more/model/tokenizer.json" && { echo "more memory made no difference"; exit 1; }
"$ridge" train gpt --resume "$folder/words" steps=2 memory=auto >"$folder/out.txt" 2>&1 || { tail -30 "$folder/out.txt"; exit 1; }
