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
check 0 stdout "Usage" help
check 2 stderr "ridge: task is required; ridge train --help says more" train
check 2 stderr "ridge: source is required; ridge data prepare --help says more" data prepare
check 2 stderr "unknown command 'no-such-command'" no-such-command
check 2 stderr "--no-such-flag" --no-such-flag
RIDGE_ISA=avx3 check 2 stderr "valid: " --version
[ "$("$ridge" no-such-command 2>/dev/null | wc -c)" = 0 ] || { echo "an error spoke on stdout"; failures=$((failures + 1)); }
if "$ridge" --help | grep -q '^  bench '; then check 2 stderr "did you mean 'bench'" bnech; fi

# Configuration: every problem of a file at once, with its line and the nearest name.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf 'batch: 8\n' >"$folder/good.yaml"
printf '[gpu]\ndevic = cpu\nmemory_fraction = 2\n' >"$folder/bad.ini"
check 0 stdout "batch" config keys
check 0 stdout '"key": "batch"' config keys --json
check 0 stdout "# Configuration" config keys --md
check 0 stdout "good.yaml:1" config show --config "$folder/good.yaml"
check 0 stdout '"source": "command line"' config show gpt --json lr=1e-3
printf 'steps: 5\n' >"$folder/more.yaml"
check 0 stdout '"value": 7' config show gpt --json --config "$folder/good.yaml" steps=7 --config "$folder/more.yaml"
check 0 stdout '"value": 5' config show gpt --json --config "$folder/good.yaml" --config "$folder/more.yaml"
for option in --out --resume --no-fallback; do check 0 stdout "$option" train --help; done
check 0 stdout "--resume" plan --help
check 4 stderr "good.yaml is no folder; choose another with --out DIR" train gpt --out "$folder/good.yaml"
check 4 stderr "cannot make the run folder /proc/" train gpt runs_dir=/proc
check 4 stderr "there is no such file or folder" train gpt "data=$(printf 'x%.0s' {1..250})" runs_dir="$folder/runs"
check 4 stderr "xxx: File name too long" report "$(printf 'x%.0s' {1..300})"
check 4 stderr "there is no folder $folder/nosuch" runs "$folder/nosuch"
(cd "$folder" && check 0 stdout "No runs in runs" runs; exit $failures) || failures=1
check 0 stdout "1 key, all valid" config check "$folder/good.yaml"
check 2 stderr "bad.ini:2: unknown key 'devic'; did you mean 'device'?" config check "$folder/bad.ini"
check 2 stderr "bad.ini:3: memory_fraction is '2'" config check "$folder/bad.ini"
printf '[gpu]\ndevice = cpu\n\n[trainig]\n\nbatch = 3\n' >"$folder/section.ini"
check 2 stderr "section.ini:4: unknown section 'trainig'; did you mean 'training'?" config check "$folder/section.ini"
check 2 stderr "does not exist" config check "$folder/none.yaml"
check 2 stderr "did you mean 'batch'" config show bacth=3
check 2 stderr "a whole number from 1" config show --batch -3
check 2 stderr "did you mean 'show'" config shw
check 2 stderr "ridge config check FILE" config
RIDGE_THREDS=1 check 2 stderr "did you mean 'RIDGE_THREADS'" config show
[ "$("$ridge" config check "$folder/bad.ini" 2>/dev/null | wc -c)" = 0 ] || { echo "config check spoke of errors on stdout"; failures=$((failures + 1)); }

# Probe: what is wrong with the question is said before the time is spent, and a missed target is exit code 1.
check 2 stderr "did you mean 'min_tflops'" probe min_tflop=3
check 4 stderr "cannot write" probe --svg "$folder/none/roof.svg"
XDG_CACHE_HOME="$folder" check 1 stdout "missed" probe --quick --check threads=1 min_tflops=100000 --svg "$folder/roof.svg"
grep -q "</svg>" "$folder/roof.svg" || { echo "probe drew no roofline"; failures=$((failures + 1)); }

