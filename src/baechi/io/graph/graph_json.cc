// SPDX-License-Identifier: Apache-2.0
#include "baechi/io/graph/graph_json.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "baechi/base/in_quotes.h"
#include "baechi/graph/op_graph_builder.h"
#include "baechi/io/json/json_reader.h"
#include "baechi/io/json/json_values.h"

namespace baechi {
namespace {

using Type = JsonReader::Type;

// An operator, or one output of it, as another operator names it.
struct Reference {
  std::optional<std::string_view> name;  // absent: by index
  std::uint64_t index = 0;
  std::uint32_t port = 0;
  std::size_t offset = 0;  // in the text, for errors
};

enum class Use : std::uint8_t { kInput, kAfter, kForward, kWrites };

struct Pending {  // a reference to an operator that comes later in the file
  Reference reference;
  OpId user;
  Use use;
};

struct OperatorFields {  // one operator as the file has it; reused, so that it seldom allocates
  OperatorSpec spec;
  std::vector<std::pair<std::string_view, Time>> times;
  std::vector<Bytes> outputs;
  std::vector<std::string_view> groups;
  std::vector<std::pair<Reference, Use>> references;
  std::optional<bool> backward, per_step;

  void clear() {
    spec = {};
    times.clear();
    outputs.clear();
    groups.clear();
    references.clear();
    backward.reset();
    per_step.reset();
  }
};

class GraphJsonReader {
 public:
  GraphJsonReader(std::string_view text, const std::string& place, const CancelFlag* cancel)
      : json_(text, place), text_size_(text.size()), cancel_(cancel) {}

  OpGraph read() {
    read_document();
    json_.finish();
    for (const Pending& pending : pending_)
      if (!link(pending.reference, pending.user, pending.use)) fail_unknown(pending);
    try {
      return std::move(builder_).build();
    } catch (const InputError& error) {  // a cycle, for example: no single place is at fault
      json_.fail_at(operators_offset_, "$.operators", error.what());
    }
  }

 private:
  void read_document();
  void read_operators();
  void read_operator();
  void read_times();
  void read_memory();
  Reference read_reference(bool with_port);
  void add_operator();
  bool link(const Reference& reference, OpId user, Use use);
  void connect(const Reference& reference, OpId from, OpId user, Use use);
  [[noreturn]] void fail_at(const Reference& reference, OpId user, Use use,
                            const std::string& reason) const;
  [[noreturn]] void fail_unknown(const Pending& pending) const;
  void reserve_rest();

