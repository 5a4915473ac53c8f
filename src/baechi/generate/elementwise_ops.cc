// SPDX-License-Identifier: Apache-2.0
// Operators that compute element by element, and reductions.
#include <algorithm>
#include <string_view>

#include "baechi/base/assert.h"
#include "baechi/generate/dataflow_ops.h"

namespace baechi::generate {
namespace {

Shape broadcast(const Shape& a, const Shape& b) {
  Shape result(std::max(a.size(), b.size()), 1);
  for (std::size_t i = 0; i < result.size(); ++i) {
    const std::int64_t from_a = i < a.size() ? a[a.size() - 1 - i] : 1;
    const std::int64_t from_b = i < b.size() ? b[b.size() - 1 - i] : 1;
    BAECHI_ASSERT(from_a == from_b || from_a == 1 || from_b == 1, "the shapes do not broadcast");
    result[result.size() - 1 - i] = std::max(from_a, from_b);
  }
  return result;
}

// Gives `input` the gradient of its broadcast self. Shapes that agree need nothing; else TensorFlow
// sums over the dimensions that were repeated and reshapes.
void give_reduced(Backward& back, Value input, Value gradient, bool same_shapes) {
  if (!back.wants(input)) return;
  if (same_shapes) return back.give(input, gradient);
  const Shape wanted = back.shape(input);
  if (elements(wanted) != elements(back.shape(gradient)))
    gradient = back.add({.name = "Sum",
                         .kind = "Sum",
                         .inputs = {gradient},
                         .outputs = {wanted},
                         .flops = elements(back.shape(gradient))});
  const Value shape = back.add({.name = "Shape",
                                .kind = "Const",
                                .outputs = {{static_cast<std::int64_t>(wanted.size())}},
                                .kernel = false});
  back.give(input, back.add({.name = "Reshape",
                             .kind = "Reshape",
                             .inputs = {gradient, shape},
                             .outputs = {wanted},
                             .kernel = false}));
}

Value product(Backward& back, Value a, Value b) {
  const Shape shape = broadcast(back.shape(a), back.shape(b));
  return back.add({.name = "mul",
                   .kind = "Mul",
                   .inputs = {a, b},
                   .outputs = {shape},
                   .flops = elements(shape)});
}

// An operator of two inputs whose gradients are those of a sum or difference: no arithmetic for
// `a`, a negation for `b` of a difference.
Value sum_or_difference(Tape& g, Value a, Value b, const std::string& name, bool difference) {
  const Shape shape = broadcast(g.shape(a), g.shape(b));
  const bool same = g.shape(a) == g.shape(b);
  return g.add({.name = name,
                .kind = difference ? "Sub" : "Add",
                .inputs = {a, b},
                .outputs = {shape},
                .flops = elements(shape)},
               [=](Backward& back) {
                 give_reduced(back, a, back.gradient(), same);
                 if (!back.wants(b)) return;
                 Value gradient = back.gradient();
                 if (difference)
                   gradient = back.add({.name = "Neg",
                                        .kind = "Neg",
                                        .inputs = {gradient},
                                        .outputs = {shape},
                                        .flops = elements(shape)});
                 give_reduced(back, b, gradient, same);
               });
}

// A function of one input whose gradient operator reads the output and its gradient.
Value function(Tape& g, Value x, std::string_view kind, std::string_view gradient_kind) {
  const Shape shape = g.shape(x);
  return g.add({.name = std::string(kind),
                .kind = kind,
                .inputs = {x},
                .outputs = {shape},
                .flops = kTranscendental * elements(shape)},
               [=](Backward& back) {
                 back.give(x, back.add({.name = std::string(gradient_kind),
                                        .kind = gradient_kind,
                                        .inputs = {back.output(), back.gradient()},
                                        .outputs = {shape},
                                        .flops = 3 * elements(shape)}));
               });
}

}  // namespace

Value add(Tape& g, Value a, Value b, const std::string& name) {
  return sum_or_difference(g, a, b, name, false);
}
Value subtract(Tape& g, Value a, Value b) { return sum_or_difference(g, a, b, "sub", true); }

Value multiply(Tape& g, Value a, Value b, const std::string& name) {
  const Shape shape = broadcast(g.shape(a), g.shape(b));
  const bool same = g.shape(a) == g.shape(b);
  return g.add(
      {.name = name, .kind = "Mul", .inputs = {a, b}, .outputs = {shape}, .flops = elements(shape)},
      [=](Backward& back) {
        if (back.wants(a)) give_reduced(back, a, product(back, back.gradient(), b), same);
        if (back.wants(b)) give_reduced(back, b, product(back, back.gradient(), a), same);
      });
}

Value squared_difference(Tape& g, Value a, Value b) {
  const Shape shape = broadcast(g.shape(a), g.shape(b));
  const bool same = g.shape(a) == g.shape(b);
  return g.add({.name = "SquaredDifference",
                .kind = "SquaredDifference",
                .inputs = {a, b},
                .outputs = {shape},
                .flops = 2 * elements(shape)},
               [=](Backward& back) {
                 const Value difference = back.add({.name = "sub",
                                                    .kind = "Sub",
                                                    .inputs = {a, b},
                                                    .outputs = {shape},
                                                    .flops = elements(shape)});
                 const Value gradient = product(back, back.gradient(), difference);
                 give_reduced(back, a, gradient, same);
                 if (!back.wants(b)) return;
                 give_reduced(back, b,
                              back.add({.name = "Neg",
                                        .kind = "Neg",
                                        .inputs = {gradient},
                                        .outputs = {shape},
                                        .flops = elements(shape)}),
                              same);
               });
}

Value sigmoid(Tape& g, Value x) { return function(g, x, "Sigmoid", "SigmoidGrad"); }
Value tanh(Tape& g, Value x) { return function(g, x, "Tanh", "TanhGrad"); }
Value relu(Tape& g, Value x) { return function(g, x, "Relu", "ReluGrad"); }
Value rsqrt(Tape& g, Value x) { return function(g, x, "Rsqrt", "RsqrtGrad"); }

Value dropout(Tape& g, Value x) {
  const Tape::Scope scope(g, "dropout");
  const Shape shape = g.shape(x);
  const Value mask = g.add({.name = "mask",
                            .kind = "RandomMask",
                            .inputs = {x},
                            .outputs = {shape},
                            .flops = kTranscendental * elements(shape),
                            .moved = g.bytes(x),
                            .recompute = false});
  return multiply(g, x, mask);
}

Value masked(Tape& g, Value mask, Value x) {
  const Shape shape = g.shape(x);
  const auto select = [mask, shape](Value from) {
    return Operation{.name = "Select",
                     .kind = "Select",
                     .inputs = {mask, from},
                     .outputs = {shape},
                     .flops = elements(shape)};
  };
  return g.add(select(x), [=](Backward& back) { back.give(x, back.add(select(back.gradient()))); });
}

Value reduce(Tape& g, Value x, const Reduction& reduction) {
  const Shape full = g.shape(x);
  BAECHI_ASSERT(reduction.axes <= full.size(), "cannot reduce more dimensions than there are");
  Shape shape = full;
  for (std::size_t i = 0; i < reduction.axes; ++i) {
    if (reduction.keep)
      shape[full.size() - 1 - i] = 1;
    else
      shape.pop_back();
  }
  const std::string name = reduction.mean ? "Mean" : "Sum";
  const Value axes =
      constant(g, name + "/reduction_indices", {static_cast<std::int64_t>(reduction.axes)});
  return g.add({.name = name,
                .kind = reduction.mean ? "Mean" : "Sum",
                .inputs = {x, axes},
                .outputs = {shape},
                .flops = elements(full)},
               [=](Backward& back) {
                 const Value multiples =
                     back.add({.name = "Tile/multiples",
                               .kind = "Const",
                               .outputs = {{static_cast<std::int64_t>(full.size())}},
                               .kernel = false});
                 Value gradient = back.add({.name = "Tile",
                                            .kind = "Tile",
                                            .inputs = {back.gradient(), multiples},
                                            .outputs = {full}});
                 if (reduction.mean)
                   gradient = back.add({.name = "truediv",
                                        .kind = "RealDiv",
                                        .inputs = {gradient},
                                        .outputs = {full},
                                        .flops = elements(full)});
                 back.give(x, gradient);
               });
}

Value softmax(Tape& g, Value x) {
  const Shape shape = g.shape(x);
  return g.add(
      {.name = "Softmax",
       .kind = "Softmax",
       .inputs = {x},
       .outputs = {shape},
       .flops = (kTranscendental + 3) * elements(shape)},
      [=](Backward& back) {
        Shape rows = shape;
        rows.back() = 1;
        const Value weighted = product(back, back.gradient(), back.output());
        const Value axis = back.add(
            {.name = "Sum/reduction_indices", .kind = "Const", .outputs = {{1}}, .kernel = false});
        const Value sums = back.add({.name = "Sum",
                                     .kind = "Sum",
                                     .inputs = {weighted, axis},
                                     .outputs = {rows},
                                     .flops = elements(shape)});
        const Value centred = back.add({.name = "sub",
                                        .kind = "Sub",
                                        .inputs = {back.gradient(), sums},
                                        .outputs = {shape},
                                        .flops = elements(shape)});
        back.give(x, product(back, centred, back.output()));
      });
}

Value l2_loss(Tape& g, Value x) {
  const Shape shape = g.shape(x);
  return g.add({.name = "L2Loss",
                .kind = "L2Loss",
                .inputs = {x},
                .outputs = {Shape{}},
                .flops = 2 * elements(shape)},
               [=](Backward& back) { back.give(x, product(back, x, back.gradient())); });
}

Value add_n(Tape& g, std::span<const Value> terms, const std::string& name) {
  const std::vector<Value> inputs(terms.begin(), terms.end());
  const Shape shape = g.shape(inputs.front());
  return g.add({.name = name,
                .kind = "AddN",
                .inputs = inputs,
                .outputs = {shape},
                .flops = static_cast<std::int64_t>(inputs.size() - 1) * elements(shape)},
               [=](Backward& back) {
                 for (const Value term : inputs) back.give(term, back.gradient());
               });
}

}  // namespace baechi::generate
