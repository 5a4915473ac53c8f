// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/variables.h"

#include "baechi/base/assert.h"
#include "baechi/generate/dataflow_ops.h"

namespace baechi::generate {

Value Variables::initial_value(const Shape& shape, Initializer initializer) {
  Tape& g = *tape_;
  const Tape::Scope scope(g, "Initializer");
  const std::int64_t count = elements(shape);
  if (initializer == Initializer::kZeros || initializer == Initializer::kOnes)
    return g.add({.name = initializer == Initializer::kZeros ? "zeros" : "ones",
                  .kind = "Fill",
                  .outputs = {shape}});
  const bool uniform = initializer == Initializer::kUniform;
  const Tape::Scope inner(g, uniform ? "random_uniform" : "truncated_normal");
  const Value size = constant(g, "shape", {static_cast<std::int64_t>(shape.size())});
  const Value low = constant(g, uniform ? "min" : "mean");
  Value spread = constant(g, uniform ? "max" : "stddev");
  if (uniform)
    spread = g.add(
        {.name = "sub", .kind = "Sub", .inputs = {spread, low}, .outputs = {Shape{}}, .flops = 1});
  const Value drawn = g.add({.name = uniform ? "RandomUniform" : "TruncatedNormal",
                             .kind = uniform ? "RandomUniform" : "TruncatedNormal",
                             .inputs = {size},
                             .outputs = {shape},
                             .flops = kTranscendental * count});
  const Value scaled = g.add({.name = "mul",
                              .kind = "Mul",
                              .inputs = {drawn, spread},
                              .outputs = {shape},
                              .flops = count});
  return g.add(
      {.name = "add", .kind = "Add", .inputs = {scaled, low}, .outputs = {shape}, .flops = count});
}

Variable Variables::add(const Description& description) {
  Tape& g = *tape_;
  const Tape::OncePerStep once(g);
  const Shape& shape = description.shape;
  const Value handle = g.add({.name = description.name,
                              .kind = "VarHandleOp",
                              .outputs = {Shape{}},
                              .kernel = false,
                              .permanent = g.bytes_of(shape),
                              .colocate = description.owner});
  const OpId op = g.producer(handle);
  const Tape::Scope scope(g, "/" + g.name(op));
  const Value initial = initial_value(shape, description.initializer);
  g.add_sink({.name = "Assign",
              .kind = "AssignVariableOp",
              .inputs = {handle, initial},
              .moved = 2 * g.bytes(initial),
              .colocate = op});
  Variable variable{op, handle, shape, {}};
  if (description.with_read)
    variable.read = g.add({.name = "read",
                           .kind = "ReadVariableOp",
                           .inputs = {handle},
                           .outputs = {shape},
                           .kernel = false,
                           .colocate = op});
  return variable;
}

Value Variables::trainable(const std::string& name, const Shape& shape, Initializer initializer) {
  trainable_.push_back(add({.name = name, .shape = shape, .initializer = initializer}));
  const Value read = *trainable_.back().read;
  tape_->require_gradient(read);
  return read;
}

Variable Variables::untrained(const std::string& name, const Shape& shape,
                              Initializer initializer) {
  return add({.name = name, .shape = shape, .initializer = initializer});
}

void Variables::assign(const Variable& variable, const std::string& name, std::string_view kind,
                       Value value) {
  apply(variable, {.name = name,
                   .kind = kind,
                   .inputs = {variable.handle, value},
                   .flops = elements(variable.shape),
                   .moved = 2 * tape_->bytes(value)});
}

void Variables::apply(const Variable& variable, Operation operation) {
  operation.colocate = variable.op;
  operation.update = true;
  assignments_.push_back(tape_->add_sink(operation));
}

Variable Variables::slot(const Variable& owner, const std::string& name, bool with_read) {
  const Tape::Scope scope(*tape_, "/" + tape_->name(owner.op));
  return add({.name = name, .shape = owner.shape, .owner = owner.op, .with_read = with_read});
}

}  // namespace baechi::generate
