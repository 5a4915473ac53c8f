// SPDX-License-Identifier: Apache-2.0
// Keyword arguments as the planner's options, by the rows that the command line has, too.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/near_name.h"
#include "baechi/base/number_text.h"
#include "baechi/io/text/source_place.h"
#include "baechi/options/option_text.h"
#include "baechi/plan/request/option_values.h"
#include "bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace baechi::python {
namespace {

bool is_integer(nb::handle value) {
  return PyIndex_Check(value.ptr()) && !PyBool_Check(value.ptr());
}

// As the command line would have it; any text for what no option can be.
std::string text_of(nb::handle value, bool seconds) {
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True ? "true" : "false";
  if (is_integer(value))
    return nb::cast<std::string>(nb::str(nb::steal(PyNumber_Index(value.ptr())))) +
           (seconds ? "s" : "");
  double number = 0;
  if (PyUnicode_Check(value.ptr()) || !nb::try_cast(value, number))
    return nb::cast<std::string>(nb::str(value));
  std::string text = number_text(number);
  if (!std::isfinite(number)) return text;
  if (text.find('.') == text.npos) text += ".0";
  return text + (seconds ? "s" : "");
}

// "1,2,4" of [1, 2, 4].
std::string texts_of(nb::handle values) {
  if (!PyList_Check(values.ptr()) && !PyTuple_Check(values.ptr())) return text_of(values, false);
  std::string texts;
  for (const nb::handle value : nb::borrow<nb::iterable>(values))
    texts += (texts.empty() ? "" : ",") + text_of(value, false);
  return texts;
}

void read_keyword(const PlannerOption& option, nb::handle value, Asked& asked) {
  const OptionField field = option.field(asked.request);
  const bool placement = std::holds_alternative<const Placement**>(field);
  if (value.is_none() && (placement || std::holds_alternative<std::optional<std::int64_t>*>(field)))
    return;
  if (std::holds_alternative<Counts*>(field))
    return read_option(option, texts_of(value), asked.request, Entrance::kPython);
  if (!placement)
    return read_option(option, text_of(value, std::holds_alternative<Seconds>(field)),
                       asked.request, Entrance::kPython);
  if (!PyMapping_Check(value.ptr()) || PyUnicode_Check(value.ptr()))
    throw InputError(std::string(option.name),
                     "expected a dict of devices' names by operators' names, found '" +
                         printable(text_of(value, false), 40) + "'");
  const auto items = items_of<std::string>(nb::borrow<nb::mapping>(value),
                                           "expert: expected devices' names by operators' names");
  asked.expert.emplace(items.begin(), items.end());
}

struct PythonType {
  std::string operator()(bool*) const { return "bool"; }
  std::string operator()(unsigned*) const { return "int"; }
  std::string operator()(std::uint64_t*) const { return "int"; }
  std::string operator()(double*) const { return "float"; }
  std::string operator()(Seconds) const { return "str | float"; }
  std::string operator()(std::optional<std::int64_t>*) const { return "int | None"; }
  std::string operator()(Counts*) const { return "str | int | Sequence[int]"; }
  std::string operator()(const OneOf&) const { return "str"; }
  std::string operator()(const Placement**) const { return "Mapping[str, str] | None"; }
};

using Keyword = std::tuple<std::string, std::string, std::string, std::string>;

std::vector<Keyword> keywords_of(Taker taker) {
  std::vector<Keyword> keywords;
  StepRequest defaults;
  for (const PlannerOption& option : planner_options())
    if ((option.takers & taker) != 0 && !option.is_argument)
      keywords.emplace_back(option.name, std::visit(PythonType{}, option.field(defaults)),
                            value_text(option, defaults), help_text(option, Entrance::kPython));
  return keywords;
}

}  // namespace

Asked asked_of(const nb::dict& options, Taker taker, const std::string& who, StepRequest request,
               std::vector<std::string> others) {
  for (const PlannerOption& option : planner_options())
    if ((option.takers & taker) != 0 && std::ranges::find(others, option.name) == others.end())
      others.emplace_back(option.name);
  Asked asked{std::move(request), {}};
  for (const auto [key, value] : options) {
    const auto name = nb::cast<std::string>(key);
    const auto option = std::ranges::find(planner_options(), name, &PlannerOption::name);
    if (option == planner_options().end() || (option->takers & taker) == 0) {
      if (const std::string gone = gone_option(name, Entrance::kPython); !gone.empty())
        throw InputError(who, gone);
      throw InputError(unknown_option(who, printable(name, 40), others));
    }
    read_keyword(*option, value, asked);
  }
  return asked;
}

StepRequest request_of(const nb::dict& options, Taker taker, const std::string& who,
                       StepRequest request) {
  request = asked_of(options, taker, who, std::move(request)).request;
  check_taken(request, taker, Entrance::kPython);
  return request;
}

void bind_options(nb::module_& m) {
  m.def(
      "planner_keywords",
      [] {
        std::vector<std::tuple<std::string, std::vector<Keyword>>> all;
        all.emplace_back("StudyOptions", keywords_of(kStudiesTake));
        all.emplace_back("PlaceOptions", keywords_of(kPlaceTakes));
        return all;
      },
      "What `baechi.options` is made of: name, type, default and help of each option.");
  m.def(
      "check_options",
      [](const std::string& who, const nb::dict& options, std::vector<std::string> others) {
        Asked asked = asked_of(options, kPlaceTakes, who, {}, std::move(others));
        if (asked.request.micro_batches.has_value())
          throw InputError("micro_batches",
                           who + " runs a mini-batch as a whole: place_graph plans micro-batches");
        if (asked.request.mini_batch.has_value())
          throw InputError("mini_batch",
                           who + " takes the mini-batch that it is given: leave this option out");
        const Placement any;
        if (asked.expert.has_value()) asked.request.search.place.expert = &any;
        check_taken(asked.request, kPlaceTakes, Entrance::kPython);
      },
      "who"_a, "options"_a, "others"_a = std::vector<std::string>{},
      "Raises InputError for options that `place_graph` would refuse. `who` takes them, and\n"
      "`others`, which a misspelt name may mean.");
}

}  // namespace baechi::python
