// SPDX-License-Identifier: Apache-2.0
// Sources, shapes and pieces of tensors.
#include "baechi/base/assert.h"
#include "baechi/generate/dataflow_ops.h"

namespace baechi::generate {
namespace {

std::int64_t rank(const Shape& shape) { return static_cast<std::int64_t>(shape.size()); }

Value constant(Backward& back, const std::string& name, const Shape& shape) {
  return back.add({.name = name, .kind = "Const", .outputs = {shape}, .kernel = false});
}

Value reshaped(Backward& back, Value x, const Shape& shape) {
  const Value target = constant(back, "Shape", {rank(shape)});
  return back.add({.name = "Reshape",
                   .kind = "Reshape",
                   .inputs = {x, target},
                   .outputs = {shape},
                   .kernel = false});
}

// The gradient of pieces along one axis is the concatenation of theirs; a piece that has none
// counts as zeros.
std::vector<Value> gradients_or_zeros(Backward& back, const Shape& piece, std::size_t pieces) {
  std::vector<Value> gradients;
  for (std::size_t i = 0; i < pieces; ++i)
    gradients.push_back(back.has_gradient(i)
                            ? back.gradient(i)
                            : back.add({.name = "zeros", .kind = "Fill", .outputs = {piece}}));
  return gradients;
}

}  // namespace

Value placeholder(Tape& g, const std::string& name, const Shape& shape) {
  return g.add({.name = name, .kind = "Placeholder", .outputs = {shape}, .kernel = false});
}

Value constant(Tape& g, const std::string& name, const Shape& shape) {
  return g.add({.name = name, .kind = "Const", .outputs = {shape}, .kernel = false});
}

Value identity(Tape& g, Value x, const std::string& name) {
  return g.add(
      {.name = name, .kind = "Identity", .inputs = {x}, .outputs = {g.shape(x)}, .kernel = false},
      [=](Backward& back) { back.give(x, back.gradient()); });
}

Value reshape(Tape& g, Value x, const Shape& shape, const std::string& name) {
  const Shape before = g.shape(x);
  BAECHI_ASSERT(elements(before) == elements(shape), "a reshape keeps the number of elements");
  const Value target = constant(g, name + "/shape", {rank(shape)});
  return g.add(
      {.name = name, .kind = "Reshape", .inputs = {x, target}, .outputs = {shape}, .kernel = false},
      [=](Backward& back) { back.give(x, reshaped(back, back.gradient(), before)); });
}

Value transpose(Tape& g, Value x, const std::vector<std::size_t>& order) {
  const Shape before = g.shape(x);
  Shape after;
  for (const std::size_t from : order) after.push_back(before[from]);
  const Value perm = constant(g, "transpose/perm", {rank(before)});
  return g.add({.name = "transpose", .kind = "Transpose", .inputs = {x, perm}, .outputs = {after}},
               [=](Backward& back) {
                 const Value inverse = back.add({.name = "InvertPermutation",
                                                 .kind = "InvertPermutation",
                                                 .inputs = {perm},
                                                 .outputs = {{rank(before)}},
                                                 .kernel = false});
                 back.give(x, back.add({.name = "transpose",
                                        .kind = "Transpose",
                                        .inputs = {back.gradient(), inverse},
                                        .outputs = {before}}));
               });
}

Value concat(Tape& g, std::span<const Value> parts, std::size_t axis) {
  const std::vector<Value> values(parts.begin(), parts.end());
  Shape shape = g.shape(values.front());
  shape[axis] = 0;
  for (const Value part : values) shape[axis] += g.shape(part)[axis];
  const Value axis_value = constant(g, "concat/axis");
  std::vector<Value> inputs = values;
  inputs.push_back(axis_value);
  return g.add({.name = "concat", .kind = "ConcatV2", .inputs = inputs, .outputs = {shape}},
               [=](Backward& back) {
                 const std::vector<Shape> ranks(values.size(), Shape{rank(shape)});
                 const std::vector<Value> shapes = back.add_all({.name = "ShapeN",
                                                                 .kind = "ShapeN",
                                                                 .inputs = values,
                                                                 .outputs = ranks,
                                                                 .kernel = false});
                 const std::vector<Value> offsets = back.add_all({.name = "ConcatOffset",
                                                                  .kind = "ConcatOffset",
                                                                  .inputs = shapes,
                                                                  .outputs = ranks,
                                                                  .kernel = false});
                 for (std::size_t i = 0; i < values.size(); ++i) {
                   if (!back.wants(values[i])) continue;
                   const Shape piece = back.shape(values[i]);
                   back.give(values[i],
                             back.add({.name = "Slice",
                                       .kind = "Slice",
                                       .inputs = {back.gradient(), offsets[i], shapes[i]},
                                       .outputs = {piece},
                                       .moved = 2 * back.bytes(values[i])}));
                 }
               });
}

std::vector<Value> split(Tape& g, Value x, std::size_t parts, std::size_t axis) {
  const Shape full = g.shape(x);
  Shape piece = full;
  piece[axis] /= static_cast<std::int64_t>(parts);
  const Value dim = constant(g, "split/split_dim");
  return g.add_all(
      {.name = "split",
       .kind = "Split",
       .inputs = {dim, x},
       .outputs = std::vector<Shape>(parts, piece)},
      [=](Backward& back) {
        std::vector<Value> pieces = gradients_or_zeros(back, piece, parts);
        pieces.push_back(constant(back, "concat/dim", {}));
        back.give(
            x,
            back.add({.name = "concat", .kind = "ConcatV2", .inputs = pieces, .outputs = {full}}));
      });
}

std::vector<Value> unstack(Tape& g, Value x) {
  const Shape full = g.shape(x);
  const auto slices = static_cast<std::size_t>(full.front());
  const Shape slice(full.begin() + 1, full.end());
  return g.add_all({.name = "unstack",
                    .kind = "Unpack",
                    .inputs = {x},
                    .outputs = std::vector<Shape>(slices, slice)},
                   [=](Backward& back) {
                     back.give(x, back.add({.name = "stack",
                                            .kind = "Pack",
                                            .inputs = gradients_or_zeros(back, slice, slices),
                                            .outputs = {full}}));
                   });
}

Value stack(Tape& g, std::span<const Value> slices, std::size_t axis) {
  const std::vector<Value> values(slices.begin(), slices.end());
  const Shape slice = g.shape(values.front());
  Shape full = slice;
  full.insert(full.begin() + static_cast<std::ptrdiff_t>(axis),
              static_cast<std::int64_t>(values.size()));
  return g.add({.name = "stack", .kind = "Pack", .inputs = values, .outputs = {full}},
               [=](Backward& back) {
                 const std::vector<Value> pieces =
                     back.add_all({.name = "unstack",
                                   .kind = "Unpack",
                                   .inputs = {back.gradient()},
                                   .outputs = std::vector<Shape>(values.size(), slice)});
                 for (std::size_t i = 0; i < values.size(); ++i) back.give(values[i], pieces[i]);
               });
}

}  // namespace baechi::generate
