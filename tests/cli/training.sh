#!/usr/bin/env bash
# Whole trainings from the command line: files, seeds, signals, resume, and one clear message for everything that can be wrong.
source "$(dirname "$0")/common.sh"

# A run with all that belongs to it.
check 0 "all 12 steps done" train gpt $small steps=12 data=plays.txt tensorboard=true --out run
has run/{config.yaml,machine.json,plan.json,metrics.jsonl,log.txt,summary.json,final_info.json,train_loss.svg,val_loss.svg}
has run/model/{model.safetensors,config.json,tokenizer.json} run/checkpoints/LATEST run/tensorboard/*
for key in best_val_loss final_train_loss steps seconds tokens_s planned_bytes peak_bytes device threads precision; do
  grep -q "\"$key\":" run/summary.json || fail "summary.json has no $key"
done
[ "$(wc -l <run/metrics.jsonl)" -ge 12 ] || fail "metrics.jsonl is short"
"$ridge" config check run/config.yaml >/dev/null || fail "config.yaml is not valid"
check 2 "holds a run already" train gpt $small steps=12 data=plays.txt --out run
check 2 "is finished: all 12 steps are done" train gpt --out run --resume
check 0 "all 14 steps done" train gpt --out run --resume steps=14
check 0 "perplexity" eval run data=plays.txt
check 0 "run" report run --svg compare.svg

# Several seeds and data sets: one folder each, means and standard errors over the seeds.
sed 's/question/answer/' plays.txt >other.txt
check 0 "seed" train gpt $small steps=3 seeds=2 data=plays.txt,other.txt --out_dir many
grep -q "means ± standard errors over the seeds" out.txt || fail "an experiment ends without its means"
grep -qE "^plays.txt .* ± .* 2 +finished" out.txt || fail "an experiment's table has no row for plays.txt"
has many/plays.txt/seed_1337/summary.json many/other.txt/seed_1338/summary.json many/final_info.json many/train_loss.svg
grep -q best_val_loss_stderr many/final_info.json || fail "final_info.json has no stderrs"
rm -rf many/other.txt/seed_1338
before=$(cksum <many/config.yaml)
for others in seeds=1 data=other.txt "data=plays.txt seeds=1" seed=5; do
  check 2 "leave data, seed and seeds as they were" train gpt --resume many $others
  check 2 "leave data, seed and seeds as they were" plan gpt --resume many $others
done
check 2 "run holds a run already" train gpt $small steps=2 seeds=2 data=plays.txt --out run
check 2 "many holds a run already" train gpt $small steps=2 data=plays.txt --out many
check 2 "run is there, but not run/seed_1337, which is asked for" train gpt --resume run seeds=2
[ "$(cksum <many/config.yaml)" = "$before" ] && [ ! -e many/metrics.jsonl ] && [ ! -e run/seed_1337 ] || fail "a refused resume changed the experiment"
check 0 "all 3 steps done" train gpt --out many --resume
has many/other.txt/seed_1338/summary.json
check 2 "is finished" train gpt --out many/plays.txt/seed_1337 --resume
check 2 "all 4 runs in many are finished" train gpt --out many --resume
check 2 "all 4 runs in many are finished" plan gpt --resume many
check 0 "from step 3 of 4" plan gpt --resume many steps=4
grep -q "for 4 runs together" out.txt || fail "plan --resume leaves some of four runs out"
check 0 "all 4 steps done" train gpt --out many --resume steps=4
for run in many/*/seed_*; do grep -q '"steps": 4' "$run/summary.json" || fail "$run has not gone on"; done
cp plays.txt "plays, other.txt"  # a name that looks like two
check 0 "means" train gpt $small steps=2 seeds=2 data="plays, other.txt" --out comma
check 0 "perplexity" eval comma/seed_1338
check 0 "all 2 steps done" train gpt $small steps=2 data="other.txt,plays, other.txt" --out commas
has commas/{other.txt,plays__other.txt}/summary.json
check 0 "all 3 steps done" train gpt --resume commas steps=3
mkdir same && cp plays.txt same/
check 0 "all 3 steps done" train gpt $small steps=3 data=plays.txt,same/plays.txt --out twins
grep -q "All runs" out.txt || fail "two data sets end without a table"
grep -q "over the seeds" out.txt && fail "one seed is called several"
has twins/plays.txt/summary.json twins/plays.txt_2/summary.json

