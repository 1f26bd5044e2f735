#!/usr/bin/env bash
# Inputs of every kind from the command line: each that is good is trained on, each that is bad ends with its exit code, one line that says why, and nothing
# left behind; and a run that goes on from another cache ends with the same bits.
source "$(dirname "$0")/common.sh"
small+=" sample_interval=none"
refused() {  # CODE WORDS ARGS…: as check, with one message on stderr, and nothing on stdout but the table of a run that goes on
  check "$@"; shift 2
  [ "$(grep -c '^ridge: ' err.txt)" = 1 ] || { fail "ridge $*: not one message"; cat err.txt; }
  grep -q "ridge: " out.txt && fail "ridge $*: an error spoke on stdout"
  [ -e bad ] && { fail "ridge $*: a refused run left a folder"; rm -rf bad; }
}

# Sources: a text, a folder of texts, nanoGPT's tokens with and without their characters, llm.c's shards.
mkdir -p texts/more bins shards
cp plays.txt texts/a.txt
sed 's/be/see/g' plays.txt >texts/more/b.md
check 0 "all 3 steps done" train gpt $small steps=3 data=texts --out from_texts
printf '\0\0\1\0\2\0\1\0%.0s' {1..200} >bins/train.bin
printf '\2\0\1\0\0\0%.0s' {1..40} >bins/val.bin
printf "(dVitos\n(dI0\nVa\nsI1\nVb\nsI2\nV\\\\u000a\nss." >bins/meta.pkl
check 0 "all 3 steps done" train gpt $small steps=3 data=bins --out from_bins
grep -q '"vocab_size": 3' from_bins/model/config.json || fail "meta.pkl has three characters"
check 0 "a" sample from_bins --prompt ab --tokens 5
rm bins/meta.pkl
check 0 "all 2 steps done" train gpt $small steps=2 data=bins --out from_gpt2s
grep -q '"vocab_size": 50257' from_gpt2s/model/config.json || fail "tokens without a vocabulary are GPT-2's"
header() { printf '\x88\xd8\x34\x01\1\0\0\0\x20\3\0\0'; head -c 1012 /dev/zero; }  # 20240520, version 1, 800 tokens
for part in train val; do { header; printf '\1\0\2\0\3\0\xff\0%.0s' {1..200}; } >"shards/tiny_${part}_0001.bin"; done
check 0 "all 2 steps done" train gpt $small steps=2 data=shards --out from_shards

# What is wrong with data, tokenizers, settings, checkpoints and folders.
: >empty.txt
printf 'short' >short.txt
printf 'caf\xe9 %.0s' {1..500} >latin.txt
head -c 4000 /dev/urandom >noise.bin
mkdir nothing
printf '{"model": {"type": "Unigram"}}' >unigram.json
refused 4 "no such file" train gpt $small data=none.txt --out bad
refused 4 "is empty" train gpt $small data=empty.txt --out bad
refused 4 "a window of block 32 needs 33" train gpt $small data=short.txt --out bad
refused 4 "tokenizer=byte" train gpt $small data=latin.txt --out bad
refused 4 "no text files" train gpt $small data=nothing --out bad
refused 4 "Unigram" train gpt $small data=plays.txt tokenizer=unigram.json --out bad
refused 4 "does not exist" train gpt $small data=plays.txt tokenizer=none.json --out bad
refused 4 "" train gpt $small data=noise.bin tokenizer=char --out bad
refused 2 "none of auto, char, byte and bpe" train gpt $small data=plays.txt tokenizer=cahr --out bad
refused 2 "width 16 is not a multiple of heads 3" train gpt $small heads=3 data=plays.txt --out bad
refused 3 "the smallest budget that works is memory=" train gpt preset=gpt2 block=64 data=plays.txt tokenizer=byte memory=64MiB --out bad
printf '\7\0%.0s' {1..200} >bins/val.bin
printf "(dVitos\n(dI0\nVa\nsI1\nVb\nsI2\nV\\\\u000a\nss." >bins/meta.pkl
refused 4 "is not in the vocabulary of 3" train gpt $small data=bins --out bad
printf 'cos\nsystem\n(S'"'"'touch owned'"'"'\ntR.' >bins/meta.pkl
refused 4 "meta.pkl" train gpt $small data=bins --out bad
[ -e owned ] && fail "a pickle was obeyed"
head -c 1500 shards/tiny_val_0001.bin >shards/cut && mv shards/cut shards/tiny_val_0001.bin
refused 4 "cut off" train gpt $small data=shards --out bad

# One line of a megabyte.
head -c 1000000 /dev/zero | tr '\0' 'a' >long.txt
printf 'bcd' >>long.txt
check 0 "all 2 steps done" train gpt $small steps=2 data=long.txt tokenizer=char --out long
tr '\n' ' ' <plays.txt | tr -d '\n' >line.txt
for _ in 1 2 3 4 5 6 7 8; do cat line.txt line.txt >twice.txt && mv twice.txt line.txt; done
check 0 "all 2 steps done" train gpt $small steps=2 data=line.txt tokenizer=bpe --out long_bpe

