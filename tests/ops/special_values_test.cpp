// Special values on the CPU.
#include "ops/special_values.h"

namespace ridge::test {
namespace {

class SpecialValues : public ::testing::TestWithParam<int> {};

TEST_P(SpecialValues, FollowTheReference) { check_special(Op(GetParam())); }

INSTANTIATE_TEST_SUITE_P(Elementwise, SpecialValues, ::testing::ValuesIn(elementwise_ops()),
                         [](const ::testing::TestParamInfo<int>& info) { return std::string(name(Op(info.param))); });

TEST(SpecialReductions, FollowTheReference) { check_special_reductions(); }
TEST(SpecialReductions, SumOverNothing) { check_sums_over_nothing(); }
TEST(SpecialChains, StayFinite) { check_special_chains(); }
TEST(SpecialChains, SummedExponentials) { check_summed_exponentials(); }

}  // namespace
}  // namespace ridge::test
