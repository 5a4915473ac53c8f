// SPDX-License-Identifier: Apache-2.0
// Operators that join, cut and rearrange tensors, and what they do to lists of sizes.
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "baechi/base/error.h"
#include "baechi/base/overflow.h"
#include "baechi/io/onnx/onnx_shapes.h"

namespace baechi {
namespace {

using Shape = OnnxShape;

// The numbers at the places of `to`: place [i, j, ...] has that at source([i, j, ...]) of `from`.
// Nothing for long lists.
template <class Source>
OnnxIntegers picked(const OnnxIntegers& values, const Shape& from, const Shape& to,
                    const Source& source) {
  OnnxIntegers result;
  Shape place(to.size(), 0);
  for (std::int64_t left = onnx_elements(to); left > 0 && left <= 64; --left) {
    const Shape there = source(place);
    std::int64_t index = 0;
    for (std::size_t axis = 0; axis < from.size(); ++axis) index = index * from[axis] + there[axis];
    result.push_back(values[static_cast<std::size_t>(index)]);
    for (std::size_t axis = to.size(); axis-- > 0;) {
      if (++place[axis] < to[axis]) break;
      place[axis] = 0;
    }
  }
  return result;
}

// The numbers stay what they are, whatever the shape.
void reshaped(OnnxOperands& op, Shape shape) {
  if (const OnnxIntegers* const values = op.integers(0))
    op.set_integers(0, op.element(0), std::move(shape), *values);
  else
    op.set(0, op.element(0), std::move(shape));
}

void reshape(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape* const x = op.shape(0);
  const OnnxIntegers* const sizes = op.list_or_input("shape", 1);
  if (x == nullptr || sizes == nullptr) return;
  Shape result = *sizes;
  std::optional<std::size_t> open;
  Shape known;
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (result[i] == 0 && op.integer("allowzero", 0) == 0 && i < x->size()) result[i] = (*x)[i];
    if (result[i] == -1)
      open = i;
    else
      known.push_back(result[i]);
  }
  const std::int64_t elements = onnx_elements(*x), others = onnx_elements(known);
  if (open.has_value()) result[*open] = others == 0 ? 0 : elements / others;
  if (onnx_elements(result) != elements)
    throw InputError("it reshapes " + std::to_string(elements) + " elements into " +
                     std::to_string(onnx_elements(result)));
  reshaped(op, result);
}

void flatten(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape* const x = op.shape(0);
  if (x == nullptr) return;
  const std::int64_t wanted = op.integer("axis", 1);
  const std::size_t axis = wanted == static_cast<std::int64_t>(x->size())
                               ? x->size()
                               : OnnxOperands::axis(wanted, std::max<std::size_t>(1, x->size()));
  const std::size_t split = std::min(axis, x->size());
  op.set(0, op.element(0),
         {onnx_elements(Shape(x->begin(), x->begin() + onnx_offset(split))),
          onnx_elements(Shape(x->begin() + onnx_offset(split), x->end()))});
}

void transpose(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape* const x = op.shape(0);
  if (x == nullptr) return;
  const OnnxIntegers* const order = op.list("perm");
  if (order != nullptr && order->size() != x->size())
    throw InputError("it permutes " + std::to_string(order->size()) + " axes of " +
                     std::to_string(x->size()));
  std::vector<std::size_t> axes(x->size());
  Shape result;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    axes[i] = order != nullptr ? OnnxOperands::axis((*order)[i], axes.size()) : axes.size() - 1 - i;
    result.push_back((*x)[axes[i]]);
  }
  op.set(0, op.element(0), result);
  if (const OnnxIntegers* const values = op.integers(0))
    op.set_integers(0, op.element(0), result, picked(*values, *x, result, [&](const Shape& place) {
                      Shape there(axes.size(), 0);
                      for (std::size_t i = 0; i < axes.size(); ++i) there[axes[i]] = place[i];
                      return there;
                    }));
}

