#!/usr/bin/env bash
# exit_codes.sh RIDGE: what scripts may rely on: the exit code, results on stdout, errors on stderr, and no result lost silently.
source "$(dirname "$0")/common.sh"
check 0 out "ridge 0." --version
check 1 err "libno_such_driver.so" train gpt $small data=plays.txt device=cuda no_fallback=true --out refused
check 2 err "did you mean 'batch'" train gpt $small data=plays.txt bach=3 --out refused
check 3 err "the smallest budget that works is memory=" train gpt $small data=plays.txt memory=1MiB --out refused
check 4 err "no such file" train gpt $small data=none.txt --out refused
check 5 out "lower lr" train gpt $small data=plays.txt steps=60 lr=1000 min_lr=1000 weight_decay=1 warmup=0 --out diverged
[ ! -e refused ] || fail "a refused run left a folder"
check 0 out "" train gpt $small data=plays.txt steps=2 --json --out json
grep -qv '^{' out.txt && fail "train --json prints other things"

# A regression ends with 1, everything else of a comparison with 0. The slowdown is far beyond any noise.
matmul="bench ops --filter ^matmul/64x64x64$ threads=1 seconds=0 --repeat 2"
check 0 out "" $matmul --save before.json
RIDGE_BENCH_SLOWDOWN=30 check 1 err "1 of 1 rows slower" $matmul --compare before.json --save slow.json
check 0 err "1 faster" $matmul --compare slow.json
check 2 err "the suite ops" bench train --compare before.json
microseconds() { "$ridge" bench sample --filter bf16 layers=1 width=16 heads=2 block=64 threads=1 seconds=0 --json 2>err.txt | grep -o '"us":[0-9]*' | cut -d: -f2; }
usual=$(microseconds)
slow=$(RIDGE_BENCH_SLOWDOWN=30 microseconds)
[ "${slow:-0}" -gt $((5 * usual)) ] || fail "rows of the suite sample ignore RIDGE_BENCH_SLOWDOWN: $usual and $slow us"

# Output that cannot be written.
for words in "plan gpt $small data=plays.txt" "config keys" "config show"; do
  "$ridge" $words >/dev/full 2>err.txt
  got=$?
  [ $got = 4 ] && grep -qE "^ridge: [^:]+: No space left on device$" err.txt || fail "ridge $words >/dev/full ended with $got"
done
exit $((failures > 0))
