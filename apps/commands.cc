// SPDX-License-Identifier: Apache-2.0
// The one list of subcommands.
#include <vector>

#include "apps/command.h"

namespace baechi::cli {

extern const Command kConvertCommand;     // convert.cc
extern const Command kCheckCommand;       // check.cc
extern const Command kCompletionCommand;  // completion.cc

std::span<const Command> all_commands() {
  static const std::vector<Command> commands{
      kConvertCommand,
      kCheckCommand,
      kCompletionCommand,
  };
  return commands;
}

}  // namespace baechi::cli
