// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/chakra/chakra_nodes.h"

#include <array>
#include <charconv>
#include <limits>
#include <string>
#include <utility>

#include "baechi/base/error.h"

namespace baechi {
namespace {

namespace chakra_node_field {
enum : std::uint64_t {
  kId = 1,
  kName = 2,
  kType = 3,
  kControl = 4,
  kData = 5,
  kDuration = 7,
  kOutputs = 9,
  kAttribute = 10
};
}
namespace chakra_tensors_field {
enum : std::uint64_t { kValues = 1, kShapes = 2, kTypes = 3 };
}
namespace chakra_attribute_field {
enum : std::uint64_t { kName = 1, kInt32 = 7, kInt64 = 9, kUint32 = 11, kUint64 = 13, kBool = 27 };
}

std::string_view type_name(const WireReader& field) {
  static constexpr std::array<std::string_view, 11> kNames{
      "invalid", "metadata",   "load",    "store", "compute",   "send",
      "receive", "collective", "storage", "batch", "checkpoint"};
  const std::int64_t type = field.integer();
  if (type < 0 || static_cast<std::size_t>(type) >= kNames.size())
    field.fail("unknown node type " + std::to_string(type));
  return kNames[static_cast<std::size_t>(type)];
}

std::string_view collective_name(std::int64_t type) {
  static constexpr std::array<std::string_view, 10> kNames{
      "all-reduce", "reduce",         "all-gather",           "gather", "scatter", "broadcast",
      "all-to-all", "reduce-scatter", "reduce-scatter-block", "barrier"};
  return type >= 0 && static_cast<std::size_t>(type) < kNames.size()
             ? kNames[static_cast<std::size_t>(type)]
             : std::string_view("collective");
}

// Bytes of one element of a PyTorch type, as "Tensor(float)" has it; 0: not known.
std::int64_t element_size(std::string_view type) {
  static constexpr std::array<std::pair<std::string_view, std::int64_t>, 14> kSizes{
      {{"float", 4},
       {"double", 8},
       {"c10::Half", 2},
       {"half", 2},
       {"c10::BFloat16", 2},
       {"bfloat16", 2},
       {"long int", 8},
       {"long", 8},
       {"int", 4},
       {"short int", 2},
       {"short", 2},
       {"bool", 1},
       {"unsigned char", 1},
       {"signed char", 1}}};
  if (type.starts_with("Tensor(") && type.ends_with(')')) type = type.substr(7, type.size() - 8);
  for (const auto& [name, size] : kSizes)
    if (name == type) return size;
  return 0;
}

// Goes through nested lists in brackets: calls at_list(numbers, texts) for each innermost one.
template <class AtList>
void for_each_list(std::string_view text, const AtList& at_list) {
  std::vector<std::int64_t> numbers;
  std::vector<std::string_view> texts;
  bool innermost = false;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '[' || c == '(') {
      numbers.clear();
      texts.clear();
      innermost = true;
      ++i;
    } else if (c == ']' || c == ')') {
      if (innermost) at_list(numbers, texts);
      innermost = false;
      ++i;
    } else if (c == '\'' || c == '"') {
      const std::size_t end = std::min(text.find(c, i + 1), text.size());
      texts.push_back(text.substr(i + 1, end - i - 1));
      i = std::min(end + 1, text.size());
    } else {
      std::int64_t number = 0;
      const auto [stop, error] =
          std::from_chars(text.data() + i, text.data() + text.size(), number);
      if (error == std::errc()) numbers.push_back(number);
      const auto length = static_cast<std::size_t>(stop - text.data());
      i = error == std::errc() ? length : i + 1;
    }
  }
}

Bytes product(const std::vector<std::int64_t>& factors, std::int64_t element) {
  Bytes bytes(element);
  for (const std::int64_t factor : factors) {
    if (factor < 0) throw InputError("a tensor has a dimension of " + std::to_string(factor));
    bytes = bytes * factor;
  }
  return bytes;
}

std::optional<Bytes> bytes_of_values(std::string_view values) {
  std::optional<Bytes> sum;
  for_each_list(values, [&](const auto& numbers, const auto& texts) {
    if (numbers.size() != 5 || texts.size() != 1) return;
    sum = sum.value_or(Bytes(0)) + product({numbers[3]}, numbers[4]);
  });
  return sum;
}

