// SPDX-License-Identifier: Apache-2.0
// What a subcommand of `baechi` is: one file per subcommand, one row in all_commands().
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "baechi/base/cancel.h"

namespace baechi::cli {

class OptionSet;  // command_line.h

// The exit codes of the command, all of them; apps/baechi.cc turns exceptions into them.
enum class ExitCode : int {
  kOk = 0,
  kOurFault = 1,    // a bug of ours, or an unknown exception
  kBadInput = 2,    // InputError, and wrong use of the command line
  kDoesNotFit = 3,  // an answer, not an error: no plan fits the cluster
  kCancelled = 130  // Cancelled: the user pressed Ctrl-C
};

// What main() gives to a subcommand that runs.
struct RunContext {
  bool json = false;  // --json: the result on stdout is one JSON document
  const CancelFlag* cancel = nullptr;
};

// Does the work, with the options that were parsed. Results go to stdout, words to stderr, both
// through apps/console.h; failures are exceptions.
using Run = std::function<ExitCode(const RunContext&)>;

struct Command {
  std::string_view name;
  std::string_view summary;   // one line
  std::string_view examples;  // whole command lines for --help, one per line
  // Declares the options in a set (to which --help, --json and examples are added) and returns what
  // to do once they are parsed. Options live in a shared_ptr that the returned function captures.
  Run (*declare)(OptionSet& set);
};

// In the order of --help.
std::span<const Command> all_commands();

}  // namespace baechi::cli
