// SPDX-License-Identifier: Apache-2.0
// Matrix products, lookups and the cross entropy.
#include "baechi/base/assert.h"
#include "baechi/generate/dataflow_ops.h"

namespace baechi::generate {
namespace {

struct Sizes {  // of a product: batch x [rows x inner] . [inner x columns]
  std::int64_t batch, rows, inner, columns;
  bool shared_b;  // b has no batch dimensions
  std::int64_t flops() const { return (Bytes(2) * batch * rows * inner * columns).count(); }
};

Sizes sizes_of(const Shape& a, const Shape& b, Transposed t) {
  BAECHI_ASSERT(a.size() >= 2 && b.size() >= 2, "a product is of matrices");
  Sizes sizes{.batch = elements(Shape(a.begin(), a.end() - 2)),
              .rows = t.a ? a.back() : a[a.size() - 2],
              .inner = t.a ? a[a.size() - 2] : a.back(),
              .columns = t.b ? b[b.size() - 2] : b.back(),
              .shared_b = b.size() == 2};
  BAECHI_ASSERT(sizes.inner == (t.b ? b.back() : b[b.size() - 2]), "inner dimensions differ");
  BAECHI_ASSERT(sizes.shared_b || elements(b) == sizes.batch * sizes.inner * sizes.columns,
                "both operands have the same batch");
  return sizes;
}

}  // namespace

Value matmul(Tape& g, Value a, Value b, Transposed transposed) {
  const Sizes sizes = sizes_of(g.shape(a), g.shape(b), transposed);
  Shape shape = g.shape(a);
  shape[shape.size() - 2] = sizes.rows;
  shape.back() = sizes.columns;
  const std::string kind = shape.size() == 2 ? "MatMul" : "BatchMatMulV2";
  const std::string_view static_kind = shape.size() == 2 ? "MatMul" : "BatchMatMulV2";
  return g.add({.name = kind,
                .kind = static_kind,
                .inputs = {a, b},
                .outputs = {shape},
                .flops = sizes.flops()},
               [=](Backward& back) {
                 const auto give = [&](Value of, Value with) {
                   if (!back.wants(of)) return;
                   back.give(of, back.add({.name = kind,
                                           .kind = static_kind,
                                           .inputs = {back.gradient(), with},
                                           .outputs = {back.shape(of)},
                                           .flops = sizes.flops()}));
                 };
                 give(a, b);
                 give(b, a);
               });
}

Value bias_add(Tape& g, Value x, Value bias) {
  const Shape shape = g.shape(x);
  BAECHI_ASSERT(g.shape(bias) == Shape{shape.back()}, "one bias per column");
  return g.add({.name = "BiasAdd",
                .kind = "BiasAdd",
                .inputs = {x, bias},
                .outputs = {shape},
                .flops = elements(shape)},
               [=](Backward& back) {
                 back.give(x, back.gradient());
                 if (back.wants(bias))
                   back.give(bias, back.add({.name = "BiasAddGrad",
                                             .kind = "BiasAddGrad",
                                             .inputs = {back.gradient()},
                                             .outputs = {back.shape(bias)},
                                             .flops = elements(shape)}));
               });
}

Value gather(Tape& g, Value table, Value ids) {
  const std::int64_t width = g.shape(table).back();
  Shape shape = g.shape(ids);
  shape.push_back(width);
  const Value axis = constant(g, "Gather/axis");
  return g.add({.name = "Gather",
                .kind = "GatherV2",
                .inputs = {table, ids, axis},
                .outputs = {shape},
                .moved = 2 * g.bytes_of(shape)},
               [=](Backward& back) {
                 const Value rows_shape = back.add(
                     {.name = "Shape", .kind = "Const", .outputs = {{2}}, .kernel = false});
                 const Value rows = back.add({.name = "Reshape",
                                              .kind = "Reshape",
                                              .inputs = {back.gradient(), rows_shape},
                                              .outputs = {{elements(shape) / width, width}},
                                              .kernel = false});
                 back.give_rows(table, rows, ids);
               });
}

Value sparse_softmax_cross_entropy(Tape& g, Value logits, Value labels) {
  const Shape shape = g.shape(logits), rows{shape.front()};
  BAECHI_ASSERT(shape.size() == 2 && g.shape(labels) == rows, "one label per row of logits");
  const std::string_view kind = "SparseSoftmaxCrossEntropyWithLogits";
  // Reads the logits twice (largest of a row, then its sum) and writes their gradient, which it
  // computes along the way.
  const std::vector<Value> outputs =
      g.add_all({.name = std::string(kind),
                 .kind = kind,
                 .inputs = {logits, labels},
                 .outputs = {rows, shape},
                 .flops = (kTranscendental + 3) * elements(shape),
                 .moved = 3 * g.bytes(logits)},
                [=](Backward& back) {
                  const Value column = back.add({.name = "ExpandDims",
                                                 .kind = "ExpandDims",
                                                 .inputs = {back.gradient()},
                                                 .outputs = {{rows[0], 1}},
                                                 .kernel = false});
                  back.give(logits, back.add({.name = "mul",
                                              .kind = "Mul",
                                              .inputs = {column, back.output(1)},
                                              .outputs = {shape},
                                              .flops = elements(shape)}));
                });
  return outputs.front();
}

}  // namespace baechi::generate
