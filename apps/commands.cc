// SPDX-License-Identifier: Apache-2.0
// The one list of subcommands.
#include <vector>

#include "apps/command.h"

namespace baechi::cli {

extern const Command kEstimateCommand;     // python_commands.cc
extern const Command kDoctorCommand;       // python_commands.cc
extern const Command kGenerateCommand;     // generate.cc
extern const Command kOptimizeCommand;     // optimize.cc
extern const Command kMethodsCommand;      // methods.cc
extern const Command kPlaceCommand;        // place.cc
extern const Command kSimulateCommand;     // simulate.cc
extern const Command kVerifyCommand;       // verify.cc
extern const Command kExplainCommand;      // explain.cc
extern const Command kWhatIfCommand;       // what_if.cc
extern const Command kSweepCommand;        // sweep.cc
extern const Command kMinCommand;          // min.cc
extern const Command kSensitivityCommand;  // sensitivity.cc
extern const Command kBoundsCommand;       // bounds.cc
extern const Command kReportCommand;       // report.cc
extern const Command kShowCommand;         // show.cc
extern const Command kTraceCommand;        // trace.cc
extern const Command kExportCommand;       // export.cc
extern const Command kInfoCommand;         // info.cc
extern const Command kConvertCommand;      // convert.cc
extern const Command kCheckCommand;        // check.cc
extern const Command kCalibrateCommand;    // python_commands.cc

std::span<const Command> all_commands() {
  static const std::vector<Command> commands{
      // clang-format off: one row each
      kEstimateCommand,
      kGenerateCommand,
      kOptimizeCommand,
      kMethodsCommand,
      kPlaceCommand,
      kSimulateCommand,
      kVerifyCommand,
      kExplainCommand,
      kWhatIfCommand,
      kSweepCommand,
      kMinCommand,
      kSensitivityCommand,
      kBoundsCommand,
      kReportCommand,
      kShowCommand,
      kTraceCommand,
      kExportCommand,
      kInfoCommand,
      kConvertCommand,
      kCheckCommand,
      kCalibrateCommand,
      kDoctorCommand,
      // clang-format on
  };
  return commands;
}

}  // namespace baechi::cli