  JsonReader json_;
  std::size_t text_size_;
  const CancelFlag* cancel_;
  OpGraphBuilder builder_;
  OperatorFields op_;
  std::vector<Pending> pending_;
  std::size_t operators_offset_ = 0;
};

void GraphJsonReader::read_document() {
  json_.read_object(
      3, JsonField{"format", [&] { read_format(json_, "baechi-graph"); }},
      JsonField{"version", [&] { read_version(json_); }},
      JsonField{"operators", [&] { read_operators(); }},
      JsonField{"name", [&] { builder_.set_name(json_.read_string()); }},
      JsonField{"memory_mode", [&] { builder_.set_memory_mode(read_memory_mode(json_)); }},
      JsonField{"batch_size", [&] {
                  const std::int64_t size = json_.read_integer();
                  json_.located([&] { builder_.set_batch_size(size); });
                }});
}

void GraphJsonReader::read_operators() {
  json_.peek();
  operators_offset_ = json_.offset();
  json_.read_array([&] {
    if (builder_.num_ops() % 1024 == 0) throw_if_cancelled(cancel_);
    if (builder_.num_ops() == 1000) reserve_rest();
    read_operator();
  });
}

// Guesses from the first operators how many there will be, so that the tables seldom grow.
void GraphJsonReader::reserve_rest() {
  const std::size_t bytes_per_op = std::max<std::size_t>(json_.offset() / builder_.num_ops(), 32);
  builder_.reserve(text_size_ / bytes_per_op + 1000, 0);
}

void GraphJsonReader::read_operator() {
  op_.clear();
  const auto refer = [&](Use use) {
    op_.references.emplace_back(read_reference(use == Use::kInput), use);
  };
  const std::uint64_t seen = json_.read_object(
      1,
      JsonField{"name",
                [&] {
                  op_.spec.name = json_.read_string();
                  builder_.expect(op_.spec.name);
                }},
      JsonField{"time", [&] { read_times(); }},
      JsonField{"kind", [&] { op_.spec.kind = json_.read_string(); }},
      JsonField{"memory", [&] { read_memory(); }},
      JsonField{"outputs",
                [&] { json_.read_array([&] { op_.outputs.push_back(read_bytes(json_)); }); }},
      JsonField{"inputs", [&] { json_.read_array([&] { refer(Use::kInput); }); }},
      JsonField{"after", [&] { json_.read_array([&] { refer(Use::kAfter); }); }},
      JsonField{"colocate",
                [&] { json_.read_array([&] { op_.groups.push_back(json_.read_string()); }); }},
      JsonField{"forward", [&] { refer(Use::kForward); }},
      JsonField{"backward", [&] { op_.backward = json_.read_bool(); }},
      JsonField{"device", [&] { op_.spec.pin = json_.read_string(); }},
      JsonField{"per", [&] { op_.per_step = read_per_step(json_); }},
      JsonField{"recompute", [&] { op_.spec.recompute = json_.read_bool(); }},
      JsonField{"variable", [&] { op_.spec.variable = json_.read_bool(); }},
      JsonField{"writes", [&] { json_.read_array([&] { refer(Use::kWrites); }); }},
      JsonField{"random", [&] { op_.spec.random = json_.read_bool(); }});
  if (!op_.spec.variable && (seen >> 1 & 1) == 0) json_.fail("the field \"time\" is missing");
  add_operator();
}

void GraphJsonReader::read_times() {
  if (json_.peek() != Type::kObject) {
    op_.times.emplace_back(kAnyKind, read_time(json_));
    return;
  }
  json_.enter_object();
  while (json_.next_key()) {
    const std::string_view kind = json_.key();
    for (const auto& [earlier, time] : op_.times)
      if (earlier == kind) json_.fail("the field occurs twice");
    op_.times.emplace_back(kind, read_time(json_));
  }
  if (op_.times.empty()) json_.fail("has no compute time for any kind of device");
}

void GraphJsonReader::read_memory() {
  json_.read_object(0, JsonField{"permanent", [&] { op_.spec.permanent = read_bytes(json_); }},
                    JsonField{"temporary", [&] { op_.spec.temporary = read_bytes(json_); }});
}

// "name" or 7: the operator, or its first output; ["name", 1] or [7, 1]: another output.
Reference GraphJsonReader::read_reference(bool with_port) {
  Reference reference;
  const auto read_operator_part = [&] {
    switch (json_.peek()) {
      case Type::kString:
        reference.name = json_.read_string();
        builder_.expect(*reference.name);
        break;
      case Type::kNumber:
        reference.index =
            static_cast<std::uint64_t>(json_.read_non_negative("an operator's index"));
        break;
      default:
        json_.fail("expected an operator's name or index");
    }
    reference.offset = json_.offset();
  };
  if (json_.peek() != Type::kArray) {
    read_operator_part();
    return reference;
  }
  if (!with_port) json_.fail("expected an operator's name or index, found an array");
  json_.enter_array();
  if (!json_.next_item()) json_.fail("expected [operator, port], found an empty array");
  read_operator_part();
  if (!json_.next_item()) json_.fail("expected [operator, port], found one item");
  const std::int64_t port = json_.read_non_negative("an output port");
  if (port > 0xFFFFFFFF) json_.fail("the output port is too large");
  reference.port = static_cast<std::uint32_t>(port);
  if (json_.next_item()) json_.fail("expected [operator, port], found a third item");
  return reference;
}

void GraphJsonReader::add_operator() {
  const bool has_forward = std::any_of(op_.references.begin(), op_.references.end(),
                                       [](const auto& r) { return r.second == Use::kForward; });
  if (has_forward && op_.backward == false)
    json_.fail("an operator with a forward operator cannot have \"backward\": false");
  if (op_.spec.variable && op_.per_step == false)
    json_.fail("a variable is there for the whole step: leave \"per\" out");
  op_.spec.backward = op_.backward.value_or(false);
  op_.spec.per_step = op_.per_step.value_or(false);
  json_.located([&] {
    const OpId op = builder_.add_operator(op_.spec);
    for (const auto& [kind, time] : op_.times) builder_.set_time(op, kind, time);
    for (const Bytes size : op_.outputs) builder_.add_output(op, size);
    for (const std::string_view group : op_.groups) builder_.add_to_group(op, group);
  });
  const OpId op(builder_.num_ops() - 1);
  for (const auto& [reference, use] : op_.references)
    if (!link(reference, op, use)) pending_.push_back({reference, op, use});
}

// False when the operator is not there (yet).
bool GraphJsonReader::link(const Reference& reference, OpId user, Use use) {
  std::optional<OpId> from;
  if (reference.name.has_value())
    from = builder_.find(*reference.name);
  else if (reference.index < builder_.num_ops())
    from = OpId(static_cast<std::size_t>(reference.index));
  if (!from.has_value()) return false;
  connect(reference, *from, user, use);
  return true;
}

void GraphJsonReader::connect(const Reference& reference, OpId from, OpId user, Use use) {
  try {
    switch (use) {
      case Use::kAfter:
        return builder_.add_control_edge(from, user);
      case Use::kForward:
        return builder_.set_forward(user, from);
      case Use::kWrites:
        return builder_.add_write(user, from);
      case Use::kInput:
        break;
    }
    const std::optional<TensorId> tensor = builder_.output(from, reference.port);
    if (!tensor.has_value())
      throw InputError("the operator it names has no output " + std::to_string(reference.port));
    builder_.connect(*tensor, user);
  } catch (const InputError& error) {
    fail_at(reference, user, use, error.what());
  }
}

void GraphJsonReader::fail_at(const Reference& reference, OpId user, Use use,
                              const std::string& reason) const {
  const char* const field = use == Use::kInput     ? "inputs"
                            : use == Use::kAfter   ? "after"
                            : use == Use::kForward ? "forward"
                                                   : "writes";
  json_.fail_at(reference.offset, "$.operators[" + std::to_string(user.value()) + "]." + field,
                reason);
}

void GraphJsonReader::fail_unknown(const Pending& pending) const {
  const Reference& reference = pending.reference;
  fail_at(reference, pending.user, pending.use,
          reference.name.has_value()
              ? "there is no operator " + in_quotes(*reference.name)
              : "there is no operator number " + std::to_string(reference.index) +
                    ": the graph has " + std::to_string(builder_.num_ops()));
}

}  // namespace

OpGraph parse_graph_json(std::string_view text, const std::string& place,
                         const CancelFlag* cancel) {
  return GraphJsonReader(text, place, cancel).read();
}

}  // namespace baechi
