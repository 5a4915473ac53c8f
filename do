#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ./do demo           sets up .venv, builds baechi into it and shows what it does
# ./do test [STAGE]   sets up .venv and runs the checks and tests (--all: every stage, --list: their names)
# ./do experiments [NAME...|all]   regenerates the tables and figures in docs/lab/results
# ./do bank [NAME...] places every model of models/bank in all ways (docs/lab/results/bank.md)
# ./do release        makes and checks what is published, up to the upload (--try: of any commit)
# ./do setup          only the first half of `demo`: .venv/bin/baechi and `import baechi`
# ./do format         formats the C++ and the Python sources
# ./do stub           regenerates what is made of the sources: _core.pyi, options.py, pages
# ./do clean          removes .venv and build
#
# Needs Python >= 3.10 with pip, and a C++20 compiler. Everything else comes from PyPI into .venv.
# PYTHON and CXX choose the interpreter and the compiler. Nothing outside this folder is changed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
venv=$PWD/.venv
python=$venv/bin/python
stamps=$venv/stamps

fail() {
  echo "do: $*" >&2
  exit 1
}

# Runs a command quietly; shows what it said only when it fails.
quietly() {
  local log=$venv/last.log
  if ! "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    fail "this failed: $*"
  fi
}

# Runs the rest of the arguments unless they succeeded before with the same key.
once() {
  local name=$1 key=$2
  shift 2
  if [[ "$(cat "$stamps/$name" 2>/dev/null)" != "$key" ]]; then
    rm -f "$stamps/$name"
    "$@"
    echo "$key" >"$stamps/$name"
  fi
}

# One hash of all files under the given paths: names and contents.
hash_of() {
  find "$@" -type f -not -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum |
    sha256sum | cut -d' ' -f1
}

# Python >= 3.10, or nothing.
find_python() {
  local candidate
  for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python3.10}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
}

# A C++20 compiler, or nothing.
find_compiler() {
  local candidate
  for candidate in ${CXX:-c++ g++ clang++}; do
    if echo '#include <compare>
#include <concepts>
template <std::integral T> struct A { T x; auto operator<=>(const A&) const = default; };
int main() { return A<int>{1} < A<int>{2} ? 0 : 1; }' |
      "$candidate" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
}

