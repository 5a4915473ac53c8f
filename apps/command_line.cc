// SPDX-License-Identifier: Apache-2.0
#include "apps/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include "apps/console.h"
#include "baechi/base/error.h"
#include "baechi/base/near_name.h"
#include "baechi/base/version.h"
#include "baechi/io/text/source_place.h"
#include "baechi/plan/request/planner_options.h"

namespace baechi::cli {
Option& Option::required(bool required) {
  option_->required(required);
  return *this;
}

Option& Option::type_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option& Option::check(const Check& check) {
  option_->check(check);
  return *this;
}

Option& Option::one_of(const std::vector<std::string>& values, const Gone& gone) {
  const auto check = [values, gone](const std::string& text) {
    if (std::ranges::find(values, text) != values.end()) return std::string();
    for (const auto& [name, instead] : gone)
      if (text == name) return "'" + text + "' is no longer there: " + std::string(instead);
    std::string words = "expected one of ";
    for (std::size_t i = 0; i < values.size(); ++i)
      words += (i == 0 ? "" : i + 1 < values.size() ? ", " : " or ") + values[i];
    return words + ", found '" + printable(text, 40) + "'" +
           did_you_mean(printable(text, 40), values);
  };
  option_->check(CLI::Validator(check, CLI::IsMember(values).get_description()));
  return *this;
}

Option& Option::show_default() {
  option_->capture_default_str();
  return *this;
}

Option& Option::show_default(const std::string& text) {
  option_->default_str(text);
  return *this;
}

Option& Option::excludes(const std::string& name) {
  option_->excludes(name);
  return *this;
}

Option& Option::values(int least, int most) {
  option_->expected(least, most);
  return *this;
}

Option& Option::separated_by_commas() {
  option_->delimiter(',');
  return *this;
}

Option& Option::repeatable() {
  option_->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return *this;
}

Option OptionSet::add(const std::string& names, std::string& into, const std::string& help) {
  return Option(app_.add_option(names, into, help));
}

Option OptionSet::add(const std::string& names, std::optional<std::string>& into,
                      const std::string& help) {
  return Option(app_.add_option(names, into, help));
}

Option OptionSet::add(const std::string& names, std::vector<std::string>& into,
                      const std::string& help) {
  return Option(app_.add_option(names, into, help));
}

Option OptionSet::add(const std::string& names, const std::function<void(const std::string&)>& read,
                      const std::string& help) {
  return Option(app_.add_option_function<std::string>(names, read, help));
}

Option OptionSet::add_each(const std::string& names,
                           const std::function<void(const std::string&)>& read,
                           const std::string& help) {
  const auto read_all = [read](const std::vector<std::string>& texts) {
    for (const std::string& text : texts) read(text);
  };
  Option option(app_.add_option_function<std::vector<std::string>>(names, read_all, help));
  return option.repeatable();
}

Option OptionSet::add_flag(const std::string& names, bool& into, const std::string& help) {
  return Option(app_.add_flag(names, into, help));
}

namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 fine, 1 a bug in baechi, 2 bad input, 3 nothing fits, 130 cancelled.\n"
    "Ctrl-C ends place with the best plan so far and exit code 0, any other subcommand with 130;\n"
    "what-if, sweep, min and sensitivity print what they have by then.\n"
    "Results go to standard output, words to standard error.";

std::string examples_footer(std::string_view examples) {
  std::istringstream lines{std::string(examples)};
  std::string text = "Examples:\n";
  for (std::string line; std::getline(lines, line);) text += "  " + line + "\n";
  return text;
}

// What subcommands of an earlier version, and their options, are replaced by.
struct Gone {
  std::string_view place, name, instead;
};
constexpr Gone kGone[] = {
    {"command line", "score", "`baechi simulate` says what a placement takes"},
    {"command line", "completion", "nothing replaces it; `baechi help` lists what there is"},
    {"what-if", "--report", "the table that it prints and --json have all figures"},
    {"sweep", "--report", "the CSV that it prints and --json have all figures"},
};

void refuse_gone(const std::string& place, const std::string& name) {
  for (const Gone& gone : kGone)
    if (place == gone.place && name == gone.name)
      throw InputError(place, name + " is no longer there: " + std::string(gone.instead));
}

// CLI11 would only say that it did not expect the argument.
void refuse_unknown_option(const CLI::App& app) {
  for (const std::string& text : app.remaining()) {
    if (!text.starts_with("--")) continue;
    const std::string given = text.substr(0, text.find('='));
    refuse_gone(app.get_name(), given);
    if (const std::string gone = gone_option(given.substr(2), Entrance::kCommandLine);
        !gone.empty())
      throw InputError(app.get_name(), gone);
    std::vector<std::string> known;
    for (const CLI::Option* option : app.get_options())
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    throw InputError(unknown_option(app.get_name(), printable(given, 40), known));
  }
}

// CLI11 would only say that a subcommand is missing.
void check_command_name(std::string_view name) {
  std::vector<std::string> known = {"help"};
  for (const Command& command : all_commands()) {
    if (command.name == name) return;
    known.emplace_back(command.name);
  }
  refuse_gone("command line", std::string(name));
  const std::string shown = printable(name, 40);
  throw InputError("command line",
                   "there is no subcommand '" + shown + "'" + meant_by(shown, known));
}

// What CLI11 calls required, and how to come by it.
constexpr std::pair<std::string_view, std::string_view> kNeeded[] = {
    {"graph", "a file, such as `baechi generate gnmt -o gnmt.json` writes"},
    {"plan", "a file, which `baechi place GRAPH --cluster 2x24GiB -o plan.json` writes"},
    {"--cluster", "the devices, such as --cluster 2x24GiB, or a cluster.json"},
    {"--output", "the file to write, such as -o plan.json"},
    {"output", "the file to write, such as graph.json, or - for standard output"},
    {"--to", "the format, such as --to device-map"},
};

// What stands before, between and after two parts of a text that has both.
std::optional<std::array<std::string, 3>> around(const std::string& text, std::string_view first,
                                                 std::string_view second) {
  const std::size_t begin = text.rfind(first);
  if (begin == text.npos) return std::nullopt;
  const std::size_t middle = begin + first.size(), end = text.find(second, middle);
  if (end == text.npos) return std::nullopt;
  return std::array{text.substr(0, begin), text.substr(middle, end - middle),
                    text.substr(end + second.size())};
}

// CLI11's words, or better ones.
std::string in_plain_words(const CLI::ParseError& error) {
  const std::string words = error.what();
  for (const auto& [name, hint] : kNeeded)
    if (words == std::string(name) + " is required")
      return words + ": " + std::string(hint) + " (see --help)";
  if (const auto said = around(words, ": At Most ", " required but received "))
    return (*said)[0] + ": at most " + (*said)[1] + ", found " + (*said)[2] + " (see --help)";
  if (const auto said = around(words, ": 1 required ", " missing"))
    return (*said)[0] + " needs a value, " + (*said)[1] + " (see --help)";
  return words + (words.find("expected one of") == words.npos ? " (see --help)" : "");
}

bool is_one_of(std::initializer_list<std::string_view> names, const CLI::Option& option) {
  return std::find(names.begin(), names.end(), option.get_single_name()) != names.end();
}

// An output that is one of the inputs, also through links, or two outputs that are one file.
void refuse_to_write_over_input(const CLI::App& app) {
  std::vector<std::string> inputs, outputs;
  for (const CLI::Option* option : app.get_options()) {
    const bool output = is_one_of({"output", "report"}, *option);
    if (!output && !is_one_of({"graph", "plan", "placement", "input", "files", "cluster",
                               "try-cluster", "costs", "expert"},
                              *option))
      continue;
    for (const std::string& text : option->results()) (output ? outputs : inputs).push_back(text);
  }
  for (const std::string& output : outputs) {
    const auto is_output = [&](const std::string& input) {
      std::error_code error;
      return std::filesystem::is_regular_file(output, error) &&
             std::filesystem::equivalent(input, output, error);
    };
    if (std::any_of(inputs.begin(), inputs.end(), is_output))
      throw InputError(output, "this is an input: write the output to another file");
    if (std::count(outputs.begin(), outputs.end(), output) > 1)
      throw InputError(output, "two outputs cannot be one file");
  }
}

}  // namespace