# Bench and demo take settings in every form.
check 2 stderr "did you mean 'threads'" bench ops thread=3
check 2 stderr "valid: hot, cold" bench ops state=warm
check 0 stdout "1 asked for by command line" demo --steps 2 --batch 64 --threads=1 --optimize-perf=false
check 0 stdout "; CPU " demo --steps 2 --batch 64
RIDGE_CUDA_LIBRARY=/nowhere/libcuda.so.1 check 1 stderr "cuda" demo --steps 2 --device=cuda --no-fallback

# Doctor: what is wrong with the machine is a finding, what is wrong with the question an error.
export RIDGE_CACHE="$folder/cache"
check 0 stdout "Ridge would use" doctor
check 0 stdout '"can_run": true' doctor --json device=cuda
check 1 stdout "fallbacks are forbidden" doctor device=mps no_fallback=true
check 2 stderr "did you mean 'device'" doctor devise=cpu
check 4 stderr "cannot write" doctor --svg "$folder/none/machine.svg"
check 0 stderr "tokens=9 has no effect on ridge train" train gpt tokens=9 steps=1 layers=1 heads=1 width=16 block=16 batch=1 threads=1 --out "$folder/apart/one_step"
(cd "$folder" && printf 'batc: 8\n' >train.yaml && check 2 stdout "train.yaml:1" doctor; exit $failures) || failures=1
document=$("$ridge" doctor --json --svg "$folder/machine.svg")
[ "${document:0:1}${document: -1}" = "{}" ] || { echo "doctor --json printed something else"; failures=$((failures + 1)); }
grep -q "</svg>" "$folder/machine.svg" || { echo "doctor drew no machine"; failures=$((failures + 1)); }

# Data: tokens are made once, a prepared folder is a source, and what is wrong with a text is said.
printf 'to be or not to be, that is the question\n%.0s' {1..9} >"$folder/text.txt"
printf 'caf\xe9\n' >"$folder/latin.txt"
check 0 stdout "char tokenizer, 15 tokens" data prepare "$folder/text.txt"
check 0 stdout "all was there before" data prepare "$folder/text.txt"
check 0 stdout '"vocab": 260' data prepare "$folder/text.txt" tokenizer=bpe vocab=260 --out "$folder/tokens" --json
check 2 stderr "tokens already" data prepare "$folder/tokens" --out "$folder/other"
check 2 stderr "257 to" data prepare "$folder/text.txt" vocab=3
check 2 stderr "--vocab is for tokenizer=bpe" data prepare "$folder/text.txt" --vocab 300
check 2 stderr "none of auto, char, byte and bpe" data prepare "$folder/text.txt" tokenizer=bep
check 2 stderr "did you mean 'prepare'" data prepar
check 4 stderr "no such file" data prepare "$folder/none.txt"
check 4 stderr "tokenizer=byte" data prepare "$folder/latin.txt"
check 4 stderr "needs 65" data prepare "$folder/text.txt" block=64
check 4 stderr "not empty" data prepare "$folder/text.txt" --out "$folder"
check 0 stdout "2 batches of 2 x 4 tokens" data batches "$folder/text.txt" --out "$folder/batches.bin" --batches 2 batch=2 block=4
check 2 stderr "where to?" data batches "$folder/text.txt" batch=2 block=4
XDG_CACHE_HOME="$folder" check 0 stdout "Train on it" data prepare "$folder/text.txt" tokenizer=byte --out "$folder/made_twice"
XDG_CACHE_HOME="$folder" check 0 stdout "(byte, 257 different ones)" data prepare "$folder/text.txt" tokenizer=char --out "$folder/made_twice"
check 2 stderr "unknown command 'batch'" data batch "$folder/text.txt"