# Another vocabulary, another model's checkpoint, a checkpoint that is none.
check 0 "all 4 steps done" train gpt $small steps=4 data=plays.txt --out run
check 0 "all 4 steps done" train gpt $small width=32 steps=4 data=plays.txt --out wide
refused 2 "vocabulary" train gpt --out run --resume steps=8 tokenizer=byte
cp -r run wrong && rm -rf wrong/checkpoints && cp -r wide/checkpoints wrong/
refused 2 "was trained with model" train gpt --out wrong --resume steps=8
refused 2 "finished" train gpt --out run --resume
cp -r run broken
for file in broken/checkpoints/step_*/model.safetensors; do printf 'x' | dd of="$file" bs=1 seek=400 conv=notrunc 2>/dev/null; done
refused 2 "no checkpoint" train gpt --out broken --resume steps=8
refused 4 "nowhere" train gpt $small steps=2 data=plays.txt init_from=nowhere --out bad
refused 4 "" train gpt $small steps=2 data=plays.txt init_from=texts --out bad

# A folder that cannot be made.
refused 4 "Not a directory" train gpt $small steps=2 data=plays.txt --out plays.txt/run

# Ends: at a loss that was aimed at, and in so many seconds.
check 0 "is at the target of 99" train gpt $small steps=50 eval_interval=7 target_loss=99 data=plays.txt --out aimed
[ "$(number steps aimed/summary.json)" = 7 ] || fail "target_loss was reached at step 7, it ended at $(number steps aimed/summary.json)"
check 0 "all 8 steps done" train gpt $small steps=8 eval_interval=4 target_loss=0.001 data=plays.txt --out missed

check 5 "not finite" train gpt $small steps=60 lr=1000 min_lr=1000 weight_decay=1 warmup=0 checkpoint_interval=5 data=plays.txt --out diverged
grep -q "lower lr" out.txt err.txt || fail "a run that diverged says nothing of what to do"
[ -e diverged/checkpoints/LATEST ] || fail "a run that diverged lost its checkpoints"

# Text comes as it is made, so a reader may stop at any time; a seed decides what is written.
text=$(timeout 60 "$ridge" sample run --prompt "to be" --tokens 1000000000 2>/dev/null | head -c 200)
[ "${#text}" -ge 190 ] || fail "sample wrote ${#text} characters and not 200 of many"
sampled() { "$ridge" sample run --prompt "to be" --tokens 60 "$@" 2>/dev/null; }
[ "$(sampled seed=1)" = "$(sampled seed=1)" ] || fail "the same seed gives other text"
[ "$(sampled seed=1)" != "$(sampled seed=2)" ] || fail "another seed gives the same text"
[ "$(sampled temperature=0 seed=1)" = "$(sampled top_k=1 seed=2)" ] || fail "the likeliest tokens depend on how they are asked for"

# What eval prints belongs together: perplexity is exp(loss), and bits per byte those of the loss.
check 0 "perplexity" eval run data=plays.txt --json
loss=$(number loss out.txt) perplexity=$(number perplexity out.txt) bits=$(number bits_per_byte out.txt)
awk -v l="$loss" -v p="$perplexity" -v b="$bits" 'BEGIN { e = exp(l) / p - 1; d = l / log(2) / b - 1; exit !(e < 1e-4 && e > -1e-4 && d < 1e-4 && d > -1e-4) }' ||
  fail "loss $loss, perplexity $perplexity, $bits bits per byte"
[ "$(printf %.3f "$loss")" = "$(printf %.3f "$(number final_val_loss run/summary.json)")" ] || fail "eval says $loss, the run $(number final_val_loss run/summary.json)"

# The same bits from a cache that knows more, or nothing.
whole="$small steps=5000 checkpoint_interval=200 eval_interval=1000 data=plays.txt seed=5"
RIDGE_CACHE="$folder/first" check 0 "all 5000 steps done" train gpt $whole --out calm
for next in first none; do
  RIDGE_CACHE="$folder/second_$next" "$ridge" train gpt $whole --out "again_$next" >stop.txt 2>&1 &
  process=$!
  for _ in $(seq 3000); do  # a minute, for any checkpoint after the first step
    compgen -G "again_$next/checkpoints/step_*[1-9]*" >/dev/null && break
    kill -0 $process 2>/dev/null || break
    sleep 0.02
  done
  kill -KILL $process 2>/dev/null
  wait $process 2>/dev/null
  [ -e "again_$next/summary.json" ] && fail "again_$next ended before it was killed"
  RIDGE_CACHE="$folder/$next" check 0 "all 5000 steps done" train gpt --out "again_$next" --resume
  grep -q "not bit-exact" out.txt err.txt && fail "resumed from the cache $next, not bit-exact"
  for file in model optimizer; do
    cmp "calm/checkpoints/step_00005000/$file.safetensors" "again_$next/checkpoints/step_00005000/$file.safetensors" || fail "other bits from the cache $next"
  done
done
exit $((failures > 0))
