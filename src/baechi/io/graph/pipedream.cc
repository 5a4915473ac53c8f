// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph/pipedream.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/base/in_quotes.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/text/decimal.h"
#include "baechi/io/text/source_place.h"

namespace baechi {
namespace {

constexpr std::string_view kSeparator = " -- ";
constexpr std::string_view kKind = "gpu";  // the profiles were taken on one

struct Costs {  // of one line
  Time forward, backward;
  Bytes activation, parameters;
};

struct Node {
  OpId forward, backward;
  Bytes activation;
};

std::string_view without_spaces(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return text.substr(text.size());  // keeps its place in the file
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

class GraphTextReader {
 public:
  GraphTextReader(std::string_view text, const std::string& place) : text_(text), place_(place) {}

  OpGraph read() {
    std::size_t begin = 0;
    while (begin < text_.size()) {
      const std::size_t end = std::min(text_.find('\n', begin), text_.size());
      read_line(text_.substr(begin, end - begin));
      begin = end + 1;
    }
    builder_.set_memory_mode(MemoryMode::kRetain);
    try {
      return std::move(builder_).build();
    } catch (const InputError& error) {
      throw InputError(place_, error.what());
    }
  }

 private:
  [[noreturn]] void fail(std::string_view at, const std::string& reason) const {
    throw InputError(
        source_place(text_, static_cast<std::size_t>(at.data() - text_.data()), place_),
        printable(reason));
  }

  void read_line(std::string_view line) {
    for (std::string_view rest = line; !rest.empty();) {
      const std::size_t length = utf8_length(rest);
      if (length == 0) fail(rest, "not UTF-8");
      const auto byte = static_cast<unsigned char>(rest.front());
      if (byte < 0x20 && byte != '\t' && byte != '\r') fail(rest, "a control character");
      rest.remove_prefix(length);
    }
    if (without_spaces(line).empty()) return;
    try {
      line.front() == '\t' ? read_edge(without_spaces(line)) : read_node(without_spaces(line));
    } catch (const InputError& error) {
      const std::string_view reason = error.what();
      if (reason.starts_with(place_ + ":")) throw;
      fail(line, std::string(reason));
    }
  }

  // nodeN -- description -- name=value, name=value, ...
  void read_node(std::string_view line) {
    const std::size_t name_end = line.find(kSeparator);
    const std::size_t costs_begin = line.rfind(" -- forward_compute_time=");
    if (name_end == line.npos || costs_begin == line.npos || costs_begin <= name_end)
      fail(line,
           "expected 'node -- description -- forward_compute_time=...', or an edge after a tab");
    const std::string name(line.substr(0, name_end));
    std::string_view description = line.substr(name_end + kSeparator.size());
    description = description.substr(0, costs_begin - (line.size() - description.size()));
    std::string_view costs_text = line.substr(costs_begin + kSeparator.size());
    costs_text = costs_text.substr(0, costs_text.find(kSeparator));  // PipeDream adds a stage there
    const Costs costs = read_costs(costs_text);

    const std::string_view kind = without_spaces(description.substr(0, description.find('(')));
    const OpId forward =
        builder_.add_operator({.name = name, .kind = kind, .permanent = costs.parameters});
    const std::string backward_name = name + ".backward";
    const OpId backward = builder_.add_operator(
        {.name = backward_name, .kind = kind, .permanent = costs.parameters, .forward = forward});
    builder_.set_time(forward, kKind, costs.forward);
    builder_.set_time(backward, kKind, costs.backward);
    builder_.add_to_group(forward, name);
    builder_.add_to_group(backward, name);
    builder_.add_output(forward, costs.activation);
    builder_.add_control_edge(forward, backward);
    nodes_.push_back({forward, backward, costs.activation});
  }

  Costs read_costs(std::string_view text) const {
    static constexpr std::array<std::string_view, 4> kNames{
        "forward_compute_time", "backward_compute_time", "activation_size", "parameter_size"};
    std::array<std::optional<std::int64_t>, 4> values;
    while (!text.empty()) {
      const std::size_t comma = std::min(text.find(','), text.size());
      const std::string_view part = without_spaces(text.substr(0, comma));
      text.remove_prefix(std::min(comma + 1, text.size()));
      const std::size_t equals = part.find('=');
      if (equals == part.npos) fail(part.empty() ? text : part, "expected 'name=value'");
      std::size_t field = 0;
      while (field < kNames.size() && kNames[field] != part.substr(0, equals)) ++field;
      if (field == kNames.size()) fail(part, "unknown cost " + in_quotes(part.substr(0, equals)));
      if (values[field].has_value()) fail(part, "the cost occurs twice");
      const std::string_view value = part.substr(equals + 1);
      values[field] = field < 2 ? read_number(value, 1'000'000) : read_sizes(value);
    }
    for (std::size_t field = 0; field < kNames.size(); ++field)
      if (!values[field].has_value())
        fail(text, "the cost '" + std::string(kNames[field]) + "' is missing");
    return {Time(*values[0]), Time(*values[1]), Bytes(*values[2]), Bytes(*values[3])};
  }

  std::int64_t read_number(std::string_view text, std::int64_t factor) const {
    if (text.empty() || number_length(text) != text.size())
      fail(text, "expected a number, found " + in_quotes(text));
    const auto decimal = parse_decimal(text);
    const auto scaled = decimal.has_value() ? scale(*decimal, factor, 1) : std::nullopt;
    if (!scaled.has_value()) fail(text, "the number is too large");
    if (decimal->negative && scaled->value != 0) fail(text, "a cost cannot be negative");
    return scaled->value;
  }

  // A number, or the sizes of several outputs as "[1.0; 2.0]".
  std::int64_t read_sizes(std::string_view text) const {
    if (!text.starts_with('[')) return read_number(text, 1);
    if (!text.ends_with(']')) fail(text, "expected ']' at the end of the sizes");
    Bytes sum;
    std::string_view rest = text.substr(1, text.size() - 2);
    while (!rest.empty()) {
      const std::size_t semicolon = std::min(rest.find(';'), rest.size());
      sum += Bytes(read_number(without_spaces(rest.substr(0, semicolon)), 1));
      rest.remove_prefix(std::min(semicolon + 1, rest.size()));
    }
    return sum.count();
  }

  // nodeA -- nodeB: the activation goes forward, its gradient goes back.
  void read_edge(std::string_view line) {
    const std::size_t middle = line.find(kSeparator);
    if (middle == line.npos) fail(line, "expected an edge 'node -- node'");
    const Node& from = find_node(without_spaces(line.substr(0, middle)));
    const Node& to = find_node(without_spaces(line.substr(middle + kSeparator.size())));
    builder_.connect(*builder_.output(from.forward, 0), to.forward);
    builder_.connect(builder_.add_output(to.backward, from.activation), from.backward);
  }

  const Node& find_node(std::string_view name) const {
    const std::optional<OpId> op = builder_.find(name);
    if (!op.has_value() || op->index() % 2 != 0)
      fail(name, "there is no node '" + std::string(name) + "' above this line");
    return nodes_[op->index() / 2];
  }

  std::string_view text_;
  const std::string& place_;
  OpGraphBuilder builder_;
  std::vector<Node> nodes_;  // node i has the operators 2 i and 2 i + 1
};

}  // namespace

bool looks_like_pipedream(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  return begin != text.npos && static_cast<unsigned char>(text[begin]) < 0x80 &&
         text[begin] != 0x1F && text[begin] != '{' && text.find(kSeparator) != text.npos &&
         text.substr(begin, 4096).find('\0') == text.npos;
}

OpGraph parse_pipedream(std::string_view text, const std::string& place) {
  return GraphTextReader(text, place).read();
}

}  // namespace baechi