# Names all that is missing at once.
check_needs() {
  local base=$1 missing=() packages=()
  if [[ -z $base ]]; then
    missing+=("Python >= 3.10 with pip (PYTHON chooses one)")
    packages+=(python3-pip python3-dev)
  elif [[ ! -d $venv ]] && ! "$base" -c 'import ensurepip' 2>/dev/null &&
    ! "$base" -m pip --version >/dev/null 2>&1; then
    missing+=("pip for $base")
    packages+=(python3-pip)
  fi
  if [[ -z $CXX ]]; then
    missing+=("a C++20 compiler, as g++ >= 11 (CXX chooses one)")
    packages+=(g++)
  fi
  [[ ${#missing[@]} == 0 ]] && return
  local words
  words=$(printf ', and %s' "${missing[@]}")
  fail "needs ${words#, and }; on Debian and Ubuntu: apt install ${packages[*]}"
}

# A virtual environment with pip, also where Debian's python3-venv is not installed.
make_venv() {
  local base=$1
  rm -rf "$venv"
  if ! "$base" -m venv "$venv" >/dev/null 2>&1; then
    rm -rf "$venv"
    "$base" -m venv --without-pip "$venv" || fail "cannot make a virtual environment in $venv"
    "$base" -m pip --quiet --python "$python" install pip || fail "cannot install pip into $venv"
  fi
  mkdir -p "$stamps"
}

# The extension needs Python.h. Where only the interpreter is installed, Debian's own package is
# unpacked into .venv, which needs no root.
find_headers() {
  local include where
  where='import sysconfig; print(sysconfig.get_path("include"))'
  include=$("$python" -c "$where")
  [[ -f $include/Python.h ]] && return
  local version headers=$venv/headers
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  if [[ ! -f $headers/usr/include/python$version/Python.h ]]; then
    mkdir -p "$headers"
    (cd "$headers" && apt-get download "libpython$version-dev" && dpkg -x ./*.deb .) \
      >/dev/null 2>&1 || true
  fi
  [[ -f $headers/usr/include/python$version/Python.h ]] ||
    fail "needs the Python headers (Debian and Ubuntu: apt install python3-dev)"
  export CXXFLAGS="${CXXFLAGS:-} -isystem $headers/usr/include"
  export CMAKE_ARGS="${CMAKE_ARGS:-} -DPython_INCLUDE_DIR=$headers/usr/include/python$version"
}

pip_install() { quietly "$python" -m pip install --disable-pip-version-check "$@"; }

# The file that names what a need is: tools/requirements-NEED.txt, but with no build of PyTorch for
# the CPU where there is an NVIDIA GPU, which that would not find.
list_of() {
  local list=tools/requirements-$1.txt
  if [[ $1 == torch ]] && nvidia-smi -L >/dev/null 2>&1; then
    sed 's/^torch==\(.*\)$/torch==\1,!=\1+cpu/' "$list" >"$venv/torch-for-gpu.txt"
    list=$venv/torch-for-gpu.txt
  fi
  echo "$list"
}

# Not to find it is no failure. The peers ask for solvers and drawing libraries that nobody uses.
install_need() {
  local need=$1 list=$2 log=$venv/$1.log options=()
  [[ $need == peers ]] && options=(--no-deps)
  echo "do: installing $need ($list), unless it is there" >&2
  if ! "$python" -m pip install --disable-pip-version-check "${options[@]}" -r "$list" \
    >"$log" 2>&1; then
    echo "do: pip cannot install $list, so experiments that need it are skipped:" \
      "$(grep -m 1 '^ERROR' "$log" || tail -n 1 "$log")" >&2
    exit 1 # of the subshell that `experiments` runs this in
  fi
}

# The virtual environment with the build tools in it, and the compiler.
prepare() {
  local base
  base=$(find_python)
  CXX=$(find_compiler)
  check_needs "$base"
  export CXX
  if command -v ccache >/dev/null; then
    export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  fi
  export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}
  export PATH=$venv/bin:$PATH

  if ! "$python" -m pip --version >/dev/null 2>&1; then
    echo "do: making .venv with $("$base" --version)" >&2
    make_venv "$base"
  fi
  mkdir -p "$stamps"
  once build-tools "$(hash_of tools/requirements-build.txt)" \
    pip_install -r tools/requirements-build.txt
}

setup() {
  local sources
  prepare
  find_headers
  sources=$(hash_of CMakeLists.txt pyproject.toml README.md LICENSE cmake src apps python third_party)
  [[ -f build/wheel/CMakeCache.txt ]] || rm -f "$stamps/package" # the tests are built there
  once package "$CXX $sources" build_package
}

build_package() {
  echo "do: building baechi (a few minutes the first time)" >&2
  pip_install --no-build-isolation --config-settings=build-dir=build/wheel \
    --config-settings=cmake.define.BAECHI_WERROR="${BAECHI_WERROR:-OFF}" .
}

# For the checks; the package is built only when one of the named stages, or of those run unasked, is about Python.
setup_checks() {
  prepare
  once check-tools "$(hash_of tools/requirements-check.txt)" \
    pip_install -r tools/requirements-check.txt
  if [[ " $* " =~ \ (--all|release|determinism|consumer|python|docs|torch|torch-oldest|bank|tensorflow|mypy|stub)\  ||
    ! " $*" =~ \ ([a-z]|-h|--help|--list) ]]; then
    setup
    once test-packages "$(hash_of pyproject.toml)" install_extra test
  fi
}

# Installs what one of the package's extras asks for.
install_extra() {
  local wanted
  mapfile -t wanted < <("$python" -c '
import re, sys
from importlib.metadata import requires
for line in requires("baechi"):
    name, _, marker = line.partition(";")
    if re.fullmatch(r"""\s*extra == .%s.\s*""" % sys.argv[1], marker):
        print(name.strip())' "$1")
  pip_install "${wanted[@]}"
}

command=${1:-help}
[[ $# -gt 0 ]] && shift
case $command in
  demo)
    setup
    exec examples/demo.sh "$@"
    ;;
  setup) setup ;;
  test)
    setup_checks "$@"
    exec "$python" tools/run_checks.py "$@"
    ;;
  experiments)
    setup
    once experiment-packages "$(hash_of pyproject.toml)" install_extra experiments
    needs=$("$python" -m experiments --needs "$@")
    for need in $needs; do
      [[ -f tools/requirements-$need.txt ]] || break # --help was among the arguments
      list=$(list_of "$need")
      (once "need-$need" "$(hash_of "$list")" install_need "$need" "$list") || true
    done
    export BAECHI_CACHE=${BAECHI_CACHE:-$PWD/build/torch}
    export PYTHONHASHSEED=0 # placers of others go through sets of names
    exec "$python" -m experiments "$@"
    ;;
  bank)
    setup
    list=$(list_of torch)
    (once need-torch "$(hash_of "$list")" install_need torch "$list") || true
    export BAECHI_CACHE=${BAECHI_CACHE:-$PWD/build/torch}
    exec "$python" -m experiments.bank "$@"
    ;;
  format)
    setup_checks format
    exec "$python" tools/run_checks.py --fix format ruff
    ;;
  stub)
    setup_checks stub
    "$python" tools/write_stub.py >python/baechi/_core.pyi
    "$python" tools/write_options.py >python/baechi/options.py
    "$python" tools/write_command.py >docs/reference/command.md
    exec "$python" tools/check_paper_map.py --fix
    ;;
  release)
    prepare
    find_headers
    pip_install build twine
    exec "$python" tools/release.py "$@"
    ;;
  clean) rm -rf .venv build ;;
  help | -h | --help) sed -n '3,14p' "$0" | cut -c3- ;;
  *) fail "unknown command '$command'; ./do help lists them" ;;
esac
