#!/usr/bin/env bash
# benchmarks_page.sh VERSUS: docs/benchmarks.md shows the figures of docs/benchmarks/*.json, and `tools/versus --page` notices where it does not.
set -euo pipefail
versus=$1
"$versus" --page --check
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/docs/benchmarks"
fail() { echo "$*"; exit 1; }
table() { # NOTE ROWS
  cat >"$folder/docs/benchmarks/t.json" <<END
{"machine": "M", "build": "b", "date": "2026-01-02", "note": "$1", "columns": [{"key": "row", "head": "row"}, {"key": "ours", "head": "ours", "from": "ridge_us", "scale": 0.001},
 {"key": "theirs", "head": "theirs", "from": "rival_us"}, {"key": "ratio", "head": "ratio", "ratio": ["theirs", "ours"]}], "rows": [$2]}
END
}
expect() { # CODE WORDS OPTIONS…
  local code=0 said
  said=$("$versus" --page --root "$folder" "${@:3}" 2>&1) || code=$?
  [ "$code" = "$1" ] && grep -qF -- "$2" <<<"$said" || fail "expected $1, '$2'; got $code: $said"
}
shows() { grep -qF -- "$1" "$folder/docs/benchmarks.md" || fail "'$1' is not in: $(cat "$folder/docs/benchmarks.md")"; }
page=$'| M: a machine | all |\n<!-- tables -->\n<!-- table: t -->\n<!-- end -->\n'
printf '%s' "$page" >"$folder/docs/benchmarks.md"

# Written digits stay, a range is shown, notes become footnotes, ratios are of medians where there are no samples.
table "as stored" '{"row": "`a`", "ours": 1.50, "theirs": {"median": 3000, "low": 2900, "high": 3100}, "notes": ["why"]}'
expect 1 "differs" --check
expect 0 "rendered"
shows '| `a` <sup>1</sup> | 1.50 | 3,000 (2,900–3,100) | 2,000 |'
shows '<sup>1</sup> why'
expect 0 "1 tables" --check
sed -i 's/1\.50/1.51/' "$folder/docs/benchmarks.md"
expect 1 "differs" --check

# A row of a measurement: medians and ranges of its samples, and ratios process by process.
echo '{"name": "a", "versions": {"ridge": "r", "rival": "v"}, "date": "2026-02-03", "ridge_us": [1000, 3000, 2000], "rival_us": [4, 6, 4]}' >"$folder/rows"
expect 0 "1 rows written" --add t "$folder/rows" --machine M
shows '| `a` <sup>1, 2</sup> | 2.00 (1.00–3.00) | 4.00 (4.00–6.00) | 2.00 (2.00–4.00) |'
shows '<sup>2</sup> M · r, rival v · 2026-02-03'
echo '{"ridge_bench": 1, "build": "b", "date": "2026-02-03T00:00:00Z", "rows": [{"facts": {"name": "new", "dtype": "f32"}, "rounds": [{"roof": 0.5, "times_us": [1, 2, 3]}]}]}' >"$folder/record"
expect 0 "1 rows written" --add t "$folder/record" --machine M
grep -qF '{"row": "`new`", "samples": {"times_us": [[1.0, 2.0, 3.0]], "roof": [0.5]}' "$folder/docs/benchmarks/t.json" || fail "$(cat "$folder/docs/benchmarks/t.json")"

# What cannot be right is named.
expect 1 "neither" --add t "$folder/docs/benchmarks.md"
expect 1 "not one of the page's" --add t "$folder/rows" --machine N
table "" '{"row": "`a`", "ours": 1}'
expect 1 "has no samples" --check
table "as stored" '{"row": "`a`", "hours": 1}'
expect 1 "not a column" --check
table "as stored" '{"row": "`a`", "ours": 1}'
echo '{}' >"$folder/docs/benchmarks/u.json"
expect 1 "does not show u.json" --check
rm "$folder/docs/benchmarks/u.json"
printf '%s| b | 7 |\n' "$page" >"$folder/docs/benchmarks.md"
expect 1 "outside its rendered tables" --check

# Training rows name the command of their rival; of the sizes that it measures, the row's own counts, and of its modes the fastest.
mkdir "$folder/anchors"
cat >"$folder/ridge" <<'END'
#!/usr/bin/env bash
[ "$1" = --version ] && { echo "ridge 9"; exit; }
echo '{"name": "cfc/64-16-8-64-64x2", "batch": 64, "precision": "fp32", "ms": 2, "rival": "for n in 1 2; do torch_cfc.py --only cfc --modes eager cell --threads $n; done | grep 16"}'
echo '{"name": "ppo/pong-state", "batch": 16384, "precision": "fp32", "ms": 9, "steps_s": 1000, "rival": "torch_ppo.py --model mlp --modes eager --threads 1; torch_ppo.py --model mlp --modes eager --threads 1 --channels-last"}'
echo '{"name": "ppo/none", "batch": 1, "precision": "bf16", "ms": 9, "steps_s": 1000}'
echo '{"name": "gpt/tiny", "batch": 3, "precision": "bf16", "ms": 4}'
END
printf '#!/usr/bin/env bash\n[ "$1" = -c ] && { echo 9; exit; }\nexec python3 "$@"\n' >"$folder/python"
cat >"$folder/anchors/torch_cfc.py" <<'END'
import sys
assert sys.argv[1:7] + sys.argv[8:] == ["--only", "cfc", "--modes", "eager", "cell", "--threads", "--device", "cpu"], sys.argv
print('{"B": 64, "T": 16, "I": 8, "N": 64, "ms": 5, "mode": "eager"}\n{"B": 64, "T": 16, "I": 8, "N": 64, "ms": %d, "mode": "cell"}\n{"B": 64, "T": 32, "I": 8, "N": 64, "ms": 1, "mode": "cell"}' % (6 - int(sys.argv[7])))
END
cat >"$folder/anchors/torch_ppo.py" <<'END'
import sys
print('{"mode": "eager", "steps_s_no_env": %d}' % (800 if "--channels-last" in sys.argv else 500))
END
cat >"$folder/anchors/torch_gpt.py" <<'END'
import sys
assert sys.argv[1:] == ["--shape", "tiny", "-B", "3", "--dtype", "bfloat16", "--modes", "eager", "--device", "cpu", "--threads", "1"], sys.argv
print('{"ms": 6, "mode": "eager"}')
END
chmod +x "$folder/ridge" "$folder/python"
rows=$("$versus" --suite train --ridge "$folder/ridge" --anchors "$folder/anchors" --python "$folder/python" --threads 1 --json 2>"$folder/err") || fail "$(cat "$folder/err")"
for words in '"cfc/64-16-8-64-64x2".*"ratio": 2.0,' '"ppo/pong-state".*"ratio": 1.25,' '"gpt/tiny".*"ratio": 1.5,'; do grep -q "$words" <<<"$rows" || fail "no $words in $rows"; done
[ "$(wc -l <<<"$rows")" = 3 ] || fail "a row without a rival is compared: $rows"
