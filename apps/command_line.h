// SPDX-License-Identifier: Apache-2.0
// Options as the subcommands declare them, and the command line read by them. Only command_line.cc
// includes CLI11, which takes a compiler ten seconds a file.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/command.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace baechi::cli {

// One declared option; every call returns it for the next one.
class Option {
 public:
  // What is wrong with a value, in words; empty when nothing is.
  using Check = std::function<std::string(const std::string&)>;
  // Values that an earlier version had, and what does it now.
  using Gone = std::span<const std::pair<std::string_view, std::string_view>>;

  explicit Option(CLI::Option* option) : option_(option) {}

  Option& required(bool required = true);
  Option& type_name(const std::string& name);  // what --help calls the value
  Option& check(const Check& check);
  Option& one_of(const std::vector<std::string>& values, const Gone& gone = {});
  Option& show_default();  // in --help: what it writes to holds it
  Option& show_default(const std::string& text);
  Option& excludes(const std::string& name);  // of another option of the set, declared before
  Option& values(int least, int most);        // how many follow the option
  Option& separated_by_commas();
  Option& repeatable();  // may be given several times, one value each

 private:
  CLI::Option* option_;
};

// The options of one subcommand. What they are read into must live until the command has run.
class OptionSet {
 public:
  explicit OptionSet(CLI::App& app) : app_(app) {}

  // `names` is "-o,--output", or "plan" for an argument without a name on the command line.
  Option add(const std::string& names, std::string& into, const std::string& help);
  Option add(const std::string& names, std::optional<std::string>& into, const std::string& help);
  Option add(const std::string& names, std::vector<std::string>& into, const std::string& help);
  // `read` gets the text while the command line is parsed; what it throws leaves as it is.
  Option add(const std::string& names, const std::function<void(const std::string&)>& read,
             const std::string& help);
  // An option that may be given several times; `read` gets one text after the other.
  Option add_each(const std::string& names, const std::function<void(const std::string&)>& read,
                  const std::string& help);
  // "!--no-bounds" sets `into` to false.
  Option add_flag(const std::string& names, bool& into, const std::string& help);

 private:
  CLI::App& app_;
};

// Reads the command line and runs the subcommand that it names, or prints what --help wants.
// Throws InputError for a command line that makes no sense, and what the subcommand throws.
ExitCode run_command_line(int argc, char** argv, const CancelFlag& cancel);

}  // namespace baechi::cli
