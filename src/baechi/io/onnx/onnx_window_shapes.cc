// SPDX-License-Identifier: Apache-2.0
// Convolutions, pooling, resizing: operators that slide a window over the axes behind the first
// two.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "baechi/base/error.h"
#include "baechi/io/onnx/onnx_shapes.h"

namespace baechi {
namespace {

using Shape = OnnxShape;

// Entry `i` of a list attribute, bounded so that products of them fit.
std::int64_t entry(const OnnxIntegers* list, std::size_t i, std::int64_t otherwise) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;
  return list != nullptr && i < list->size() ? std::clamp((*list)[i], -kMost, kMost) : otherwise;
}

struct Window {
  std::int64_t kernel, stride, dilation, pad_before, pad_after;
  std::int64_t reach() const { return dilation * (kernel - 1) + 1; }
};

Window window(const OnnxOperands& op, std::size_t axis, std::size_t axes, std::int64_t kernel) {
  const OnnxIntegers* const pads = op.list("pads");
  Window window{.kernel = kernel,
                .stride = entry(op.list("strides"), axis, 1),
                .dilation = entry(op.list("dilations"), axis, 1),
                .pad_before = entry(pads, axis, 0),
                .pad_after = entry(pads, axis + axes, 0)};
  if (window.stride < 1 || window.dilation < 1) throw InputError("its window does not move");
  return window;
}

std::int64_t slid(const OnnxOperands& op, const Window& w, std::int64_t size) {
  const std::string_view mode = op.text("auto_pad");
  if (mode == "SAME_UPPER" || mode == "SAME_LOWER") return (size + w.stride - 1) / w.stride;
  const std::int64_t before = mode == "VALID" ? 0 : w.pad_before;
  const std::int64_t room = size + before + (mode == "VALID" ? 0 : w.pad_after) - w.reach();
  if (room < 0) throw InputError("its window is larger than its input");
  if (op.integer("ceil_mode", 0) == 0) return room / w.stride + 1;
  const std::int64_t count = (room + w.stride - 1) / w.stride + 1;
  // A window that would start behind the input, in the padding, is left out.
  return (count - 1) * w.stride >= size + before ? count - 1 : count;
}

bool is_image(const Shape* x) { return x != nullptr && x->size() >= 3; }

// The filter is input `filter`: [outputs, inputs / groups, ...].
void convolve(OnnxOperands& op, std::size_t filter, OnnxElement element) {
  op.set_element(0, element);
  const Shape *const x = op.shape(0), *const w = op.shape(filter);
  if (!is_image(x) || w == nullptr || w->size() != x->size()) return;
  Shape result{x->front(), w->front()};
  const std::size_t axes = x->size() - 2;
  for (std::size_t i = 0; i < axes; ++i)
    result.push_back(slid(op, window(op, i, axes, (*w)[i + 2]), (*x)[i + 2]));
  op.set(0, element, result);
}

void conv(OnnxOperands& op) { convolve(op, 1, op.element(0)); }
void conv_integer(OnnxOperands& op) { convolve(op, 1, OnnxElement::kInt32); }
void q_linear_conv(OnnxOperands& op) { convolve(op, 3, op.element(7)); }

void conv_transpose(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape *const x = op.shape(0), *const w = op.shape(1);
  if (!is_image(x) || w == nullptr || w->size() != x->size()) return;
  const std::size_t axes = x->size() - 2;
  const std::int64_t groups = std::max<std::int64_t>(1, op.integer("group", 1));
  Shape result{x->front(), onnx_elements({(*w)[1], groups})};
  const OnnxIntegers* const wanted = op.list("output_shape");
  const std::string_view mode = op.text("auto_pad");
  for (std::size_t i = 0; i < axes; ++i) {
    const Window slide = window(op, i, axes, (*w)[i + 2]);
    std::int64_t size = slide.stride * ((*x)[i + 2] - 1) + slide.reach() - slide.pad_before -
                        slide.pad_after + entry(op.list("output_padding"), i, 0);
    if (mode == "SAME_UPPER" || mode == "SAME_LOWER") size = (*x)[i + 2] * slide.stride;
    if (wanted != nullptr && wanted->size() >= axes) size = (*wanted)[wanted->size() - axes + i];
    result.push_back(size);
  }
  op.set(0, op.element(0), result);
}

void pool(OnnxOperands& op) {
  op.like(0, 0);
  const Shape* const x = op.shape(0);
  const OnnxIntegers* const kernel = op.list("kernel_shape");
  if (!is_image(x) || kernel == nullptr) return;
  Shape result = *x;
  const std::size_t axes = x->size() - 2;
  for (std::size_t i = 0; i < axes; ++i)
    result[i + 2] = slid(op, window(op, i, axes, entry(kernel, i, 1)), (*x)[i + 2]);
  op.set(0, op.element(0), result);
  op.set(1, OnnxElement::kInt64, result);
}

void global_pool(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape* const x = op.shape(0);
  if (x == nullptr || x->size() < 2) return;
  Shape result = *x;
  std::fill(result.begin() + 2, result.end(), 1);
  op.set(0, op.element(0), result);
}

// Sizes are told, or what to multiply the old ones with. `axes` may name a part of them.
void resize_by(OnnxOperands& op, const OnnxIntegers* sizes, const std::vector<float>* scales) {
  op.set_element(0, op.element(0));
  const Shape* const x = op.shape(0);
  if (x == nullptr) return;
  const OnnxIntegers* const axes = op.list("axes");
  const std::size_t count = axes != nullptr ? axes->size() : x->size();
  Shape result = *x;
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t& size = result[axes != nullptr ? OnnxOperands::axis((*axes)[i], x->size()) : i];
    if (sizes != nullptr && sizes->size() == count)
      size = (*sizes)[i];
    else if (scales != nullptr && scales->size() == count && (*scales)[i] > 0 &&
             (*scales)[i] <= 65536)
      size = static_cast<std::int64_t>(
          std::floor(static_cast<double>(size) * static_cast<double>((*scales)[i])));
    else
      return;
  }
  op.set(0, op.element(0), result);
}