void squeeze(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape* const x = op.shape(0);
  const bool named = op.list("axes") != nullptr || op.num_inputs() > 1;
  const OnnxIntegers* const axes = op.list_or_input("axes", 1);
  if (x == nullptr || (named && axes == nullptr)) return;
  std::vector<bool> gone(x->size(), false);
  for (std::size_t i = 0; i < x->size() && !named; ++i) gone[i] = (*x)[i] == 1;
  if (named)
    for (const std::int64_t axis : *axes) gone[OnnxOperands::axis(axis, x->size())] = true;
  Shape result;
  for (std::size_t i = 0; i < x->size(); ++i)
    if (!gone[i]) result.push_back((*x)[i]);
  reshaped(op, result);
}

void unsqueeze(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape* const x = op.shape(0);
  const OnnxIntegers* const axes = op.list_or_input("axes", 1);
  if (x == nullptr || axes == nullptr) return;
  std::vector<bool> added(x->size() + axes->size(), false);
  for (const std::int64_t axis : *axes) added[OnnxOperands::axis(axis, added.size())] = true;
  Shape result;
  auto next = x->begin();
  for (const bool one : added) result.push_back(one || next == x->end() ? 1 : *next++);
  reshaped(op, result);
}

void concat(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  if (op.shape(0) == nullptr || op.shape(0)->empty()) return;
  Shape result = *op.shape(0);
  const std::size_t axis = OnnxOperands::axis(op.integer("axis", 0), result.size());
  OnnxIntegers values;
  bool known = true;
  result[axis] = 0;
  for (std::size_t i = 0; i < op.num_inputs(); ++i) {
    const Shape* const part = op.shape(i);
    if (part == nullptr) return;
    if (part->size() != result.size()) throw InputError("it joins tensors of different ranks");
    if (add_overflows(result[axis], (*part)[axis], result[axis]))
      throw InputError("it joins too much");
    const OnnxIntegers* const numbers = op.integers(i);
    known = known && numbers != nullptr && result.size() == 1;
    if (known) values.insert(values.end(), numbers->begin(), numbers->end());
  }
  if (known)
    op.set_integers(0, op.element(0), result, std::move(values));
  else
    op.set(0, op.element(0), result);
}

void split(OnnxOperands& op) {
  const Shape* const x = op.shape(0);
  const OnnxIntegers* const sizes = op.list_or_input("split", 1);
  const bool named = op.list("split") != nullptr || (op.num_inputs() > 1 && op.shape(1) != nullptr);
  for (std::size_t i = 0; i < op.num_outputs(); ++i) op.set_element(i, op.element(0));
  if (x == nullptr || op.num_outputs() == 0 || (named && sizes == nullptr)) return;
  const std::size_t axis = OnnxOperands::axis(op.integer("axis", 0), x->size());
  const auto parts = static_cast<std::int64_t>(op.num_outputs());
  const std::int64_t each = ((*x)[axis] + parts - 1) / parts;
  std::int64_t left = (*x)[axis];
  for (std::size_t i = 0; i < op.num_outputs(); ++i) {
    Shape part = *x;
    part[axis] = sizes != nullptr && i < sizes->size() ? (*sizes)[i] : std::min(each, left);
    if (part[axis] < 0 || part[axis] > left) throw InputError("it splits off more than there is");
    left -= part[axis];
    op.set(i, op.element(0), part);
  }
}

struct Cut {
  std::int64_t begin = 0, step = 1, count = 0;
};
Cut cut_of(std::int64_t size, std::int64_t start, std::int64_t end, std::int64_t step) {
  constexpr std::int64_t kEnd = std::int64_t{1} << 41;  // more than any dimension
  if (step == 0) throw InputError("it slices in steps of 0");
  if (size == 0) return {};
  step = std::clamp(step, -kEnd, kEnd);
  const auto bound = [&](std::int64_t index, std::int64_t least, std::int64_t most) {
    index = std::clamp(index, -kEnd, kEnd);
    return std::clamp(index < 0 ? index + size : index, least, most);
  };
  if (step > 0) {
    start = bound(start, 0, size);
    end = bound(end, 0, size);
    return {start, step, std::max<std::int64_t>(0, (end - start + step - 1) / step)};
  }
  start = bound(start, 0, size - 1);
  end = bound(end, -1, size - 1);
  return {start, step, std::max<std::int64_t>(0, (start - end - step - 1) / -step)};
}

