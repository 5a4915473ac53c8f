// SPDX-License-Identifier: Apache-2.0
// Operators at the grain of a TensorFlow graph (Paper 4.1), each with the gradient operators that
// TensorFlow adds for it when shapes are known. Names and kinds are TensorFlow's.
//
// FLOPs: two per multiply-add, one per element of an addition or multiplication, kTranscendental
// per element of a function.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "baechi/generate/tape.h"

namespace baechi::generate {

inline constexpr std::int64_t kTranscendental = 8;

// Sources.
Value placeholder(Tape& g, const std::string& name, const Shape& shape);
Value constant(Tape& g, const std::string& name, const Shape& shape = {});

// Elementwise, with NumPy's broadcasting.
Value add(Tape& g, Value a, Value b, const std::string& name = "add");
Value subtract(Tape& g, Value a, Value b);
Value multiply(Tape& g, Value a, Value b, const std::string& name = "mul");
Value squared_difference(Tape& g, Value a, Value b);
Value sigmoid(Tape& g, Value x);
Value tanh(Tape& g, Value x);
Value relu(Tape& g, Value x);
Value rsqrt(Tape& g, Value x);
Value dropout(Tape& g, Value x);  // mask and product; the mask is drawn when x is there
// Where a mask says so, x becomes a large negative number. The mask has no gradient.
Value masked(Tape& g, Value mask, Value x);

// Sum or mean over the last `axes` dimensions, which become 1 if `keep`.
struct Reduction {
  std::size_t axes = 1;
  bool keep = true;
  bool mean = false;
};
Value reduce(Tape& g, Value x, const Reduction& reduction);
Value softmax(Tape& g, Value x);  // over the last dimension

// Shapes and pieces.
Value identity(Tape& g, Value x, const std::string& name = "Identity");
Value reshape(Tape& g, Value x, const Shape& shape, const std::string& name = "Reshape");
Value transpose(Tape& g, Value x, const std::vector<std::size_t>& order);
Value concat(Tape& g, std::span<const Value> parts, std::size_t axis);
std::vector<Value> split(Tape& g, Value x, std::size_t parts, std::size_t axis);
std::vector<Value> unstack(Tape& g, Value x);  // along the first dimension
Value stack(Tape& g, std::span<const Value> slices, std::size_t axis);

// Products. The last two dimensions are matrices, earlier ones a batch of them; a second operand
// without batch dimensions serves the whole batch.
struct Transposed {
  bool a = false, b = false;
};
Value matmul(Tape& g, Value a, Value b, Transposed transposed = {});
Value bias_add(Tape& g, Value x, Value bias);
Value gather(Tape& g, Value table, Value ids);  // rows of `table`

// The loss of each row of logits [rows, classes] against its label.
Value sparse_softmax_cross_entropy(Tape& g, Value logits, Value labels);
Value l2_loss(Tape& g, Value x);
Value add_n(Tape& g, std::span<const Value> terms, const std::string& name = "AddN");

// Images: [batch, height, width, channels].
struct Window {
  std::int64_t height = 1, width = 1;
  std::int64_t stride = 1;
  bool same = false;  // padded to keep the size (before the stride), else only whole windows
};
Value conv2d(Tape& g, Value x, Value filter, const Window& window);
Value max_pool(Tape& g, Value x, const Window& window);
Value avg_pool(Tape& g, Value x, const Window& window);

struct BatchNorm {
  Value output, mean, variance;  // the latter two of this mini-batch
};
BatchNorm fused_batch_norm(Tape& g, Value x, Value scale, Value offset);

}  // namespace baechi::generate