# Trained models: a made one writes, is measured and exported; what is no model, or no text for it, is said once.
model=$(dirname "$0")/../fixtures/gpt2
check 0 stdout "abc" sample "$model" --prompt abc --tokens 5 temperature=0 threads=1
check 0 stdout '"tokens":7' sample "$model" --tokens 7 --json seed=3 top_k=4 top_p=0.9 precision=bf16
check 0 stdout '"device":"cpu","precision":"fp16"' sample "$model" --tokens 2 --json device=cpu precision=fp16
[ "$("$ridge" sample "$model" --tokens 2 device=cpu precision=fp16 2>&1 >/dev/null | grep -c gradient)" = 0 ] || { echo "a sample has no gradients"; failures=$((failures + 1)); }
check 2 stderr "device is 'tpu'" sample "$model" device=tpu
RIDGE_CUDA_LIBRARY=libno_such_driver.so check 1 stderr "libno_such_driver.so" sample "$model" device=cuda no_fallback=true
RIDGE_CUDA_LIBRARY=libno_such_driver.so check 0 stderr "cpu runs instead of cuda" sample "$model" --tokens 2 device=cuda
check 0 stdout '"tokens":7' sample "$model" tokens=7 --json
check 0 stdout '"kv_precision":"bf16"' sample "$model" tokens=2 precision=fp32 kv_precision=bf16 --json
check 0 stdout '"kv_precision":"fp32"' sample "$model" max_new_tokens=2 kv_precision=fp32 --json
check 2 stderr "tokens is '0', but must be a whole number from 1 to" sample "$model" --tokens 0
check 2 stderr "tokens is 'abc', but must be a whole number" sample "$model" --tokens abc
check 2 stderr "tokens is '99999999999999999999', but must be a whole number" sample "$model" --tokens 99999999999999999999
check 0 stderr "batch=3 has no effect on ridge sample" sample "$model" --tokens 2 batch=3
check 0 stderr "out=nowhere has no effect on ridge plan" plan gpt preset=tiny out=nowhere optimize_perf=false
check 2 stderr "which run? Name its folder with --out DIR" plan gpt --resume
check 2 stderr "there is no run folder $folder/no/run" plan gpt --resume "$folder/no/run"
check 2 stderr "there is no run folder $folder/no/run" train gpt --resume "$folder/no/run"
check 2 stderr "cannot read the prompt" sample "$model" --prompt "Query"
check 4 stderr "does not exist; ridge train gpt --out $folder/nothing makes a run there" sample "$folder/nothing"
check 4 stderr "is neither a run" eval "$folder"
mkdir -p "$folder"/{bells,balls,tables,chairs}/checkpoints
check 4 stderr "does not exist; there are $folder/balls, $folder/bells, $folder/tables and 1 more" eval "$folder/ball"
check 4 stderr "bells has no checkpoint that is whole; there are" export "$folder/bells"
rm -r "$folder"/{bells,balls,tables,chairs}
check 2 stderr "model is required" sample
check 2 stderr "top_p is '2'" sample "$model" top_p=2
check 2 stderr "did you mean 'temperature'" sample "$model" temperatur=1
printf 'some words and some more words for a model that was never trained!\n%.0s' {1..40} >"$folder/words.txt"
XDG_CACHE_HOME="$folder" check 0 stdout '"bits_per_byte":' eval "$model" data="$folder/words.txt" --json
XDG_CACHE_HOME="$folder" check 0 stdout "cpu, fp32: asked for by name" eval "$model" data="$folder/words.txt" device=cpu
XDG_CACHE_HOME="$folder" check 2 stderr "valid: validation, train" eval "$model" data="$folder/words.txt" --split all
check 0 stdout "GPT-2's form" export "$model" --out "$folder/model"
head -c 3000 "$folder/model/model.safetensors" >"$folder/short"
mv "$folder/short" "$folder/model/model.safetensors"
check 4 stderr "model.safetensors" sample "$folder/model" --prompt abc
# Answers that cannot be written.
for words in "plan gpt" "config keys" "config show"; do
  got=0
  "$ridge" $words >/dev/full 2>"$folder/full.txt" || got=$?
  [ $got = 4 ] && grep -qE "^ridge: [^:]+: No space left on device$" "$folder/full.txt" || { echo "FAILED: ridge $words >/dev/full ended with $got"; failures=$((failures + 1)); }
done
exit $((failures > 0))