# What a resumed run was told holds for the next one too; a run killed after its last step gets its end; the budget holds on resume.
check 0 "all 4 steps done" train gpt $small steps=4 data=plays.txt --out longer
check 0 "all 9 steps done" train gpt --out longer --resume steps=9 sample_interval=none eval_interval=none
check 2 "all 9 steps are done" train gpt --out longer --resume
sed -i 's/"steps": 9/"steps": 4/' longer/summary.json
rm -rf longer/model
check 0 "all 9 steps done" train gpt --out longer --resume
has longer/model/model.safetensors
wide="layers=4 heads=8 width=512 block=32 batch=2 steps=2 data=plays.txt sample_interval=none"
check 0 "all 2 steps done" train gpt $wide --out wide
check 0 "all 3 steps done" train gpt --out wide --resume steps=3
within_plan() {
  local planned peak
  planned=$(number planned_bytes "$1/summary.json") peak=$(number peak_bytes "$1/summary.json")
  [ "$peak" -le "$planned" ] || fail "$1 held $peak bytes, planned $planned"
}
within_plan wide
awk 'BEGIN { srand(1); for (i = 0; i < 1000000; ++i) printf "%d", 10 * rand() }' >digits.txt  # one word: to learn its pairs takes more than to train
check 0 "all 2 steps done" train gpt $small steps=2 data=digits.txt tokenizer=bpe --out digits
within_plan digits
RIDGE_CACHE="$folder/cold_digits" check 0 "means" train gpt $small steps=2 seeds=2 data=digits.txt tokenizer=bpe --out digits_twice
within_plan digits_twice/seed_1337
within_plan digits_twice/seed_1338
"$ridge" train gpt $small steps=60 data=plays.txt --out piped 2>&1 | head -1 >/dev/null
has piped/{summary,final_info}.json
for streams in "" "2>&1"; do
  for reader in "head -1" true; do  # one that stops reading, and one that never began to
    rm -rf closed
    eval '("$ridge" train gpt $small steps=3 seeds=2 data=plays.txt --out closed '"$streams"'; echo $? >code.txt) 2>err.txt | $reader >/dev/null'
    [ "$(cat code.txt)" = 0 ] || fail "a pipe closed by $reader ($streams) ended an experiment with $(cat code.txt)"
    has closed/seed_1338/summary.json closed/final_info.json
  done
done

# What has no effect, and what cannot be kept, is told.
printf 'training:\n  epochs: 3\n' >epochs.yaml
for command in "train gpt --out effect" "plan gpt"; do
  check 0 "epochs.yaml:2: epochs has no effect" $command $small steps=2 data=plays.txt --config epochs.yaml
  COLUMNS=300 RIDGE_CACHE=/dev/null/cache check 0 "measurements are kept in memory only" $command $small steps=2 data=plays.txt --out uncached
  grep -q "/dev/null/cache/data cannot be written" out.txt || fail "$command does not tell that tokens are not kept"
  rm -rf uncached
done

check 0 "usable processors: they take turns" plan gpt $small threads=$(($(nproc --all) + 1)) steps=2 data=plays.txt

# A damaged summary is told of, and the other runs are listed.
mkdir -p listed && cp -r run listed/whole && cp -r run listed/cut_off
head -c 30 run/summary.json >listed/cut_off/summary.json
for command in runs report; do
  COLUMNS=300 check 0 "ridge: listed/cut_off/summary.json is damaged" $command listed
  grep -qE "^whole .* finished" out.txt && grep -qE "^cut_off +14 .* damaged" out.txt || { fail "$command lists other than one whole and one damaged run"; cat out.txt; }
done
check 0 '"state": "damaged"' runs listed --json
check 0 "all 15 steps done" train gpt --resume listed/cut_off steps=15

# A run without checkpoints is not started anew over its own weights.
check 0 "ridge train gpt init_from=unkept" train gpt $small steps=4 data=plays.txt checkpoint_interval=none --out unkept
grep -q -- "--resume" out.txt && fail "a run without checkpoints is told to go on"
cp -r run bare
rm -rf bare/checkpoints/step_*
cp -r bare metrics_only
rm -rf metrics_only/{checkpoints,summary.json}
for gone in unkept bare metrics_only; do
  before=$(cksum <$gone/model/model.safetensors)
  check 2 "$gone was trained, but has no checkpoint to go on from; init_from=$gone" train gpt --resume $gone lr=0.1 steps=30
  check 2 "has no checkpoint to go on from" plan gpt --resume $gone steps=30
  [ "$(cksum <$gone/model/model.safetensors)" = "$before" ] || fail "$gone lost its weights"
done
check 0 "means" train gpt $small steps=2 seeds=2 data=plays.txt checkpoint_interval=none --out unkept_seeds
check 2 "all 2 runs in unkept_seeds are finished" train gpt --resume unkept_seeds
check 2 "seed_1337 was trained, but has no checkpoint" train gpt --resume unkept_seeds steps=3

