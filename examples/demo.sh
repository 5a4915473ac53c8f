#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tour that `./do demo` runs once baechi is installed in .venv; `baechi` is on the PATH. Three
# training graphs, each placed on four devices that are too small or too slow for it alone: every
# method's step time beside the lower bound that no placement can beat, and a page that shows the
# best plan: timeline, memory, critical path. The last page opens in a browser where there is a
# display (BAECHI_DEMO_BROWSER=none leaves it alone).
set -euo pipefail

out=${1:-build/demo}
mkdir -p "$out"

# name, `baechi generate` arguments, memory per device
models=(
  "inception-v3|inception-v3 --batch 32|2GiB"
  "gnmt|gnmt --length 40 --batch 128|3GiB"
  "transformer|transformer --batch 64|3GiB"
)

for model in "${models[@]}"; do
  IFS='|' read -r name arguments memory <<<"$model"
  graph=$out/$name.json plan=$out/$name.plan.json
  # shellcheck disable=SC2086  # the arguments are several words
  baechi generate $arguments -o "$graph"
  cluster="4x$memory"
  printf '\n== %s on %s (PCIe 3.0 through host memory, one transfer at a time) ==\n' "$name" "$cluster"
  baechi place "$graph" --cluster "$cluster" --link 134us,5.7GB/s --method all -o "$plan" \
    --report "$out/$name.html"
  baechi verify "$graph" "$plan"
  baechi show "$graph" "$plan"
done

mapfile -t pages < <(realpath "$out"/*.html)
printf '\nThe plans as pages:\n'
printf '  file://%s\n' "${pages[@]}"
open_page() {
  local opener
  [[ ${BAECHI_DEMO_BROWSER:-} == none ]] && return
  [[ -n ${DISPLAY:-}${WAYLAND_DISPLAY:-} ]] || return 0
  for opener in "${BAECHI_DEMO_BROWSER:-}" xdg-open sensible-browser; do
    [[ -n $opener ]] && command -v "$opener" >/dev/null || continue
    "$opener" "$1" >/dev/null 2>&1 &
    return
  done
}
open_page "$out/gnmt.html"

cat <<END

The graphs and plans are in $out. Try next:
  .venv/bin/baechi place $out/gnmt.json --cluster 2x4GiB+2x2GiB@0.6 --budget 5s
  .venv/bin/baechi trace $out/gnmt.json $out/gnmt.plan.json -o trace.json   # for ui.perfetto.dev
  .venv/bin/baechi info $out/gnmt.json --cluster 4x3GiB
  .venv/bin/baechi explain $out/gnmt.json $out/gnmt.plan.json       # why that long, and who holds the memory?
  .venv/bin/baechi what-if $out/gnmt.json --cluster 4x3GiB -m m-sct # what would one more GPU bring?
  .venv/bin/baechi place $out/gnmt.json --cluster 2x1GiB      # says what is short, and what would do
END
