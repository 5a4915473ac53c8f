// SPDX-License-Identifier: Apache-2.0
// Strong ids, and vectors that only their own id can index: `devices[op]` does not compile.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "baechi/base/assert.h"

namespace baechi {

template <class Tag>
class Id {  // an index that knows what it indexes
 public:
  constexpr explicit Id(std::uint32_t value) : value_(value) {}
  constexpr explicit Id(std::size_t value) : value_(static_cast<std::uint32_t>(value)) {}
  constexpr explicit Id(int value) : value_(static_cast<std::uint32_t>(value)) {}
  constexpr std::uint32_t value() const { return value_; }
  constexpr std::size_t index() const { return value_; }
  friend constexpr auto operator<=>(Id, Id) = default;

 private:
  std::uint32_t value_;
};

using OpId = Id<struct OpTag>;
using TensorId = Id<struct TensorTag>;
using GroupId = Id<struct GroupTag>;
using DeviceId = Id<struct DeviceTag>;
using ChannelId = Id<struct ChannelTag>;

// The ids 0 .. size-1, for range-for.
template <class IdType>
class IdRange {
 public:
  class iterator {
   public:
    using iterator_category = std::random_access_iterator_tag;
    using value_type = IdType;
    using difference_type = std::ptrdiff_t;
    using pointer = void;
    using reference = IdType;
    constexpr iterator() = default;
    constexpr explicit iterator(std::size_t at) : at_(at) {}
    constexpr IdType operator*() const { return IdType(at_); }
    constexpr IdType operator[](difference_type n) const { return *(*this + n); }
    constexpr iterator& operator++() { return ++at_, *this; }
    constexpr iterator operator++(int) { return iterator(at_++); }
    constexpr iterator& operator--() { return --at_, *this; }
    constexpr iterator operator--(int) { return iterator(at_--); }
    constexpr iterator& operator+=(difference_type n) {
      at_ = static_cast<std::size_t>(static_cast<difference_type>(at_) + n);
      return *this;
    }
    constexpr iterator& operator-=(difference_type n) { return *this += -n; }
    friend constexpr iterator operator+(iterator it, difference_type n) { return it += n; }
    friend constexpr iterator operator+(difference_type n, iterator it) { return it += n; }
    friend constexpr iterator operator-(iterator it, difference_type n) { return it -= n; }
    friend constexpr difference_type operator-(iterator a, iterator b) {
      return static_cast<difference_type>(a.at_) - static_cast<difference_type>(b.at_);
    }
    friend constexpr auto operator<=>(iterator, iterator) = default;

   private:
    std::size_t at_ = 0;
  };

  constexpr IdRange(std::size_t begin, std::size_t end) : begin_(begin), end_(end) {}
  constexpr explicit IdRange(std::size_t size) : IdRange(0, size) {}
  constexpr iterator begin() const { return iterator(begin_); }
  constexpr iterator end() const { return iterator(end_); }
  constexpr std::size_t size() const { return end_ - begin_; }
  constexpr bool empty() const { return begin_ == end_; }

 private:
  std::size_t begin_, end_;
};

template <class IdType, class T>
class IdVector {  // a std::vector that IdType indexes
 public:
  using value_type = T;
  using reference = typename std::vector<T>::reference;
  using const_reference = typename std::vector<T>::const_reference;

  IdVector() = default;
  explicit IdVector(std::size_t size) : values_(size) {}
  IdVector(std::size_t size, const T& value) : values_(size, value) {}
  IdVector(std::initializer_list<T> values) : values_(values) {}
  explicit IdVector(std::vector<T> values) : values_(std::move(values)) {}

  // Unchecked, as std::vector's: an id comes from the container's own keys().
  reference operator[](IdType id) { return values_[id.index()]; }
  const_reference operator[](IdType id) const { return values_[id.index()]; }

  IdRange<IdType> keys() const { return IdRange<IdType>(values_.size()); }
  bool contains(IdType id) const { return id.index() < values_.size(); }
  std::size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  IdType push_back(T value) {
    values_.push_back(std::move(value));
    return IdType(values_.size() - 1);
  }
  void reserve(std::size_t size) { values_.reserve(size); }
  void resize(std::size_t size) { values_.resize(size); }
  void assign(std::size_t size, const T& value) { values_.assign(size, value); }
  void clear() { values_.clear(); }
  auto begin() { return values_.begin(); }
  auto end() { return values_.end(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  T& back() { return values_.back(); }
  const T& back() const { return values_.back(); }
  const std::vector<T>& raw() const { return values_; }
  friend bool operator==(const IdVector&, const IdVector&) = default;

 private:
  std::vector<T> values_;
};

}  // namespace baechi
