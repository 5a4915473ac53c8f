// SPDX-License-Identifier: Apache-2.0
// The baechi command: hands the arguments to one subcommand and turns its outcome into an exit code.
#include <CLI/CLI.hpp>
#include <string>

#include "baechi/base/version.h"

int main(int argc, char** argv) {
  CLI::App app("Places machine learning graphs on clusters of memory-limited devices.", "baechi");
  app.set_version_flag("--version", std::string(baechi::version()));
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);
  return 0;
}
