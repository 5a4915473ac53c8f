// SPDX-License-Identifier: Apache-2.0
#include "baechi/options/option_text.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "baechi/base/error.h"
#include "baechi/base/number_text.h"
#include "baechi/io/text/quantity_text.h"
#include "baechi/io/text/source_place.h"
#include "baechi/plan/request/option_values.h"

namespace baechi {
namespace {

// False when the text is no such value. Ranges are not looked at.
struct ReadInto {
  std::string_view text;

  bool operator()(bool* value) const {
    *value = text == "true";
    return *value || text == "false";
  }
  bool operator()(unsigned* value) const { return read_number(text, *value); }
  bool operator()(std::uint64_t* value) const { return read_number(text, *value); }
  bool operator()(double* value) const { return read_number(text, *value); }
  bool operator()(Seconds seconds) const try {
    *seconds.value = static_cast<double>(parse_time(text).count()) / 1e9;
    return true;
  } catch (const InputError&) {
    return false;
  }
  bool operator()(std::optional<std::int64_t>* value) const {
    return read_number(text, value->emplace());
  }
  bool operator()(Counts* counts) const {
    std::vector<std::uint32_t>& numbers = counts->emplace();
    std::string_view rest = text;
    while (text != "auto") {
      const std::size_t comma = std::min(rest.find(','), rest.size());
      std::uint32_t count = 0;
      if (!read_number(rest.substr(0, comma), count)) return false;
      if (std::ranges::find(numbers, count) != numbers.end()) return false;
      numbers.push_back(count);
      if (comma == rest.size()) break;
      rest.remove_prefix(comma + 1);
    }
    if (text == "1") counts->reset();
    return true;
  }
  bool operator()(const OneOf& field) const {
    const auto choice = std::ranges::find(field.choices, text, &OneOf::Choice::name);
    if (choice == field.choices.end()) return false;
    choice->take();
    return true;
  }
  bool operator()(const Placement**) const { return false; }
};

}  // namespace

void read_option(const PlannerOption& option, std::string_view text, StepRequest& request,
                 Entrance entrance) {
  StepRequest changed = request;
  if (!std::visit(ReadInto{text}, option.field(changed)) || !is_right(option, changed))
    refuse_value(option, entrance, printable(text, 40));
  request = std::move(changed);
}

std::string help_text(const PlannerOption& option, Entrance entrance) {
  StepRequest request;
  const OptionField field = option.field(request);
  std::string help(option.help);
  if (const auto* names = std::get_if<OneOf>(&field)) {
    help += ':';
    for (const OneOf::Choice& choice : names->choices)
      help += "\n" + std::string(choice.name) + ": " + std::string(choice.summary);
    return help;
  }
  if (bool* const* on = std::get_if<bool*>(&field)) {
    if (entrance == Entrance::kCommandLine && **on) return "Do not " + help;
    help.front() = static_cast<char>(help.front() - 'a' + 'A');
  }
  // A seed's range tells nobody anything.
  const bool tells = option.least < option.most && !std::holds_alternative<bool*>(field);
  return tells ? help + ": " + expected(option) : help;
}

}  // namespace baechi
