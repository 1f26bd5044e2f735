// The op table on the CPU.
#include "ops/op_cases.h"

namespace ridge::test {
namespace {

class OpCases : public ::testing::TestWithParam<int> {};

TEST_P(OpCases, MatchTheReference) { check_op(Op(GetParam()), full_product()); }

INSTANTIATE_TEST_SUITE_P(AllOps, OpCases, ::testing::ValuesIn(ops_with_samples()),
                         [](const ::testing::TestParamInfo<int>& info) { return std::string(name(Op(info.param))); });

}  // namespace
}  // namespace ridge::test
