#!/usr/bin/env bash
# Experiments of several runs: what is resumed of them, and what is refused before it would spoil them.
source "$(dirname "$0")/common.sh"
many="$small seeds=2 data=plays.txt sample_interval=none"

# A run that was killed after its last step, before it could tell of its end, gets that end: its summary is of fewer steps.
check 0 "means" train gpt $many steps=3 --out killed
cp killed/seed_1337/summary.json before.json
check 0 "means" train gpt --resume killed steps=6
mv before.json killed/seed_1337/summary.json
check 0 "all 6 steps done" train gpt --resume killed steps=6
[ "$(number steps killed/seed_1337/summary.json)" = 6 ] || fail "a run that was killed after its last step has the summary of an earlier one"

# A run that is at the target which is asked for now does not keep the others from their turn.
check 0 "means" train gpt $many steps=9 eval_interval=3 --out aimed
rm -rf aimed/seed_1338
check 0 "seed_1337 is finished" train gpt --resume aimed steps=12 target_loss=99
[ "$(number steps aimed/seed_1338/summary.json)" = 3 ] || fail "the run that was left has not had its turn"

check 2 "is no run, but holds some; name one: --resume ./aimed/seed_1337" train gpt --resume .
mkdir -p others/program && printf 'servers: 3\n' >others/program/config.yaml
check 2 "others is no run folder: it has no config.yaml" train gpt --resume others

# Not among the texts themselves: the second seed would read what the first has written.
mkdir own && cp plays.txt own/
for seeds in 1 2; do check 2 "own/ is the data itself" train gpt $small seeds=$seeds data=own --out ./own/; done
check 0 "means" train gpt $small steps=2 seeds=2 data=own checkpoint_interval=none sample_interval=none --out own/unkept
for seed in own/unkept/seed_*; do grep -q "1 text, " "$seed/log.txt" || fail "$seed has read other texts"; done

# Nobody reads stderr any more: that is no reason to end.
{ sleep 0.3; "$ridge" train gpt $small steps=2 data=plays.txt tokens=9 --out unheard 2>&1 >/dev/null; } | true
has unheard/summary.json
exit $((failures > 0))