# A target that was reached is the end, until another is set.
check 0 "is at the target of 100" train gpt $small steps=9 eval_interval=3 target_loss=100 data=plays.txt --out target
grep -q -- "--resume target target_loss=none" out.txt || fail "a run at its target is told to go on as it was"
check 2 "is at its target" train gpt --resume target
check 2 "is at its target" plan gpt --resume target steps=20
rm target/summary.json  # killed just before it was written
check 0 "is at the target of 100" train gpt --resume target
steps=$(number steps target/summary.json)
[ "$steps" = 3 ] || fail "a run that was killed at its target went on to step $steps"
check 0 "all 9 steps done" train gpt --resume target target_loss=0.1
check 0 "means" train gpt $small steps=9 seeds=2 eval_interval=3 target_loss=100 data=plays.txt --out targets
check 2 "or another target_loss where one was reached" train gpt --resume targets
check 0 "all 9 steps done" train gpt --resume targets target_loss=none

# A file of settings and words behind it; what is wrong with the last data set is said before the first training.
printf 'steps: 9\ndata: plays.txt\n' >settings.yaml
check 0 "all 3 steps done" train gpt $small --config settings.yaml steps=3 --out configured
check 4 "missing.txt" train gpt $small steps=3 data=plays.txt,missing.txt --out half
[ -e half ] && fail "a missing second data set was found after the first one was trained"
check 4 "missing.txt" train gpt $small data=missing.txt runs_dir=refused
check 3 "smallest budget" train gpt $small seeds=2 data=plays.txt memory=1MiB runs_dir=refused
check 3 "smallest budget" train gpt $small seeds=2 data=plays.txt memory=1MiB --out half
mkdir mute && cp run/model/{model.safetensors,config.json} mute/
check 4 "mute has no tokenizer.json" train gpt $small block=32 seeds=2 data=plays.txt init_from=mute --out half
check 2 "leave width out" train gpt $small width=32 seeds=2 data=plays.txt init_from=run --out half
[ -e half ] || [ -e refused ] && fail "a refused training left a folder"

# JSON on stdout and nothing else.
"$ridge" train gpt $small steps=2 data=plays.txt --out json --json 2>/dev/null | grep -qv '^{' && fail "train --json prints other things"
check 0 "for 4 runs together" plan gpt $small seeds=2 data=plays.txt,other.txt
"$ridge" plan gpt $small data=plays.txt --json | head -c1 | grep -q '{' || fail "plan --json is no document"
[ ! -e json/none ] && [ ! -d plan ] || fail "plan wrote something"

# Signals end a run after a checkpoint, and it goes on from there.
for pair in INT:130 TERM:75; do
  "$ridge" train gpt $small steps=1000000 data=plays.txt --out "stop_$pair" >stop.txt 2>&1 &
  process=$!
  for _ in $(seq 100); do grep -q "^iter 2" stop.txt && break; sleep 0.1; done
  kill -"${pair%:*}" $process
  wait $process
  got=$?
  [ $got = "${pair#*:}" ] || { fail "SIG${pair%:*} ended with $got"; tail -3 stop.txt; }
  has "stop_$pair/checkpoints/LATEST" "stop_$pair/summary.json"
  taken=$(sed -n 's/.*"steps": \([0-9]*\).*/\1/p' "stop_$pair/summary.json")
  grep '"loss"' "stop_$pair/metrics.jsonl" | sed 's/.*"step":\([0-9]*\),.*/\1/' | cmp -s - <(seq "$taken") || fail "stop_$pair has no row for each of $taken steps"
done
check 0 "from step $taken of 1000000" plan gpt --resume "stop_TERM:75"
rm -rf many/other.txt/seed_*
check 0 "other.txt, seeds 1337 to 1338, each" plan gpt --resume many
grep -q "many/plays.txt/seed_1338 is finished" err.txt || fail "plan --resume does not tell which runs are finished"
check 0 '"seeds"' plan gpt --resume many --json
mkdir -p many/other.txt/seed_1338/checkpoints/step_00000001
check 2 "many/other.txt/seed_1338 has no checkpoint to go on from" plan gpt --resume many
check 2 "is finished: 14 steps are done, 12 are asked for" plan gpt --resume run steps=12
steps=$(tail -1 "stop_INT:130/metrics.jsonl" | sed 's/.*"step":\([0-9]*\).*/\1/')
check 0 "resumed at step $steps" train gpt --out "stop_INT:130" --resume steps=$((steps + 2))

