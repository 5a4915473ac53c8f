#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The three models of the paper's evaluation as graph files, with costs of the paper's device:
#   examples/generate_models.sh FOLDER     writes inception-v3.json, gnmt.json, transformer.json
# Place them on four small devices with: baechi place FOLDER/gnmt.json --cluster paper
set -euo pipefail

folder=${1:?usage: $0 FOLDER}
mkdir -p "$folder"
baechi generate inception-v3 --batch 32 -o "$folder/inception-v3.json"
baechi generate gnmt --batch 128 --length 40 -o "$folder/gnmt.json"
baechi generate transformer --batch 64 -o "$folder/transformer.json"
