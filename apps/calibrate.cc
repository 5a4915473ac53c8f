// SPDX-License-Identifier: Apache-2.0
// baechi calibrate: hands over to Python, which has the frameworks that can copy between devices
// (Paper 4.1).
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "apps/command_line.h"
#include "apps/console.h"
#include "baechi/base/error.h"

namespace baechi::cli {
namespace {

constexpr const char* kProgram =
    "import sys\n"
    "try:\n"
    "    from baechi.calibrate import main\n"
    "except ImportError as error:\n"
    "    sys.stderr.write(f'baechi: calibrate: {sys.executable}: {error}: it needs the Python '\n"
    "        'package baechi (pip install baechi[torch])\\n')\n"
    "    sys.exit(2)\n"
    "sys.exit(main(sys.argv[1:]))\n";

// The Python that the command was installed with is beside it; else the first of the PATH.
std::string python_beside_the_command() {
  std::error_code failed;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", failed);
  if (failed) return "python3";
  const std::filesystem::path beside = self.parent_path() / "python3";
  return access(beside.c_str(), X_OK) == 0 ? beside.string() : "python3";
}

ExitCode run(const std::vector<std::string>& arguments) {
  const std::string python = python_beside_the_command();
  std::vector<std::string> words{python, "-c", kProgram};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execvp(python.c_str(), pointers.data());
  throw InputError("calibrate", "it needs Python with the package baechi: " + python + ": " +
                                    std::strerror(errno));
}

// The options, for --help and completion; what they mean and their defaults is Python's.
struct CalibrateArguments {
  bool torch = false, tensorflow = false;
  std::string devices, largest, repeats, output, into, plot, samples;

  std::vector<std::string> arguments() const {
    std::vector<std::string> words;
    if (torch) words.emplace_back("--torch");
    if (tensorflow) words.emplace_back("--tensorflow");
    const auto add = [&](const char* name, const std::string& value) {
      if (!value.empty()) words.push_back(name + value);
    };
    add("--devices=", devices);
    add("--largest=", largest);
    add("--repeats=", repeats);
    add("--output=", output);
    add("--into=", into);
    add("--plot=", plot);
    add("--samples=", samples);
    return words;
  }
};

Run declare_calibrate(OptionSet& set) {
  auto options = std::make_shared<CalibrateArguments>();
  CalibrateArguments& o = *options;
  set.add_flag("--torch", o.torch, "Copy with PyTorch");
  set.add_flag("--tensorflow", o.tensorflow, "Copy with TensorFlow");
  set.add("--devices", o.devices,
          "Devices by the framework's names, A,B,... (default: all accelerators)");
  set.add("--largest", o.largest, "Size of the largest copy, e.g. 64MiB (default: 512MiB)");
  set.add("--repeats", o.repeats, "Number of timed copies per size (default: 20)");
  set.add("-o,--output", o.output, "Cluster file to write (default: standard output)");
  set.add("--into", o.into, "Write the links into this cluster file and keep the rest of it");
  set.add("--plot", o.plot, "Draw the copies and the fitted lines to FILE.svg");
  set.add("--samples", o.samples, "Write all measurements to FILE.json");
  return [options](const RunContext&) { return run(options->arguments()); };
}

}  // namespace

extern const Command kCalibrateCommand{
    .name = "calibrate",
    .summary =
        "Measure the links between this machine's devices, for a cluster file (needs Python)",
    .examples =
        "baechi calibrate --torch -o cluster.json --plot links.svg\n"
        "baechi calibrate --torch --devices cuda:0,cuda:1 --largest 64MiB --into cluster.json",
    .declare = declare_calibrate,
};

}  // namespace baechi::cli