# Stories that were prepared are those of a training.
rm -rf "$RIDGE_CACHE/data"
check 0 "data=builtin" data prepare builtin $small
check 0 "builtin" plan gpt $small
[ "$(ls "$RIDGE_CACHE/data" | grep -c .)" = 1 ] || fail "a training makes other stories than data prepare"
check 2 "add --out FOLDER" data prepare builtin seed=5
check 0 "data=others" data prepare builtin seed=5 $small --out others

# What can be wrong, one clear message each.
: >empty.txt
printf 'short' >short.txt
printf 'caf\xe9 %.0s' {1..500} >latin.txt
mkdir nothing
head -c 300000 /dev/zero | tr '\0' 'a' >long.txt
check 4 "no such file" train gpt $small data=none.txt --out bad
check 4 "empty" train gpt $small data=empty.txt --out bad
check 4 "short.txt" train gpt $small data=short.txt --out bad
check 4 "tokenizer=byte" train gpt $small data=latin.txt --out bad
check 4 "nothing" train gpt $small data=nothing --out bad
RIDGE_CACHE="$folder/cold" check 0 "all 2 steps done" train gpt $small steps=2 data=long.txt --out long
check 2 "vocabulary" train gpt --out run --resume steps=20 data=other.txt tokenizer=byte
grep -q "plays.txt" run/config.yaml || fail "a refused resume changed config.yaml"
check 2 "no run folder" train gpt --out missing --resume
check 2 "is no run folder" train gpt --out nothing --resume
check 2 "which run" train gpt --resume
check 2 "name the run: --resume run" train gpt --resume run/checkpoints
check 2 "name the run: --resume run" train gpt --resume run/checkpoints/$(cat run/checkpoints/LATEST)
check 2 "plays.txt is no folder" train gpt --resume plays.txt
check 4 "is neither a run (checkpoints/) nor a model (config.json, model.safetensors); there is run" sample run/checkpoints
check 4 "is an experiment and no text" train gpt $small data=many --out bad
check 4 "there are many/plays.txt/seed_1337, many/plays.txt/seed_1338" sample many
check 2 "run is a run" export run --out run
mkdir -p texts/runs && sed s/mind/soul/ plays.txt >texts/a.txt && cp -r run texts/runs/first
COLUMNS=300 check 0 "1 text, " plan gpt $small data=texts
grep -q "1 run folder passed over" out.txt || fail "a run among texts is trained on"
# In its own folder of texts the seeds of an experiment train on the same ones, and it can go on.
mkdir -p own/.here && cp plays.txt own/a.txt && cp other.txt own/b.txt
(
  cd own/.here || exit 1
  failures=0
  check 0 "means" train gpt $small steps=2 seeds=2 data=.. --out ../seeds
  check 0 "all 3 steps done" train gpt --resume ../seeds steps=3
  for seed in ../seeds/seed_*; do grep -q "2 texts, " "$seed/log.txt" || fail "$seed has read other texts"; done
  check 0 "all 2 steps done" train gpt $small steps=2 data=..,../a.txt --out ../pair
  check 0 "all 3 steps done" train gpt --resume ../pair steps=3
  exit $failures
) || fail "an experiment in its own data folder"
check 4 "is a run and no text; init_from=run" train gpt $small data=run --out bad
check 0 "minutes are over" train gpt $small steps=100000000 data=plays.txt max_minutes=0.02 --out timed
grep -q '"best_val_loss": [0-9]' timed/summary.json || fail "a run that ended by time tells no validation loss"
COLUMNS=300 check 0 "steps that are left" plan gpt --resume timed
check 2 "did you mean 'gpt'" train gtp
check 2 "did you mean 'batch'" train gpt bach=3
check 2 "heads" train gpt $small heads=3 data=plays.txt --out bad
check 3 "smallest budget" train gpt preset=gpt2 block=64 data=plays.txt tokenizer=byte memory=64MiB --out bad
check 4 "bad" train gpt $small data=plays.txt --out /dev/null/bad
[ -e bad ] && fail "a refused run left a folder"
cp -r run damaged
printf 'x' | dd of=damaged/checkpoints/$(cat damaged/checkpoints/LATEST)/model.safetensors bs=1 seek=900 conv=notrunc 2>/dev/null
check 0 "passed over" train gpt --out damaged --resume steps=16
check 0 "init_from" train gpt $small steps=2 data=plays.txt init_from=run --out tuned
check 4 "nowhere" train gpt $small steps=2 data=plays.txt init_from=nowhere --out bad
exit $((failures > 0))
