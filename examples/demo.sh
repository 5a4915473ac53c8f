#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `./do demo` runs once baechi is installed in .venv; `baechi` is on the PATH. A training graph
# that one small card has no room for is placed on four of them, beside one large card that has. With
# --all: three models, and every method's step. The page opens in a browser where there is a display
# (BAECHI_DEMO_BROWSER=none leaves it alone).
set -euo pipefail

# name, what it is, `baechi generate` arguments, memory of the large card and of each small one
models=("gnmt|a translation model, GNMT|gnmt --length 40 --batch 128|8GiB|3GiB")
methods=auto
if [[ ${1:-} == --all ]]; then
  shift
  methods=all
  models+=(
    "inception-v3|an image model, Inception-V3|inception-v3 --batch 32|8GiB|2GiB"
    "transformer|a language model, the Transformer|transformer --batch 64|8GiB|3GiB"
  )
fi
out=${1:-build/demo}
mkdir -p "$out"
link=(--link "134us,5.7GB/s") # PCIe 3.0 through host memory

# step_of PLAN_HEADLINE: "step 378 ms by single, ..." -> "378 ms"
step_of() { sed -n '1s/^step \([^ ]* [^ ]*\) .*/\1/p'; }

for model in "${models[@]}"; do
  IFS='|' read -r name what arguments large small <<<"$model"
  graph=$out/$name.json plan=$out/$name.plan.json
  # shellcheck disable=SC2086  # the arguments are several words
  baechi generate $arguments -o "$graph" 2>"$out/words.txt"
  one=$(baechi place "$graph" --cluster "1x$large" --method single 2>/dev/null | step_of)
  words=$(baechi place "$graph" --cluster "4x$small" "${link[@]}" --method $methods -o "$plan" \
    --report "$out/$name.html" 2>"$out/words.txt")
  printf '\nA training step of %s: %s on one %s card, %s on four of %s.\n\n' \
    "$what" "$one" "${large/GiB/ GiB}" "$(step_of <<<"$words")" "${small/GiB/ GiB}"
  printf '%s\n' "$words"
  baechi verify "$graph" "$plan"
done
baechi show "$out/gnmt.json" "$out/gnmt.plan.json" --width 100

page=$(realpath "$out/gnmt.html")
open_page() {
  local opener
  [[ ${BAECHI_DEMO_BROWSER:-} == none ]] && return
  [[ -n ${DISPLAY:-}${WAYLAND_DISPLAY:-} ]] || return 0
  for opener in "${BAECHI_DEMO_BROWSER:-}" xdg-open sensible-browser; do
    [[ -n $opener ]] && command -v "$opener" >/dev/null || continue
    "$opener" "$page" >/dev/null 2>&1 &
    return
  done
}
open_page

cat <<END

The plan as a page: file://$page
Try next:
  .venv/bin/baechi place $out/gnmt.json --cluster 2x4GiB+2x2GiB@0.6    # cards that differ
  .venv/bin/baechi explain $out/gnmt.json $out/gnmt.plan.json   # why that long?
  .venv/bin/baechi place $out/gnmt.json --cluster 2x1GiB        # what is short, what would do
  .venv/bin/baechi estimate --help                              # your own model, by its config.json
  ./do demo --all                                               # more models, every method
END