void resize(OnnxOperands& op) { resize_by(op, op.integers(3), op.numbers(2)); }
void upsample(OnnxOperands& op) { resize_by(op, nullptr, op.numbers(1)); }

void depth_to_space(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape* const x = op.shape(0);
  const std::int64_t block = std::clamp<std::int64_t>(op.integer("blocksize", 1), 1, 1024);
  if (x == nullptr || x->size() != 4) return;
  op.set(0, op.element(0),
         {x->at(0), x->at(1) / (block * block), x->at(2) * block, x->at(3) * block});
}

void space_to_depth(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape* const x = op.shape(0);
  const std::int64_t block = std::clamp<std::int64_t>(op.integer("blocksize", 1), 1, 1024);
  if (x == nullptr || x->size() != 4) return;
  op.set(0, op.element(0),
         {x->at(0), x->at(1) * block * block, x->at(2) / block, x->at(3) / block});
}

// The grid says where to look: [N, outputs..., axes].
void grid_sample(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape *const x = op.shape(0), *const grid = op.shape(1);
  if (!is_image(x) || grid == nullptr || grid->size() != x->size()) return;
  Shape result{x->at(0), x->at(1)};
  result.insert(result.end(), grid->begin() + 1, grid->end() - 1);
  op.set(0, op.element(0), result);
}

void roi_align(OnnxOperands& op) {
  op.set_element(0, op.element(0));
  const Shape *const x = op.shape(0), *const boxes = op.shape(1);
  if (x == nullptr || x->size() != 4 || boxes == nullptr || boxes->empty()) return;
  op.set(0, op.element(0),
         {boxes->front(), x->at(1), op.integer("output_height", 1), op.integer("output_width", 1)});
}

constexpr std::array<OnnxShapeEntry, 17> kWindowRules{{
    {"AveragePool", pool},
    {"Conv", conv},
    {"ConvInteger", conv_integer},
    {"ConvTranspose", conv_transpose},
    {"DepthToSpace", depth_to_space},
    {"FusedConv", conv},
    {"GlobalAveragePool", global_pool},
    {"GlobalLpPool", global_pool},
    {"GlobalMaxPool", global_pool},
    {"GridSample", grid_sample},
    {"LpPool", pool},
    {"MaxPool", pool},
    {"QLinearConv", q_linear_conv},
    {"Resize", resize},
    {"RoiAlign", roi_align},
    {"SpaceToDepth", space_to_depth},
    {"Upsample", upsample},
}};

}  // namespace

std::span<const OnnxShapeEntry> onnx_window_rules() { return kWindowRules; }

}  // namespace baechi
