// SPDX-License-Identifier: Apache-2.0
// What the command asks of the operating system: no other file of it knows POSIX.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "baechi/base/cancel.h"

namespace baechi::cli {

// Whether a person reads along: what goes to stdout or stderr is shown in a terminal.
bool output_is_terminal();
bool errors_are_terminal();
// Columns of that terminal, or a usual number.
std::size_t terminal_width();

// The first Ctrl-C sets the flag; the second one ends the process.
void catch_interrupts(CancelFlag& flag);

// The Python that the command was installed with: $BAECHI_PYTHON, which `python -m baechi` sets;
// or the one beside the command, where pip put both; or the first of the PATH.
std::string installed_python();

// Becomes this program, found on the PATH; returns only when that fails, with the reason.
std::string become(std::vector<std::string> words);

}  // namespace baechi::cli
