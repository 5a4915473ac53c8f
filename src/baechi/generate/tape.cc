// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/tape.h"

#include <algorithm>
#include <utility>

#include "baechi/base/assert.h"

namespace baechi::generate {

std::int64_t elements(const Shape& shape) {
  Bytes product(1);  // checked: an absurd size is the user's overflow, not a wrap
  for (const std::int64_t dimension : shape) product = product * dimension;
  return product.count();
}

Value Backward::gradient(std::size_t output) const {
  BAECHI_ASSERT(has_gradient(output), "no gradient reached this output");
  return *gradients_[output];
}

const Shape& Backward::shape(Value value) const { return tape_->shape(value); }
Bytes Backward::bytes(Value value) const { return tape_->bytes(value); }
bool Backward::wants(Value input) const { return tape_->wants_gradient(input); }

std::vector<Value> Backward::add_all(Operation operation) {
  operation.forward = forward_;
  return tape_->emit("gradients/" + tape_->name(forward_) + "_grad/" + operation.name, operation);
}

Value Backward::add(Operation operation) {
  const std::vector<Value> outputs = add_all(std::move(operation));
  BAECHI_ASSERT(outputs.size() == 1, "add() is for operators with one output");
  return outputs.front();
}

OpId Backward::last_added() const { return OpId(tape_->names_.size() - 1); }

void Backward::give(Value input, Value gradient) {
  BAECHI_ASSERT(elements(shape(input)) == elements(shape(gradient)),
                "a gradient has as many elements as its tensor");
  if (wants(input)) given_.push_back({input, gradient, std::nullopt});
}

void Backward::give_rows(Value input, Value rows, Value indices) {
  if (wants(input)) given_.push_back({input, rows, indices});
}

Tape::Tape(Options options) : options_(std::move(options)), builder_(options_.name) {
  builder_.set_batch_size(options_.batch);
}

Tape::Scope::Scope(Tape& tape, std::string_view name) : tape_(&tape), outer_(tape.scope_) {
  if (name.starts_with('/'))
    tape.scope_ = std::string(name.substr(1)) + "/";
  else
    tape.scope_ += std::string(name) + "/";
}

std::string Tape::unique_name(std::string name) {
  const auto [at, first] = times_used_.emplace(name, 0);
  if (first) return name;
  std::string numbered;
  do {
    numbered = name + "_" + std::to_string(++at->second);
  } while (times_used_.contains(numbered));
  times_used_.emplace(numbered, 0);
  return numbered;
}

Bytes Tape::bytes_of(const Shape& shape) const {
  return element_size(options_.costing.precision) * elements(shape);
}

void Tape::colocate(OpId op, OpId with) {
  const OpId leader = group_leader_[with];
  const std::string group = "loc:@" + names_[leader];
  if (leader == with) builder_.add_to_group(leader, group);
  builder_.add_to_group(op, group);
  group_leader_[op] = leader;
}

std::vector<Value> Tape::emit(const std::string& name, const Operation& operation) {
  std::string unique = unique_name(name);
  const OpId op = builder_.add_operator({.name = unique,
                                         .kind = operation.kind,
                                         .permanent = operation.permanent,
                                         .temporary = operation.temporary,
                                         .backward = operation.update,
                                         .forward = operation.forward,
                                         .per_step = once_per_step_,
                                         .recompute = operation.recompute});
  check_growth(op, options_.costing);
  names_.push_back(std::move(unique));
  group_leader_.push_back(op);
  if (operation.forward.has_value()) colocate(op, *operation.forward);
  if (operation.colocate.has_value()) colocate(op, *operation.colocate);

  Bytes touched;
  bool wants_gradient = operation.trainable;
  for (const Value input : operation.inputs) {
    builder_.connect(values_[input].tensor, op);
    touched += values_[input].bytes;
    wants_gradient = wants_gradient || values_[input].wants_gradient;
  }
  for (const OpId earlier : operation.after) builder_.add_control_edge(earlier, op);

  std::vector<Value> outputs;
  for (const Shape& shape : operation.outputs) {
    const Bytes bytes = bytes_of(shape);
    touched += bytes;
    outputs.push_back(values_.push_back({.tensor = builder_.add_output(op, bytes),
                                         .producer = op,
                                         .shape = shape,
                                         .bytes = bytes,
                                         .wants_gradient = wants_gradient,
                                         .uses = 0,
                                         .partials = {},
                                         .gradient = {}}));
  }
  set_times(builder_, op, options_.costing,
            {.flops = operation.flops,
             .bytes = operation.moved.value_or(touched),
             .kernel = operation.kernel});
  return outputs;
}

std::vector<Value> Tape::add_all(const Operation& operation, Gradient gradient) {
  std::vector<Value> outputs = emit(scope_ + operation.name, operation);
  if (gradient) {
    for (const Value input : operation.inputs) ++values_[input].uses;
    steps_.push_back(
        {values_[outputs.front()].producer, operation.inputs, outputs, std::move(gradient)});
  } else {
    for (const Value output : outputs) values_[output].wants_gradient = false;
  }
  return outputs;
}

Value Tape::add(const Operation& operation, Gradient gradient) {
  const std::vector<Value> outputs = add_all(operation, std::move(gradient));
  BAECHI_ASSERT(outputs.size() == 1, "add() is for operators with one output");
  return outputs.front();
}

OpId Tape::add_sink(const Operation& operation) {
  BAECHI_ASSERT(operation.outputs.empty(), "add_sink() is for operators without outputs");
  emit(scope_ + operation.name, operation);
  return OpId(names_.size() - 1);
}

void Tape::require_gradient(Value value) { values_[value].wants_gradient = true; }

// The rows of all partials side by side, then added up into a tensor of the full shape.
Value Tape::densify(Value value, const std::vector<Partial>& rows) {
  const OpId forward = values_[value].producer;
  const std::string name = "gradients/" + names_[forward] + "/";
  Value all = rows.front().value, indices = *rows.front().indices;
  if (rows.size() > 1) {
    std::vector<Value> row_values, index_values;
    Shape row_shape{0, shape(value).back()}, index_shape{0};
    for (const Partial& part : rows) {
      row_values.push_back(part.value);
      index_values.push_back(*part.indices);
      row_shape[0] += elements(shape(part.value)) / shape(value).back();
      index_shape[0] += elements(shape(*part.indices));
    }
    all = emit(name + "concat", {.name = {},
                                 .kind = "ConcatV2",
                                 .inputs = row_values,
                                 .outputs = {row_shape},
                                 .forward = forward})
              .front();
    indices = emit(name + "concat", {.name = {},
                                     .kind = "ConcatV2",
                                     .inputs = index_values,
                                     .outputs = {index_shape},
                                     .forward = forward})
                  .front();
  }
  return emit(name + "UnsortedSegmentSum", {.name = {},
                                            .kind = "UnsortedSegmentSum",
                                            .inputs = {all, indices},
                                            .outputs = {shape(value)},
                                            .flops = elements(shape(all)),
                                            .forward = forward})
      .front();
}

std::optional<Value> Tape::sum_gradients(Value value) {
  std::vector<Partial> rows;
  std::vector<Value> terms;
  for (const Partial& part : values_[value].partials) {
    if (part.indices.has_value())
      rows.push_back(part);
    else
      terms.push_back(part.value);
  }
  if (!rows.empty()) terms.push_back(densify(value, rows));
  if (terms.empty()) return std::nullopt;
  if (terms.size() == 1) return terms.front();
  const OpId forward = values_[value].producer;
  const auto additions = static_cast<std::int64_t>(terms.size() - 1);
  const Shape sum_shape = shape(value);
  return emit("gradients/" + names_[forward] + "/AddN", {.name = {},
                                                         .kind = "AddN",
                                                         .inputs = terms,
                                                         .outputs = {sum_shape},
                                                         .flops = additions * elements(sum_shape),
                                                         .forward = forward})
      .front();
}

void Tape::gate(Backward& backward) {
  Operation group{.name = "tuple/group_deps", .kind = "NoOp", .kernel = false};
  for (const Backward::Given& given : backward.given_) {
    const OpId from = producer(given.gradient);
    if (std::find(group.after.begin(), group.after.end(), from) == group.after.end())
      group.after.push_back(from);
  }
  backward.add_all(group);
  const OpId gate = backward.last_added();
  for (Backward::Given& given : backward.given_) {
    const Shape gradient_shape = shape(given.gradient);
    given.gradient = backward.add({.name = "tuple/control_dependency",
                                   .kind = "Identity",
                                   .inputs = {given.gradient},
                                   .outputs = {gradient_shape},
                                   .kernel = false,
                                   .after = {gate}});
  }
}

// The last use gone, the gradient is complete: summing it now, not when its producer's turn comes,
// frees its terms early.
void Tape::drop_use(Value value) {
  if (--values_[value].uses == 0) values_[value].gradient = sum_gradients(value);
}

void Tape::run_backward(const Step& step) {
  Backward backward(*this, step.op, step.outputs);
  bool reached = false;
  for (const Value output : step.outputs) {
    backward.gradients_.push_back(values_[output].gradient);
    reached = reached || values_[output].gradient.has_value();
  }
  if (!reached) return;
  step.gradient(backward);
  if (options_.gate_gradients && backward.given_.size() > 1) gate(backward);
  for (const Backward::Given& given : backward.given_)
    values_[given.input].partials.push_back({given.gradient, given.indices});
}

void Tape::differentiate(Value loss) {
  BAECHI_ASSERT(values_[loss].uses == 0, "the loss is the last operator");
  const Shape loss_shape = shape(loss);
  values_[loss].gradient = emit("gradients/Fill", {.name = {},
                                                   .kind = "Fill",
                                                   .inputs = {loss},
                                                   .outputs = {loss_shape},
                                                   .kernel = false,
                                                   .forward = producer(loss)})
                               .front();
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    run_backward(*step);
    for (const Value input : step->inputs) drop_use(input);
  }
  steps_.clear();
}

OpGraph Tape::finish() && { return std::move(builder_).build(); }

}  // namespace baechi::generate