std::optional<Bytes> bytes_of_shapes(std::string_view shapes, std::string_view types) {
  std::vector<std::string_view> names;
  for_each_list(types, [&](const auto&, const auto& texts) {
    names.insert(names.end(), texts.begin(), texts.end());
  });
  std::optional<Bytes> sum;
  std::size_t at = 0;
  bool known = true;
  for_each_list(shapes, [&](const auto& numbers, const auto&) {
    const std::int64_t element = at < names.size() ? element_size(names[at]) : 0;
    ++at;
    known = known && element != 0;
    if (known) sum = sum.value_or(Bytes(0)) + product(numbers, element);
  });
  if (!known || at != names.size()) return std::nullopt;
  return sum;
}

std::optional<Bytes> read_tensors(WireReader message) {
  std::string_view values, shapes, types;
  while (message.next()) {
    if (message.field() == chakra_tensors_field::kValues) values = message.bytes();
    if (message.field() == chakra_tensors_field::kShapes) shapes = message.bytes();
    if (message.field() == chakra_tensors_field::kTypes) types = message.bytes();
  }
  try {
    return chakra_tensor_bytes(values, shapes, types);
  } catch (const InputError& error) {
    message.fail(error.what());
  }
}

struct ChakraAttribute {
  std::string_view name;
  std::optional<std::int64_t> number;
};

ChakraAttribute read_attribute(WireReader message) {
  ChakraAttribute attribute;
  while (message.next()) {
    switch (message.field()) {
      case chakra_attribute_field::kName:
        attribute.name = message.bytes();
        break;
      case chakra_attribute_field::kInt32:
      case chakra_attribute_field::kInt64:
      case chakra_attribute_field::kUint32:
      case chakra_attribute_field::kUint64:
      case chakra_attribute_field::kBool:
        attribute.number = message.integer();
        break;
      default:
        break;
    }
  }
  return attribute;
}

Time read_duration(const WireReader& field) {
  const std::int64_t microseconds = field.integer();
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 1000;
  if (microseconds < 0 || microseconds > kMost) field.fail("a duration of more than 63 bits");
  return Time(microseconds * 1000);
}

}  // namespace

std::optional<Bytes> chakra_tensor_bytes(std::string_view values, std::string_view shapes,
                                         std::string_view types) {
  const std::optional<Bytes> exact = bytes_of_values(values);
  return exact.has_value() ? exact : bytes_of_shapes(shapes, types);
}

ChakraNode read_chakra_node(WireReader message) {
  ChakraNode node;
  std::optional<std::int64_t> collective;
  std::optional<Bytes> told;  // as an attribute
  const auto add_to = [&](std::vector<std::uint64_t>& ids) {
    message.integers([&](std::int64_t id) { ids.push_back(static_cast<std::uint64_t>(id)); });
  };
  while (message.next()) {
    switch (message.field()) {
      case chakra_node_field::kId:
        node.id = static_cast<std::uint64_t>(message.integer());
        break;
      case chakra_node_field::kName:
        node.name = message.bytes();
        break;
      case chakra_node_field::kType:
        node.kind = type_name(message);
        break;
      case chakra_node_field::kControl:
        add_to(node.control);
        break;
      case chakra_node_field::kData:
        add_to(node.data);
        break;
      case chakra_node_field::kDuration:
        node.duration = read_duration(message);
        break;
      case chakra_node_field::kOutputs:
        node.outputs = read_tensors(message.message());
        break;
      case chakra_node_field::kAttribute: {
        const ChakraAttribute attribute = read_attribute(message.message());
        if (!attribute.number.has_value()) break;
        if (attribute.name == "is_cpu_op") node.on_cpu = *attribute.number != 0;
        if (attribute.name == "comm_type") collective = attribute.number;
        if (attribute.name != "tensor_size" && attribute.name != "comm_size") break;
        if (*attribute.number < 0) message.fail("a tensor of a negative size");
        told = Bytes(*attribute.number);
        break;
      }
      default:
        break;
    }
  }
  if (!node.outputs.has_value()) node.outputs = told;
  if (node.kind == "collective" && collective.has_value()) node.kind = collective_name(*collective);
  return node;
}

}  // namespace baechi
