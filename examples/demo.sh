#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `./do demo` shows once baechi is installed in .venv; `baechi` is on the PATH.
set -euo pipefail

baechi --version
