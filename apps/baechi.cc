// SPDX-License-Identifier: Apache-2.0
// The baechi command: hands the arguments to one subcommand and turns its outcome into an exit
// code.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "apps/command.h"
#include "apps/console.h"
#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/base/version.h"
#include "baechi/io/source_place.h"

namespace baechi::cli {
namespace {

CancelFlag cancel_flag;

// The first Ctrl-C asks the work to stop; the second one ends the process. Who started us may have
// said that Ctrl-C is not for us (nohup, a shell's background job): then it stays so.
void install_signal_handler() {
  struct sigaction inherited = {};
  if (sigaction(SIGINT, nullptr, &inherited) == 0 && inherited.sa_handler == SIG_IGN) return;
  struct sigaction action = {};
  action.sa_handler = [](int) { cancel_flag.request(); };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
}

constexpr const char* kExitCodes =
    "Exit codes: 0 fine, 1 our fault, 2 bad input, 3 does not fit, 130 cancelled.\n"
    "Ctrl-C ends a search with the best plan so far and exit code 0, all else with 130.\n"
    "Results go to standard output, words to standard error.";

std::string examples_footer(std::string_view examples) {
  std::istringstream lines{std::string(examples)};
  std::string text = "Examples:\n";
  for (std::string line; std::getline(lines, line);) text += "  " + line + "\n";
  return text;
}

struct Declared {
  CLI::App* app;
  Run run;
};

std::vector<Declared> declare_commands(CLI::App& root, RunContext& context) {
  std::vector<Declared> declared;
  for (const Command& command : all_commands()) {
    CLI::App* app = root.add_subcommand(std::string(command.name), std::string(command.summary));
    app->add_flag("--json", context.json, "Print the result as one JSON document");
    app->footer(examples_footer(command.examples));
    declared.push_back({app, command.declare(*app)});
  }
  return declared;
}

// CLI11 would only say that a subcommand is missing.
void check_command_name(std::string_view name) {
  std::string known;
  for (const Command& command : all_commands()) {
    if (command.name == name) return;
    known += (known.empty() ? "" : ", ") + std::string(command.name);
  }
  throw InputError("command line",
                   "there is no subcommand '" + printable(name, 40) + "', only " + known);
}

ExitCode run_command(int argc, char** argv) {
  if (argc > 1 && argv[1][0] != '-') check_command_name(argv[1]);
  CLI::App root("Places machine learning graphs on clusters of memory-limited devices.", "baechi");
  root.set_version_flag("--version", std::string(version()));
  root.require_subcommand(1);
  root.footer(kExitCodes);
  RunContext context{.json = false, .cancel = &cancel_flag};
  const std::vector<Declared> commands = declare_commands(root, context);
  try {
    root.parse(argc, argv);
  } catch (const CLI::Success& wish) {  // --help, --version
    std::ostringstream out;
    root.exit(wish, out, out);
    print_result(out.str());
    return ExitCode::kOk;
  } catch (const CLI::ParseError& error) {
    std::string words = "command line";
    for (const CLI::App* app : root.get_subcommands()) words = app->get_name();
    throw InputError(words, std::string(error.what()) + " (see --help)");
  }
  for (const Declared& command : commands)
    if (command.app->parsed()) return command.run(context);
  return ExitCode::kBadInput;
}

// Every way to fail ends here, in one line on stderr and one exit code.
ExitCode run_guarded(int argc, char** argv) {
  const auto fail = [](ExitCode code, const std::string& words) {
    print_words("baechi: " + printable(words, 2000));
    return code;
  };
  try {
    const ExitCode code = run_command(argc, argv);
    flush_results();
    return code;
  } catch (const InputError& error) {
    return fail(ExitCode::kBadInput, error.what());
  } catch (const Cancelled&) {
    return fail(ExitCode::kCancelled, "cancelled");
  } catch (const std::bad_alloc&) {
    return fail(ExitCode::kOurFault, "out of memory");
  } catch (const InternalError& error) {  // says itself that it is one
    return fail(ExitCode::kOurFault, error.what());
  } catch (const std::exception& error) {
    return fail(ExitCode::kOurFault, std::string("internal error: ") + error.what());
  } catch (...) {
    return fail(ExitCode::kOurFault, "internal error of an unknown kind");
  }
}

}  // namespace
}  // namespace baechi::cli

int main(int argc, char** argv) {
  baechi::cli::install_signal_handler();
  return static_cast<int>(baechi::cli::run_guarded(argc, argv));
}
