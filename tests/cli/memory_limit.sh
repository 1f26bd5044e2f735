#!/usr/bin/env bash
# A control group with a memory limit: the plan keeps the whole process below it, however large the batch that is asked for.
set -u
ridge=$1
group=/sys/fs/cgroup/memory/ridge_test_$$
limit=memory.limit_in_bytes
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then group=/sys/fs/cgroup/ridge_test_$$ limit=memory.max; fi
mkdir "$group" 2>/dev/null && echo $((512 << 20)) >"$group/$limit" 2>/dev/null || { rmdir "$group" 2>/dev/null; echo "no right to make a control group with a memory limit"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"; rmdir "$group"' EXIT
export RIDGE_CACHE="$folder/cache"
(
  echo "$BASHPID" >"$group/cgroup.procs"
  exec "$ridge" train gpt preset=shakespeare-char dropout=0 batch=64 steps=1 sample_interval=none eval_interval=none --out "$folder/run"
) >"$folder/out.txt" 2>&1
code=$?
tail -30 "$folder/out.txt"
[ $code = 0 ] || { echo "ended with $code"; exit 1; }
number() { sed -n "s/.*\"$1\": \([0-9]*\).*/\1/p" "$folder/run/summary.json"; }
planned=$(number planned_bytes) peak=$(number peak_bytes)
echo "planned $planned, peak $peak of $((512 << 20))"
[ "$planned" -le $((512 << 20)) ] && [ "$peak" -le $((512 << 20)) ] || exit 1
# The plan covers all that the process holds, and not much more.
[ $((peak * 100)) -le $((planned * 100)) ] && [ $((peak * 100)) -ge $((planned * 97)) ] || { echo "the plan is not what the system counts"; exit 1; }
