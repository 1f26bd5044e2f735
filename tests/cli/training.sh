#!/usr/bin/env bash
# Training processes among others: readers that disappear, signals, kills, and the same bits from any cache.
source "$(dirname "$0")/common.sh"

# A reader may stop at any time, or never start: a run continues, a sample ends.
for streams in "" "2>&1"; do
  for reader in "head -1" true; do
    rm -rf closed
    eval '("$ridge" train gpt $small steps=3 seeds=2 data=plays.txt --out closed '"$streams"'; echo $? >code.txt) 2>err.txt | $reader >/dev/null'
    [ "$(cat code.txt)" = 0 ] || fail "a pipe closed by $reader ($streams) ended an experiment with $(cat code.txt)"
    has closed/seed_1338/summary.json closed/final_info.json
  done
done
{ sleep 0.3; "$ridge" train gpt $small steps=60 data=plays.txt tokens=9 --out unheard 2>&1 >/dev/null; } | true
has unheard/summary.json unheard/final_info.json
text=$(timeout 60 "$ridge" sample unheard --prompt "to be" --tokens 1000000000 2>/dev/null | head -c 200)
[ "${#text}" -ge 190 ] || fail "sample wrote ${#text} characters and not 200 of many"

# Signals end a run after a checkpoint, and it can be resumed from there. While it runs, nothing else trains in its folder.
for pair in INT:130 TERM:75; do
  : >stop.txt  # what the run before said is not what this one says
  "$ridge" train gpt $small steps=1000000 data=plays.txt --out "stop_$pair" >stop.txt 2>&1 &
  process=$!
  for _ in $(seq 1000); do grep -q "^iter 1:" stop.txt && break; sleep 0.01; done
  [ $pair = INT:130 ] || check 2 err "another process is training in" train gpt --resume "stop_$pair" steps=1000001
  kill -"${pair%:*}" $process
  wait $process
  got=$?
  [ $got = "${pair#*:}" ] || { fail "SIG${pair%:*} ended with $got"; tail -3 stop.txt; }
  has "stop_$pair/checkpoints/LATEST" "stop_$pair/summary.json"
  taken=$(number steps "stop_$pair/summary.json")
  grep '"loss"' "stop_$pair/metrics.jsonl" | sed 's/.*"step":\([0-9]*\),.*/\1/' | cmp -s - <(seq "$taken") || fail "stop_$pair has no row for each of $taken steps"
  check 0 out "from step $taken of 1000000" plan gpt --resume "stop_$pair"
  check 0 out "resumed at step $taken" train gpt --out "stop_$pair" --resume steps=$((taken + 2))
done

# Killed at any time, a run ends with the same bits, whether the cache knows more or nothing.
whole="$small optimize_perf=true steps=5000 checkpoint_interval=200 eval_interval=1000 data=plays.txt seed=5"
RIDGE_CACHE="$folder/first" check 0 out "all 5000 steps done" train gpt $whole --out calm
for next in first none; do
  RIDGE_CACHE="$folder/second_$next" "$ridge" train gpt $whole --out "again_$next" >stop.txt 2>&1 &
  process=$!
  for _ in $(seq 3000); do  # up to a minute, for any checkpoint after the first step
    compgen -G "again_$next/checkpoints/step_*[1-9]*" >/dev/null && break
    kill -0 $process 2>/dev/null || break
    sleep 0.02
  done
  kill -KILL $process 2>/dev/null
  wait $process 2>/dev/null
  [ -e "again_$next/summary.json" ] && fail "again_$next ended before it was killed"
  RIDGE_CACHE="$folder/$next" check 0 out "all 5000 steps done" train gpt --out "again_$next" --resume
  grep -q "not bit-exact" out.txt err.txt && fail "resumed from the cache $next, not bit-exact"
  for file in model optimizer; do
    cmp "calm/checkpoints/step_00005000/$file.safetensors" "again_$next/checkpoints/step_00005000/$file.safetensors" || fail "other bits from the cache $next"
  done
done
exit $((failures > 0))
