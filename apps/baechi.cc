// SPDX-License-Identifier: Apache-2.0
// The baechi command: hands the arguments to one subcommand and turns its outcome into an exit
// code.
#include <exception>
#include <new>
#include <string>

#include "apps/command_line.h"
#include "apps/console.h"
#include "apps/system.h"
#include "baechi/base/assert.h"
#include "baechi/base/error.h"
#include "baechi/io/text/source_place.h"
#include "baechi/io/text/text_file.h"
#include "baechi/plan/request/planner_options.h"

namespace baechi::cli {
namespace {

CancelFlag cancel_flag;

// Every way to fail ends here, in one line on stderr and one exit code.
ExitCode run_guarded(int argc, char** argv) {
  const auto fail = [](ExitCode code, const std::string& words) {
    print_words("baechi: " + printable(words, 2000));
    return code;
  };
  try {
    return run_command_line(argc, argv, cancel_flag);
  } catch (const OptionError& error) {
    const std::string option = spelled(find_planner_option(error.option()), Entrance::kCommandLine);
    return fail(ExitCode::kBadInput, option + ": " + error.reason());
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
  baechi::cli::catch_interrupts(baechi::cli::cancel_flag);
  baechi::stop_files_at(&baechi::cli::cancel_flag);
  return static_cast<int>(baechi::cli::run_guarded(argc, argv));
}
