# SPDX-License-Identifier: Apache-2.0
"""Runs the checks and tests behind ``./do test``, one stage after the other.

A stage prints what its runner counted; its whole output is in build/logs/STAGE.log and is shown
when it fails. A later stage runs even when an earlier one failed. ``./do test release python``
runs two stages, ``./do test --list`` names them all.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
CORES = len(os.sched_getaffinity(0))
WERROR = os.environ.get("BAECHI_WERROR", "OFF")
TIDY_SECONDS = int(os.environ.get("BAECHI_TIDY_SECONDS", "100"))
# GCC's own warning options, and a warning that comes from inside libstdc++.
TIDY_ARGUMENTS = [
    f"--extra-arg=-Wno-{w}" for w in ("unknown-warning-option", "deprecated-declarations")
]
PIP = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
TORCH_OLDEST = BUILD / "torch-oldest"
WANTED_OLDEST = ROOT / "tools/requirements-torch-oldest.txt"
# What it needs is what the newest needs, and there.
INSTALL_OLDEST = ("--no-deps", "--target", TORCH_OLDEST, "-r", WANTED_OLDEST)
BANK_MINUTES = os.environ.get("BAECHI_BANK_MINUTES", "2.5")
FUZZ_SECONDS = int(os.environ.get("BAECHI_FUZZ_SECONDS", "5"))


class Failed(Exception):
    """A check found something; its log says what."""


class Skipped(Exception):
    """A check cannot run here; the message says why."""


@dataclass
class Context:
    """What a stage gets: where to write, whether to repair, and where its counts go."""

    log: Path
    fix: bool = False
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    notes: list[str] = field(default_factory=list)

    def run(self, *command: str | Path, env: dict[str, str] | None = None) -> str:
        """Run a command in the root folder; a non-zero exit fails the stage."""
        done = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.stdout or done.returncode != 0:
            with self.log.open("a") as log:
                log.write(f"$ {' '.join(str(part) for part in command)}\n{done.stdout}\n")
        if done.returncode != 0:
            raise Failed(f"exit code {done.returncode} from {command[0]}")
        return done.stdout


def sources(*patterns: str) -> list[Path]:
    """Return our own files that match; third-party code and build folders are not ours."""
    folders = ["src", "apps", "tests", "bench", "python", "examples", "experiments"]
    found = {path for folder in folders for p in patterns for path in (ROOT / folder).rglob(p)}
    return sorted(found)


def has_libfuzzer() -> bool:
    """Tell whether clang++ and its sanitizer and fuzzer runtimes are installed."""
    probe = ["clang++", "-fsanitize=fuzzer,address", "-x", "c++", "-", "-o", "/dev/null"]
    body = b'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
    found = shutil.which("clang++") is not None
    return found and subprocess.run(probe, input=body, capture_output=True).returncode == 0


def build(ctx: Context, preset: str, *options: str, targets: tuple[str, ...] = ()) -> Path:
    """Configure and build a preset; return its folder."""
    ctx.run("cmake", "--preset", preset, f"-DBAECHI_WERROR={WERROR}", *options)
    choice = ["--target", *targets] if targets else []
    ctx.run("cmake", "--build", BUILD / preset, *choice)
    return BUILD / preset


def run_cpp_tests(ctx: Context, binary: Path, *filters: str) -> None:
    """Run a doctest binary in several processes at once and add up what they counted."""
    count = re.search(r"filters: (\d+)", ctx.run(binary, "--count", *filters))
    total = int(count.group(1)) if count else 0
    if total == 0:
        raise Skipped("no test case matches")
    size = -(-total // (32 * CORES))  # few: some cases take a minute
    env = {"UBSAN_OPTIONS": "print_stacktrace=1", "ASAN_OPTIONS": "detect_leaks=1"}

    def shard(first: int) -> None:
        ctx.run(binary, f"--first={first}", f"--last={first + size - 1}", *filters, env=env)

    with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
        shards = [pool.submit(shard, first) for first in range(1, total + 1, size)]
    errors = [future.exception() for future in shards]
    counts = re.findall(r"test cases: .* passed \| +(\d+) failed", ctx.log.read_text())
    ctx.failed = sum(int(failed) for failed in counts)
    if any(errors):
        ctx.failed = max(ctx.failed, 1)  # a crash counts nothing
    ctx.passed = total - ctx.failed
    if ctx.failed:
        raise Failed(f"{ctx.failed} of {total} test cases failed")


@functools.cache
def head_of() -> str:
    """Name the commit, by which samples are drawn: other ones for every commit."""
    command = ["git", "rev-parse", "HEAD"]
    head = ""
    with contextlib.suppress(FileNotFoundError):  # no git here
        head = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return head or "no commit"


AHEAD: dict[tuple[str | Path, ...], concurrent.futures.Future[str]] = {}  # see install_ahead


def install(ctx: Context, *arguments: str | Path) -> None:
    """Let pip install something, or wait until it has, where that was begun ahead."""
    concurrent.futures.wait(AHEAD.values())  # one pip at a time in one environment
    if arguments in AHEAD:
        AHEAD[arguments].result()
    else:
        ctx.run(*PIP, *arguments)


def install_ahead() -> None:
    """Begin to install what later stages need: that is waiting, and compiling is work."""
    ctx = Context(log=BUILD / "logs" / "pip.log")
    ctx.log.write_text("")
    names = ("torch", "docs", "tensorflow")
    wanted: list[tuple[str | Path, ...]] = [
        ("-r", ROOT / f"tools/requirements-{name}.txt") for name in names
    ]
    with contextlib.suppress(FileExistsError):
        TORCH_OLDEST.mkdir()
        wanted.append(INSTALL_OLDEST)
    pool = concurrent.futures.ThreadPoolExecutor(1)
    AHEAD.update((arguments, pool.submit(ctx.run, *PIP, *arguments)) for arguments in wanted)
    pool.shutdown(wait=False)


def check_format(ctx: Context) -> None:
    """clang-format."""
    files = sources("*.cc", "*.h")
    ctx.run("clang-format", *(["-i"] if ctx.fix else ["--dry-run", "-Werror"]), *files)
    ctx.notes.append(f"{len(files)} files")


def check_ruff(ctx: Context) -> None:
    """Ruff: lint and format of the Python files."""
    ctx.run("ruff", "check", *(["--fix"] if ctx.fix else []), ".")
    ctx.run("ruff", "format", *([] if ctx.fix else ["--check"]), ".")


def check_mypy(ctx: Context) -> None:
    """Mypy, strict."""
    ctx.notes.append(ctx.run("mypy").strip().splitlines()[-1])


def check_layout(ctx: Context) -> None:
    """Include order of the folders, and the paper map."""
    ctx.run(sys.executable, "tools/check_layers.py")
    ctx.run(sys.executable, "tools/check_paper_map.py")


def check_release(ctx: Context) -> None:
    """The C++ tests, optimised, over the library that the wheel has been made of."""
    wheel = BUILD / "wheel"
    targets = ("baechi_tests", "baechi_lp_oracle_driver")
    ctx.run("cmake", "--build", wheel, "--target", *targets)
    run_cpp_tests(ctx, wheel / "baechi_tests")


def check_sanitizers(ctx: Context) -> None:
    """The C++ tests under the address and undefined-behaviour sanitizers, built with Clang."""
    preset = "fuzz" if has_libfuzzer() else "dev"
    ctx.notes.append("Clang" if preset == "fuzz" else "no Clang with libFuzzer: GCC")
    run_cpp_tests(ctx, build(ctx, preset) / "baechi_tests")


def check_threads(ctx: Context) -> None:
    """The test suite "threads" under the thread sanitizer."""
    if not any('"threads"' in path.read_text() for path in sources("*_test.cc")):
        raise Skipped("no test case in the suite")
    folder = build(ctx, "tsan", "-DBAECHI_TEST_SUITE=threads", targets=("baechi_tests",))
    run_cpp_tests(ctx, folder / "baechi_tests", "-ts=threads")


def check_determinism(ctx: Context) -> None:
    """Many runs of everything, and the commands in tests/cli/determinism.txt, on every build."""
    presets = ["wheel", "fuzz" if has_libfuzzer() else "dev"]
    ctx.run("cmake", "--build", BUILD / "wheel", "--target", "baechi_cli", "baechi_tests")
    build(ctx, presets[1], targets=("baechi_cli", "baechi_tests"))
    lines = (ROOT / "tests/cli/determinism.txt").read_text().splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
        digests = list(pool.map(lambda name: digests_of(BUILD / name / "baechi", lines), presets))
    for line, *answers in zip(lines, *digests, strict=True):
        if len(set(answers)) == 1 and not answers[0].startswith("exit"):
            ctx.passed += 1
        else:
            ctx.failed += 1
            with ctx.log.open("a") as log:
                log.write(f"baechi {line}: {dict(zip(presets, answers, strict=True))}\n")
    with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
        plans = list(pool.map(lambda name: digests_of_plans(ctx, BUILD / name), presets))
    if not plans[0] or any(other != plans[0] for other in plans):
        ctx.failed += 1
    ctx.passed += len(plans[0])
    ctx.notes.append(", ".join(presets))
    if ctx.failed:
        raise Failed(f"{ctx.failed} commands fail or depend on the build")


def digests_of_plans(ctx: Context, folder: Path) -> list[str]:
    """Make every plan many times in one process; the digests of what must not change."""
    text = ctx.run(folder / "baechi_tests", "-tc=determinism:*", "--no-skip")
    return re.findall(r"digest (.+)", text)


def digests_of(binary: Path, lines: list[str]) -> list[str]:
    """Run the commands; digest what each printed and the files that it left."""
    digests = []
    with tempfile.TemporaryDirectory() as folder:
        for line in lines:
            words = line.removeprefix("~").format(data=ROOT / "tests/data", tmp=folder).split()
            done = subprocess.run([binary, *words], capture_output=True)
            printed = b"" if line.startswith("~") else done.stdout
            digest = hashlib.sha256(printed.replace(folder.encode(), b""))
            for path in sorted(Path(folder).iterdir()):
                text = path.read_bytes().replace(folder.encode(), b"")
                digest.update(path.name.encode() + text)
            digests.append(f"exit {done.returncode}" if done.returncode else digest.hexdigest()[:8])
    return digests


def check_fuzz(ctx: Context) -> None:
    """A few seconds of libFuzzer for each parser, from the committed corpus."""
    if not has_libfuzzer():
        raise Skipped("no clang++ with libFuzzer")
    targets = sorted(build(ctx, "fuzz").glob("fuzz_*"))

    def fuzz(target: Path) -> str:
        name = target.name.removeprefix("fuzz_")
        found = BUILD / "fuzz-corpus" / name
        found.mkdir(parents=True, exist_ok=True)
        ctx.run(
            target,
            f"-max_total_time={FUZZ_SECONDS}",
            "-rss_limit_mb=2048",
            "-timeout=10",
            "-verbosity=0",
            f"-artifact_prefix={found.parent}/{name}-",
            found,
            *filter(Path.is_dir, [ROOT / "tests/fuzz/corpus" / name]),
        )
        return name

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        ctx.notes += pool.map(fuzz, [target for target in targets if not target.is_dir()])


def check_consumer(ctx: Context) -> None:
    """`cmake --install`, then find_package(baechi) and pkg-config from another project."""
    with tempfile.TemporaryDirectory() as temporary:
        prefix, project = Path(temporary) / "prefix", Path(temporary) / "build"
        only = ("--component", "development")
        ctx.run("cmake", "--install", BUILD / "wheel", "--prefix", prefix, *only)
        options = ["-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}"]
        ctx.run("cmake", "-S", "examples/cpp_consumer", "-B", project, *options)
        ctx.run("cmake", "--build", project)
        ctx.notes.append(ctx.run(project / "consumer").strip().splitlines()[0])
        if shutil.which("pkg-config"):
            folder = next(prefix.rglob("baechi.pc")).parent
            asked = ["env", f"PKG_CONFIG_PATH={folder}", "pkg-config", "--cflags", "--libs"]
            flags, by_flags = ctx.run(*asked, "baechi").split(), Path(temporary) / "by_flags"
            main = "examples/cpp_consumer/main.cc"
            ctx.run(os.environ.get("CXX", "c++"), main, "-o", by_flags, *flags)
            ctx.run(by_flags)
        # Every installed header compiles without third_party/, which is not installed.
        headers = sorted((prefix / "include").rglob("*.h"))
        everything = Path(temporary) / "everything.cc"
        lines = (f'#include "{path.relative_to(prefix / "include")}"\n' for path in headers)
        everything.write_text("".join(lines))
        compiler = os.environ.get("CXX", "c++")
        ctx.run(compiler, "-std=c++20", "-fsyntax-only", f"-I{prefix}/include", everything)


def compile_alone(ctx: Context, command: dict[str, str]) -> None:
    """Let the compiler read a file by itself: a dozen built at once hide a missing #include."""
    words = shlex.split(command["command"])
    words = [word for word in words if word != "-c"]
    del words[words.index("-o") : words.index("-o") + 2]
    source = Path(command["file"]).relative_to(ROOT)
    done = subprocess.run(
        [*words, "-fsyntax-only"],
        cwd=command["directory"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode != 0:
        with ctx.log.open("a") as log:
            log.write(f"$ {source} alone\n{done.stdout}\n")
        raise Failed(f"{source} does not compile alone")


def in_turn(path: Path) -> bytes:
    """Sort or draw files by this: another order for every commit."""
    return hashlib.sha256(f"{head_of()} {path.relative_to(ROOT)}".encode()).digest()


def check_tidy(ctx: Context) -> None:
    """C++ files by themselves: clang-tidy reads src and apps, the compiler a third of the others.

    A time limit cuts clang-tidy off; it does not read again what it has passed beside the same
    headers.
    """
    ctx.run("cmake", "--preset", "release", f"-DBAECHI_WERROR={WERROR}", "-DBAECHI_UNITY=OFF")
    commands = {
        Path(command["file"]): command
        for command in json.loads((BUILD / "release/compile_commands.json").read_text())
        if not Path(command["file"]).is_relative_to(BUILD)  # what a build generates
    }
    passed_before = BUILD / "tidy"
    passed_before.mkdir(exist_ok=True)
    around = hashlib.sha256((ROOT / ".clang-tidy").read_bytes())
    for header in sources("*.h"):
        around.update(header.read_bytes())
    deadline = time.monotonic() + TIDY_SECONDS

    def check(source: Path) -> str:
        if tidied := source.relative_to(ROOT).parts[0] in ("src", "apps"):
            digest = around.copy()
            digest.update(source.read_bytes())
            stamp = passed_before / digest.hexdigest()
            if not stamp.exists() and (tidied := time.monotonic() < deadline):
                ctx.run("clang-tidy", "--quiet", *TIDY_ARGUMENTS, "-p", BUILD / "release", source)
                stamp.touch()
        if tidied:
            return "tidy"
        if in_turn(source)[0] % 3:
            return "left out"
        compile_alone(ctx, commands[source])
        return "alone"

    files = sorted(commands, key=lambda path: (path.is_relative_to(ROOT / "tests"), in_turn(path)))
    with concurrent.futures.ThreadPoolExecutor(CORES) as pool:
        runs = [pool.submit(check, path) for path in files]
    wrong = sum(run.exception() is not None for run in runs)
    if wrong:
        raise Failed(f"{wrong} files have faults or do not compile alone")
    found = Counter(run.result() for run in runs)
    ctx.notes += [f"{found['tidy']} files tidy", f"{found['alone']} compile alone"]


def run_pytest(ctx: Context, *arguments: str | Path, env: dict[str, str] | None = None) -> None:
    """Run pytest, a process per core, and take over what it counted."""
    concurrent.futures.wait(AHEAD.values())
    together = ["-n", str(CORES), "--dist", "loadfile"]
    try:
        text = ctx.run(sys.executable, "-m", "pytest", *together, *arguments, env=env)
    finally:
        last = ctx.log.read_text().strip().splitlines()[-1]
        for number, word in re.findall(r"(\d+) (passed|failed|errors?|skipped)", last):
            name = "failed" if word.startswith("error") else word
            setattr(ctx, name, getattr(ctx, name) + int(number))
        ctx.notes += re.findall(r"^left out: .*", ctx.log.read_text(), re.MULTILINE)
    print(text.strip().splitlines()[-1])


def check_python(ctx: Context) -> None:
    """The Python, command-line and tool tests against the installed wheel."""
    run_pytest(ctx, "--ignore=tests/python/torch", "--ignore=tests/python/tensorflow")


def install_framework(ctx: Context, module: str) -> None:
    """Install what tools/requirements-MODULE.txt names, or take what is there if pip finds none."""
    requirements = ROOT / f"tools/requirements-{module}.txt"
    installed = False
    with contextlib.suppress(Failed):
        install(ctx, "-r", requirements)
        installed = True
    found = subprocess.run(
        [sys.executable, "-c", f"import {module}; print({module}.__version__)"],
        capture_output=True,
        text=True,
    )
    if found.returncode != 0 and installed:
        raise Failed(f"{module} is installed and cannot be imported:\n{found.stderr}")
    if found.returncode != 0:
        wanted = requirements.read_text().split()[-1]
        raise Skipped(f"{module} is not installed, and pip finds no {wanted} in its indexes")
    ctx.notes.append(f"{module} {found.stdout.strip()}")


def run_torch_tests(ctx: Context, *options: str, env: dict[str, str] | None = None) -> None:
    """Run the tests of the PyTorch side; of those for many models alike a third, in turn."""
    environment = {"BAECHI_CACHE": str(BUILD / "torch"), "OMP_NUM_THREADS": "1", **(env or {})}
    sample = f"--sample={head_of()}"
    # PyTorch logs what it compiles at length: to keep records of that takes time.
    options = ("-p", "no:logging", "--durations=60", sample, *options)
    run_pytest(ctx, "tests/python/torch", *options, env=environment)


def check_torch(ctx: Context) -> None:
    """The tests on the newest PyTorch; of those for many models alike a third, in turn."""
    install_framework(ctx, "torch")
    run_torch_tests(ctx)


def check_torch_oldest(ctx: Context) -> None:
    """A quarter of them, in turn, on the oldest PyTorch that is supported."""
    install_framework(ctx, "torch")
    stamp = TORCH_OLDEST / WANTED_OLDEST.name
    if not stamp.exists() or stamp.read_text() != WANTED_OLDEST.read_text():
        if INSTALL_OLDEST not in AHEAD:
            shutil.rmtree(TORCH_OLDEST, ignore_errors=True)
        try:
            install(ctx, *INSTALL_OLDEST)
        except Failed:
            wanted = WANTED_OLDEST.read_text().split()[-1]
            raise Skipped(f"pip finds no {wanted} in its indexes") from None
        shutil.copy(WANTED_OLDEST, stamp)
    path = os.pathsep.join(filter(None, [str(TORCH_OLDEST), os.environ.get("PYTHONPATH")]))
    show = [sys.executable, "-c", "import torch; print(torch.__version__)"]
    ctx.notes[:] = ["torch " + ctx.run(*show, env={"PYTHONPATH": path}).strip()]
    run_torch_tests(ctx, "--quarter", env={"PYTHONPATH": path})


def check_bank(ctx: Context) -> None:
    """A few minutes of the bank of models: other ones for every commit; ./do bank runs all."""
    install_framework(ctx, "torch")
    command = [sys.executable, "-m", "experiments.bank", "--sample", head_of()]
    try:
        ctx.run(*command, "--minutes", BANK_MINUTES, env={"BAECHI_CACHE": str(BUILD / "torch")})
    finally:
        last = ctx.log.read_text().strip().splitlines()[-1]
        for number, word in re.findall(r"(\d+) (passed|failed|skipped)", last):
            setattr(ctx, word, int(number))


def check_docs(ctx: Context) -> None:
    """The documentation as a site, without warnings, and the gallery's pages in it."""
    try:
        install(ctx, "-r", ROOT / "tools/requirements-docs.txt")
    except Failed:
        raise Skipped("pip finds no mkdocs-material in its indexes") from None
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    ctx.run(*command, env={"NO_MKDOCS_2_WARNING": "1"})
    ctx.notes.append(ctx.run(sys.executable, "tools/check_site.py", BUILD / "site").strip())
    if not (BUILD / "site/how_to/gallery/gnmt.html").exists():
        raise Failed("the gallery has no page of a plan")


def check_tensorflow(ctx: Context) -> None:
    """TensorFlow's CPU build is installed, and training steps run on four logical devices."""
    install_framework(ctx, "tensorflow")
    run_pytest(ctx, "tests/python/tensorflow", env={"OMP_NUM_THREADS": "1"})


STAGES: dict[str, Callable[[Context], None]] = {
    "format": check_format,
    "ruff": check_ruff,
    "mypy": check_mypy,
    "layout": check_layout,
    "release": check_release,
    "sanitizers": check_sanitizers,
    "threads": check_threads,
    "determinism": check_determinism,
    "fuzz": check_fuzz,
    "consumer": check_consumer,
    "tidy": check_tidy,
    "python": check_python,
    "docs": check_docs,
    "torch": check_torch,
    "torch-oldest": check_torch_oldest,
    "bank": check_bank,
    "tensorflow": check_tensorflow,
}

# What a change needs: ./do test. Continuous integration runs all of them.
NEEDED = ("format", "ruff", "mypy", "layout", "release", "python", "torch")


def run_stage(name: str, fix: bool) -> tuple[Context, str, float]:
    """Run one stage and print its line."""
    ctx = Context(log=BUILD / "logs" / f"{name}.log", fix=fix)
    ctx.log.write_text("")
    start = time.monotonic()
    if sys.stdout.isatty():
        print(f"{name:<12} ...", end="\r", flush=True)
    result = "ok"
    try:
        STAGES[name](ctx)
    except Skipped as why:
        result = f"skipped: {why}"
    except Failed as why:
        result = f"FAILED: {why}"
        print("\n".join(ctx.log.read_text().splitlines()[-40:]))
        print(f"(all of it: {ctx.log})")
    seconds = time.monotonic() - start
    counted = ctx.passed + ctx.failed
    if counted:
        ctx.notes.insert(0, f"{ctx.passed} passed, {ctx.failed} failed, {ctx.skipped} skipped")
    line = f"{name:<12} {seconds:7.1f} s  {result}"
    print("; ".join([line, *ctx.notes]), flush=True)
    return ctx, result, seconds


def main() -> int:
    """Run the chosen stages; 0 when none failed."""
    parser = argparse.ArgumentParser(prog="./do test", description=__doc__)
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", help=f"stages to run (default: {' '.join(NEEDED)})"
    )
    parser.add_argument("--all", action="store_true", help="every stage, as in CI")
    parser.add_argument("--list", action="store_true", help="name the stages and what they do")
    parser.add_argument("--fix", action="store_true", help="let format and ruff change the files")
    arguments = parser.parse_args()
    if arguments.list:
        for name, function in STAGES.items():
            print(f"{name:<12} {(function.__doc__ or '').strip()}")
        return 0
    if unknown := [name for name in arguments.stages if name not in STAGES]:
        parser.error(f"no stage {unknown[0]!r}; there are: {', '.join(STAGES)}")

    (BUILD / "logs").mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    names = STAGES if arguments.all else arguments.stages or NEEDED
    results = {}
    for name in names:
        if arguments.all and name == "release":  # the stages before it read what is installed
            install_ahead()
        results[name] = run_stage(name, arguments.fix)
    failed = [name for name, (_, result, _) in results.items() if result.startswith("FAILED")]
    contexts = [ctx for ctx, _, _ in results.values()]
    tests = [sum(getattr(c, key) for c in contexts) for key in ("passed", "failed", "skipped")]
    print(f"\nstages: {len(results) - len(failed)} fine, {len(failed)} failed {' '.join(failed)}")
    seconds = time.monotonic() - start
    print(f"{tests[0]} passed, {tests[1]} failed, {tests[2]} skipped in {seconds:.1f}s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