ExitCode run_command_line(int argc, char** argv, const CancelFlag& cancel) {
  std::vector<char*> asked(argv, argv + argc);
  if (argc > 1 && std::string_view(argv[1]) == "help") {  // "help place" is "place --help"
    static char help[] = "--help";
    asked.erase(asked.begin() + 1);
    asked.resize(std::min<std::size_t>(asked.size(), 2));
    asked.push_back(help);
    argc = static_cast<int>(asked.size());
    argv = asked.data();
  }
  if (argc > 1 && argv[1][0] != '-') check_command_name(argv[1]);
  CLI::App root("Places machine learning graphs on clusters of memory-limited devices.", "baechi");
  root.set_version_flag("--version", std::string(version()));
  root.require_subcommand(1);
  root.footer(kExitCodes);
  RunContext context{.json = false, .cancel = &cancel};
  std::vector<std::pair<const CLI::App*, Run>> declared;
  for (const Command& command : all_commands()) {
    CLI::App* app = root.add_subcommand(std::string(command.name), std::string(command.summary));
    app->add_flag("--json", context.json, "Print the result as one JSON document");
    app->footer(examples_footer(command.examples));
    OptionSet options(*app);
    declared.emplace_back(app, command.declare(options));
  }
  const std::size_t column = root.get_formatter()->get_column_width();
  if (argc == 1) return print_help(root.help(), column), ExitCode::kBadInput;
  try {
    root.parse(argc, argv);
  } catch (const CLI::Success& wish) {  // --help, --version
    std::ostringstream out;
    root.exit(wish, out, out);
    print_help(out.str(), column);
    return ExitCode::kOk;
  } catch (const CLI::ParseError& error) {
    std::string words = "command line";
    for (const CLI::App* app : root.get_subcommands()) {
      words = app->get_name();
      refuse_unknown_option(*app);
    }
    if (root.get_subcommands().empty() && argc > 1)
      throw InputError(words, "there is no option '" + printable(argv[1], 40) +
                                  "' without a subcommand (see --help)");
    throw InputError(words, in_plain_words(error));
  }
  for (const auto& [app, run] : declared) {
    if (!app->parsed()) continue;
    refuse_to_write_over_input(*app);
    return run(context);
  }
  return ExitCode::kBadInput;
}

}  // namespace baechi::cli
