// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/chakra/chakra.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "baechi/base/error.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/chakra/chakra_nodes.h"
#include "baechi/io/text/source_place.h"

namespace baechi {
namespace {

// Messages one after the other, each behind its length.
class MessageSequence {
 public:
  MessageSequence(std::string_view document, const std::string& place)
      : document_(document), place_(&place) {}

  // The next message; nothing at the end.
  std::optional<WireReader> next() {
    if (at_ == document_.size()) return std::nullopt;
    const std::size_t begin = at_;
    std::uint64_t size = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == document_.size()) fail(begin);
      const auto byte = static_cast<unsigned char>(document_[at_++]);
      size |= std::uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) break;
    }
    if (size > document_.size() - at_) fail(begin);
    const std::string_view message = document_.substr(at_, static_cast<std::size_t>(size));
    at_ += message.size();
    return WireReader(document_, message, *place_);
  }

 private:
  [[noreturn]] void fail(std::size_t byte) const {
    throw InputError(*place_ + ": byte " + std::to_string(byte),
                     "the file is cut off, or not an execution trace");
  }

  std::string_view document_;
  const std::string* place_;
  std::size_t at_ = 0;
};

class ChakraReader {
 public:
  ChakraReader(std::string_view bytes, const std::string& place) : bytes_(bytes), place_(place) {}

  OpGraph read() {
    read_nodes();
    for (std::size_t i = 0; i < nodes_.size(); ++i) add_operator(nodes_[i]);
    for (std::size_t i = 0; i < nodes_.size(); ++i) connect(OpId(i));
    builder_.set_memory_mode(MemoryMode::kDataflow);
    try {
      return std::move(builder_).build();
    } catch (const InputError& error) {
      throw InputError(place_, printable(error.what()));
    }
  }

 private:
  void read_nodes() {
    MessageSequence messages(bytes_, place_);
    messages.next();  // the metadata
    while (std::optional<WireReader> message = messages.next()) {
      ChakraNode node = read_chakra_node(*message);
      if (!by_id_.emplace(node.id, OpId(nodes_.size())).second)
        fail(node, "there are two nodes with this id");
      ++uses_[node.name];
      nodes_.push_back(std::move(node));
    }
    if (nodes_.empty()) throw InputError(place_, "the trace has no nodes");
  }

  void add_operator(const ChakraNode& node) {
    // PyTorch's traces call all products of matrices aten::mm: the id tells them apart.
    std::string name(node.name);
    if (name.empty() || uses_.at(node.name) > 1) name += "#" + std::to_string(node.id);
    try {
      const OpId op = builder_.add_operator({.name = name, .kind = node.kind});
      if (node.outputs.has_value()) builder_.add_output(op, *node.outputs);
      builder_.set_time(op,
                        !node.on_cpu.has_value() ? kAnyKind
                        : *node.on_cpu           ? std::string_view("cpu")
                                                 : std::string_view("gpu"),
                        node.duration);
    } catch (const InputError& error) {
      fail(node, error.what());
    }
  }

  void connect(OpId op) {
    const ChakraNode& node = nodes_[op.index()];
    const auto find = [&](std::uint64_t id) {
      const auto at = by_id_.find(id);
      if (at == by_id_.end())
        fail(node, "it waits for node " + std::to_string(id) + ", which is not in the trace");
      if (at->second == op) fail(node, "it waits for itself");
      return at->second;
    };
    for (const std::uint64_t id : node.data) {
      const OpId from = find(id);
      if (const std::optional<TensorId> tensor = builder_.output(from, 0))
        builder_.connect(*tensor, op);
      else
        builder_.add_control_edge(from, op);
    }
    for (const std::uint64_t id : node.control) builder_.add_control_edge(find(id), op);
  }

  [[noreturn]] void fail(const ChakraNode& node, const std::string& reason) const {
    throw InputError(
        place_ + ": node " + std::to_string(node.id) + " '" + printable(node.name, 120) + "'",
        printable(reason));
  }

  std::string_view bytes_;
  const std::string& place_;
  OpGraphBuilder builder_;
  std::vector<ChakraNode> nodes_;
  std::unordered_map<std::uint64_t, OpId> by_id_;
  std::unordered_map<std::string_view, std::size_t> uses_;  // of a name
};

}  // namespace

bool looks_like_chakra(std::string_view bytes) {
  const std::string place;
  try {
    MessageSequence messages(bytes, place);
    std::optional<WireReader> metadata = messages.next();
    if (!metadata.has_value()) return false;
    while (metadata->next())  // a version and attributes
      if (metadata->field() > 2 || metadata->type() != WireReader::Type::kBytes) return false;
    // A node begins with its id, or, when that is 0, with its name.
    std::optional<WireReader> node = messages.next();
    if (!node.has_value() || !node->next()) return false;
    return (node->field() == 1 && node->type() == WireReader::Type::kVarint) ||
           (node->field() == 2 && node->type() == WireReader::Type::kBytes);
  } catch (const InputError&) {
    return false;
  }
}

OpGraph parse_chakra(std::string_view bytes, const std::string& place) {
  return ChakraReader(bytes, place).read();
}

}  // namespace baechi