void slice(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape* const x = op.shape(0);
  const OnnxIntegers *const starts = op.list_or_input("starts", 1),
                            *const ends = op.list_or_input("ends", 2),
                            *const axes = op.list_or_input("axes", 3),
                            *const steps = op.integers(4);
  const bool open = (op.num_inputs() > 3 && op.shape(3) != nullptr && axes == nullptr) ||
                    (op.num_inputs() > 4 && op.shape(4) != nullptr && steps == nullptr);
  if (!x || !starts || !ends || open || starts->size() != ends->size()) return;
  Shape result = *x;
  std::vector<Cut> cuts(x->size());
  for (std::size_t i = 0; i < starts->size(); ++i) {
    const std::size_t axis = OnnxOperands::axis(
        axes != nullptr && i < axes->size() ? (*axes)[i] : static_cast<std::int64_t>(i), x->size());
    const std::int64_t step = steps != nullptr && i < steps->size() ? (*steps)[i] : 1;
    cuts[axis] = cut_of((*x)[axis], (*starts)[i], (*ends)[i], step);
    result[axis] = cuts[axis].count;
  }
  op.set(0, op.element(0), result);
  if (const OnnxIntegers* const values = op.integers(0))
    op.set_integers(0, op.element(0), result, picked(*values, *x, result, [&](Shape place) {
                      for (std::size_t i = 0; i < place.size(); ++i)
                        place[i] = cuts[i].begin + place[i] * cuts[i].step;
                      return place;
                    }));
}

void expand(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  if (op.shape(0) == nullptr || op.integers(1) == nullptr) return;
  const Shape result = onnx_broadcast(*op.shape(0), *op.integers(1));
  op.set(0, op.element(0), result);
  const OnnxIntegers* const values = op.integers(0);
  if (values == nullptr || values->size() != 1 || onnx_elements(result) > 64) return;
  op.set_integers(0, op.element(0), result,
                  OnnxIntegers(static_cast<std::size_t>(onnx_elements(result)), values->front()));
}

void tile(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape* const x = op.shape(0);
  const OnnxIntegers* const repeats = op.integers(1);
  if (x == nullptr || repeats == nullptr || repeats->size() != x->size()) return;
  Shape result = *x;
  for (std::size_t i = 0; i < result.size(); ++i)
    if (multiply_overflows(result[i], (*repeats)[i], result[i]))
      throw InputError("it repeats too often");
  op.set(0, op.element(0), result);
}

void pad(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape* const x = op.shape(0);
  const OnnxIntegers* const pads = op.list_or_input("pads", 1);
  if (x == nullptr || pads == nullptr) return;
  const OnnxIntegers* const axes = op.integers(3);
  if (op.num_inputs() > 3 && op.shape(3) != nullptr && axes == nullptr) return;
  const std::size_t count = axes != nullptr ? axes->size() : x->size();
  if (pads->size() != 2 * count)
    throw InputError("it pads " + std::to_string(pads->size()) + " ends of " +
                     std::to_string(count) + " axes");
  Shape result = *x;
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t& size = result[axes != nullptr ? OnnxOperands::axis((*axes)[i], x->size()) : i];
    if (add_overflows(size, (*pads)[i], size) || add_overflows(size, (*pads)[count + i], size))
      throw InputError("it pads too much");
  }
  op.set(0, op.element(0), result);
}

constexpr std::array<OnnxShapeEntry, 11> kLayoutRules{{
    {"Concat", concat},
    {"Expand", expand},
    {"Flatten", flatten},
    {"Pad", pad},
    {"Reshape", reshape},
    {"Slice", slice},
    {"Split", split},
    {"Squeeze", squeeze},
    {"Tile", tile},
    {"Transpose", transpose},
    {"Unsqueeze", unsqueeze},
}};

}  // namespace

std::span<const OnnxShapeEntry> onnx_layout_rules() { return kLayoutRules; }

}  // namespace baechi
