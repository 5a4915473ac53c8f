// SPDX-License-Identifier: Apache-2.0
#include "baechi/generate/modules.h"

#include <utility>

#include "baechi/base/assert.h"

namespace baechi::generate {
namespace {

constexpr std::int64_t kTrainingBytesPerParameter = 16;

Bytes total_bytes(const Tape& g, const std::vector<Value>& values) {
  Bytes sum;
  for (const Value value : values) sum += g.bytes(value);
  return sum;
}

Bytes total_bytes(const Tape& g, const std::vector<Shape>& shapes) {
  Bytes sum;
  for (const Shape& shape : shapes) sum += g.bytes_of(shape);
  return sum;
}

}  // namespace

std::vector<Value> Modules::add_all(const Module& module) {
  Tape& g = *tape_;
  const Bytes weights = g.bytes_of({module.parameters});
  const Bytes read = g.bytes_of({module.parameters_read.value_or(module.parameters)});
  const Bytes data = total_bytes(g, module.inputs) + total_bytes(g, module.outputs);
  const Bytes permanent =
      training_ ? Bytes(kTrainingBytesPerParameter) * module.parameters : weights;
  Gradient gradient;
  if (training_)
    gradient = [this, module, moved = data + read](Backward& back) {
      differentiate(module, moved, back);
    };
  return g.add_all({.name = module.name,
                    .kind = module.kind,
                    .inputs = module.inputs,
                    .outputs = module.outputs,
                    .flops = module.flops,
                    .moved = data + read,
                    .permanent = permanent,
                    .trainable = training_ && module.parameters > 0,
                    .recompute = module.recompute},
                   std::move(gradient));
}

// A product with weights takes one product for its inputs and one for the weights, each of the
// forward's work: twice that is the rule for all modules.
void Modules::differentiate(const Module& module, Bytes moved, Backward& back) {
  std::vector<Value> read = module.inputs;  // saved by the forward pass
  for (std::size_t i = 0; i < module.outputs.size(); ++i)
    if (back.has_gradient(i)) read.push_back(back.gradient(i));
  std::vector<Value> wanted;
  std::vector<Shape> shapes;
  for (const Value input : module.inputs) {
    if (!back.wants(input)) continue;
    wanted.push_back(input);
    shapes.push_back(back.shape(input));
  }
  const bool weights = module.parameters > 0;
  if (!weights || !wanted.empty()) {
    const std::int64_t halves = weights ? 1 : 2;
    const std::vector<Value> gradients =
        back.add_all({.name = weights ? "input_gradient" : "backward",
                      .kind = weights ? "InputGradient" : "Backward",
                      .inputs = read,
                      .outputs = std::move(shapes),
                      .flops = halves * module.flops,
                      .moved = halves * moved});
    for (std::size_t i = 0; i < wanted.size(); ++i) back.give(wanted[i], gradients[i]);
  }
  if (!weights) return;
  back.add_all({.name = "weight_gradient",
                .kind = "WeightGradient",
                .inputs = std::move(read),
                .flops = module.flops,
                .moved = moved});
  steps_.push_back({back.forward(), back.last_added(), module.parameters});
}

Value Modules::add(const Module& module) {
  BAECHI_ASSERT(module.outputs.size() == 1, "add() is for modules with one output");
  return add_all(module).front();
}

Value Modules::linear(const std::string& name, Value x, std::int64_t columns, bool bias) {
  Shape shape = tape_->shape(x);
  const std::int64_t inner = shape.back(), rows = elements(shape) / inner;
  shape.back() = columns;
  return add({.name = name,
              .kind = "Linear",
              .inputs = {x},
              .outputs = {shape},
              .flops = (Bytes(2) * rows * inner * columns).count(),
              .parameters = inner * columns + (bias ? columns : 0)});
}

Value Modules::embedding(const std::string& name, Value ids, std::int64_t rows,
                         std::int64_t width) {
  Shape shape = tape_->shape(ids);
  shape.push_back(width);
  return add({.name = name,
              .kind = "Embedding",
              .inputs = {ids},
              .outputs = {shape},
              .parameters = rows * width,
              .parameters_read = elements(shape)});
}

Value Modules::elementwise(const std::string& name, std::string_view kind,
                           std::vector<Value> inputs, std::int64_t flops_per_element) {
  const Shape shape = tape_->shape(inputs.front());
  return add({.name = name,
              .kind = kind,
              .inputs = std::move(inputs),
              .outputs = {shape},
              .flops = flops_per_element * elements(shape)});
}

Value Modules::norm(const std::string& name, std::string_view kind, Value x,
                    std::int64_t parameters) {
  const Shape shape = tape_->shape(x);
  return add({.name = name,
              .kind = kind,
              .inputs = {x},
              .outputs = {shape},
              .flops = 6 * elements(shape),
              .parameters = parameters,
              .recompute = !kind.starts_with("BatchNorm")});  // running averages
}

void Modules::train(Value loss) {
  if (!training_) return;
  Tape& g = *tape_;
  g.differentiate(loss);
  const Tape::OncePerStep once(g);
  for (const Step& step : steps_) {
    const Tape::Scope scope(g, "optimizer");
    g.add_sink({.name = g.name(step.module),
                .kind = "AdamStep",
                .flops = 12 * step.parameters,
                .moved = Bytes(2 * kTrainingBytesPerParameter) * step.parameters,
                .after = {step.gradient},
                .colocate = step.module,
                .update = true});
  }
}

}  // namespace baechi::generate
