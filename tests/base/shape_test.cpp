#include "ridge/shape.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace ridge {
namespace {

template <class Body>
std::string message_of(ErrorCode code, Body body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was raised";
  return "";
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape{}.numel(), 1);
  EXPECT_EQ((Shape{3, 7, 31}).numel(), 651);
  EXPECT_EQ((Shape{1, 0, 5}).numel(), 0);
  EXPECT_EQ((Shape{int64_t(1) << 31, 2, 33}).numel(), (int64_t(1) << 32) * 33);
}

TEST(Shape, RejectsCountsBeyond63Bits) {
  Shape huge{int64_t(1) << 32, int64_t(1) << 31};
  EXPECT_NE(message_of(ErrorCode::value, [&] { huge.numel(); }).find("4294967296"), std::string::npos);
  EXPECT_EQ((Shape{int64_t(1) << 62, 1}).numel(), int64_t(1) << 62);
}

// A tensor without elements is legal whatever its other sizes, in any order.
TEST(Shape, AnyZeroMakesItEmpty) {
  EXPECT_EQ((Shape{0, int64_t(1) << 62, int64_t(1) << 62}).numel(), 0);
  EXPECT_EQ((Shape{int64_t(1) << 62, int64_t(1) << 62, 0}).numel(), 0);
}

TEST(Shape, RejectsRanksAboveTheLimit) {
  std::vector<int64_t> nine(9, 1);
  message_of(ErrorCode::shape, [&] { Shape{std::span<const int64_t>(nine)}; });
  Shape eight = Shape::filled(8, 2);
  message_of(ErrorCode::shape, [&] { eight.push_back(1); });
  EXPECT_EQ(eight, Shape::filled(8, 2));  // unchanged after an error
}

TEST(Shape, InsertAndEraseAreInverse) {
  const Shape start{3, 7, 31};
  for (int axis = 0; axis <= start.rank(); ++axis) {
    Shape s = start;
    s.insert(axis, 5);
    EXPECT_EQ(s.rank(), 4);
    EXPECT_EQ(s[axis], 5);
    s.erase(axis);
    EXPECT_EQ(s, start);
  }
}

TEST(Shape, EqualityIncludesTheRank) {
  EXPECT_NE((Shape{1}), (Shape{1, 1}));
  EXPECT_NE((Shape{}), (Shape{0}));
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
}

TEST(Shape, ContiguousStridesOrderEveryElement) {
  EXPECT_EQ(contiguous_strides({3, 7, 31}), (Shape{217, 31, 1}));
  EXPECT_EQ(contiguous_strides({}), (Shape{}));
  EXPECT_EQ(contiguous_strides({4, 0, 2}).rank(), 3);
}

TEST(Broadcast, AlignsTrailingAxes) {
  EXPECT_EQ(broadcast({3, 1, 7}, {31, 1}, "add"), (Shape{3, 31, 7}));
  EXPECT_EQ(broadcast({}, {2, 3}, "add"), (Shape{2, 3}));
  EXPECT_EQ(broadcast({1}, {0}, "add"), (Shape{0}));
  EXPECT_EQ(broadcast({0, 3}, {1, 3}, "add"), (Shape{0, 3}));
}

TEST(Broadcast, ErrorsNameOpAndBothShapes) {
  std::string text = message_of(ErrorCode::shape, [] { broadcast({2, 3}, {2, 4}, "add"); });
  for (const char* part : {"[add]", "[2, 3]", "[2, 4]", "3 and 4"}) EXPECT_NE(text.find(part), std::string::npos) << text;
  message_of(ErrorCode::shape, [] { broadcast({0}, {3}, "add"); });
}

TEST(Axis, NegativeAxesCountFromTheEnd) {
  for (int64_t axis = -3; axis < 3; ++axis) EXPECT_EQ(normal_axis(axis, 3, "sum"), (axis + 3) % 3);
  for (int64_t axis : {int64_t(-4), int64_t(3), int64_t(1) << 40}) {
    std::string text = message_of(ErrorCode::axis, [&] { normal_axis(axis, 3, "sum"); });
    EXPECT_NE(text.find("[sum] axis " + std::to_string(axis)), std::string::npos) << text;
  }
  message_of(ErrorCode::axis, [] { normal_axis(0, 0, "sum"); });
}

}  // namespace
}  // namespace ridge
