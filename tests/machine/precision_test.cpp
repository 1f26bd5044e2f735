#include "machine/precision.h"

#include <gtest/gtest.h>

#include <map>

#include "machine/expect_error.h"

namespace ridge {
namespace {

const Device kCuda{Device::Kind::cuda, 0};

ArithmeticUnit cpu(bool unit = false) { return {.device = {}, .name = "this CPU", .bf16_unit = unit}; }
ArithmeticUnit gpu(int capability) { return {.device = kCuda, .name = "GPU", .capability = capability}; }

RateLookup rates(std::map<Precision, double> table) {
  return [table](const Device&, Precision precision) -> std::optional<double> {
    auto found = table.find(precision);
    return found == table.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(Precision, ReadsEveryName) {
  for (const char* word : {"fp32", "float32", "FP32", "Float32", "f32"}) EXPECT_EQ(parse_precision(word), Precision::fp32) << word;
  for (const char* word : {"bf16", "bfloat16", "BF16", "BFloat16"}) EXPECT_EQ(parse_precision(word), Precision::bf16) << word;
  for (const char* word : {"fp16", "float16", "FLOAT16", "f16"}) EXPECT_EQ(parse_precision(word), Precision::fp16) << word;
  for (const char* word : {"tf32", "TF32"}) EXPECT_EQ(parse_precision(word), Precision::tf32) << word;
  for (const char* word : {"auto", "Auto"}) EXPECT_EQ(parse_precision(word), std::nullopt) << word;
  for (Precision p : {Precision::fp32, Precision::tf32, Precision::bf16, Precision::fp16}) EXPECT_EQ(parse_precision(name(p)), p);
}

TEST(Precision, RejectsUnknownNamesWithTheOptions) {
  for (const char* word : {"", "fp8", "float64", "half", "bf 16", "fp32 ", "bfloat61"}) {
    const Error error = error_of([&] { parse_precision(word); });
    EXPECT_EQ(error.code(), ErrorCode::usage) << word;
    for (const char* option : {"auto", "fp32", "float32", "tf32", "bf16", "bfloat16", "fp16", "float16"})
      EXPECT_TRUE(mentions(error.what(), option)) << error.what();
  }
  EXPECT_TRUE(mentions(error_of([] { parse_precision("bfloat61"); }).what(), "did you mean 'bfloat16'"));
}

TEST(Precision, EveryDeviceHasItsTable) {
  struct Row {
    ArithmeticUnit unit;
    Support tf32, bf16, fp16;
  };
  const Support native = Support::native, emulated = Support::emulated, absent = Support::absent;
  for (const Row& row : {Row{cpu(), absent, emulated, emulated}, Row{cpu(true), absent, native, emulated}, Row{gpu(61), absent, emulated, emulated},
                         Row{gpu(75), absent, emulated, native}, Row{gpu(80), native, native, native}, Row{gpu(90), native, native, native},
                         Row{{.device = {Device::Kind::metal, 0}, .name = "M1"}, absent, emulated, native}}) {
    EXPECT_EQ(facts_of(Precision::fp32, row.unit).support, native);
    EXPECT_EQ(facts_of(Precision::fp32, row.unit).warning, "");
    EXPECT_EQ(facts_of(Precision::tf32, row.unit).support, row.tf32) << row.unit.name << row.unit.capability;
    EXPECT_EQ(facts_of(Precision::bf16, row.unit).support, row.bf16) << row.unit.name << row.unit.capability;
    EXPECT_EQ(facts_of(Precision::fp16, row.unit).support, row.fp16) << row.unit.name << row.unit.capability;
    EXPECT_TRUE(facts_of(Precision::fp16, row.unit).unstable);
    EXPECT_FALSE(facts_of(Precision::bf16, row.unit).unstable);
  }
}

TEST(Precision, WarningsIncludeTheMeasuredFigure) {
  EXPECT_EQ(facts_of(Precision::bf16, cpu(), rates({{Precision::fp32, 100}, {Precision::bf16, 60}})).warning,
            "bf16 has no native unit on this CPU: expect 0.60×, measured");
  EXPECT_TRUE(mentions(facts_of(Precision::bf16, cpu()).warning, "not been measured yet"));
  EXPECT_EQ(facts_of(Precision::bf16, cpu(true)).warning, "");
  EXPECT_EQ(choose_precision("fp16", Fallback::allow, gpu(90)).notices, std::vector<std::string>{kFp16Range});
  EXPECT_TRUE(mentions(facts_of(Precision::bf16, gpu(90), rates({{Precision::fp32, 100}, {Precision::bf16, 80}})).warning, "slower than fp32"));
}

TEST(Precision, IgnoresNonsensicalRates) {
  for (double nonsense : {0.0, -1.0}) {
    EXPECT_FALSE(facts_of(Precision::bf16, cpu(), rates({{Precision::fp32, nonsense}, {Precision::bf16, 60}})).speed);
    EXPECT_FALSE(facts_of(Precision::bf16, cpu(), rates({{Precision::fp32, 60}, {Precision::bf16, nonsense}})).speed);
  }
  EXPECT_FALSE(facts_of(Precision::bf16, cpu(), rates({{Precision::bf16, 60}})).speed);
}

TEST(Precision, RequestsAreHonouredWithAWarning) {
  const PrecisionChoice choice = choose_precision("bf16", Fallback::forbid, cpu());
  EXPECT_EQ(choice.precision, Precision::bf16);
  EXPECT_FALSE(choice.fell_back);
  EXPECT_EQ(choice.notices.size(), 1u);
  EXPECT_TRUE(choose_precision("fp32", Fallback::allow, cpu()).notices.empty());
}

TEST(Precision, UnavailableFormatsFallBackOrFail) {
  const PrecisionChoice choice = choose_precision("tf32", Fallback::allow, cpu());
  EXPECT_EQ(choice.precision, Precision::fp32);
  EXPECT_TRUE(choice.fell_back);
  EXPECT_EQ(choice.notices.size(), 2u);
  EXPECT_EQ(error_of([] { choose_precision("tf32", Fallback::forbid, cpu()); }).code(), ErrorCode::unsupported);
  EXPECT_EQ(choose_precision("tf32", Fallback::forbid, gpu(80)).precision, Precision::tf32);
}

TEST(Precision, AutoUsesMeasurements) {
  using enum Precision;
  struct Row {
    ArithmeticUnit unit;
    std::map<Precision, double> table;
    Precision expected;
  };
  for (const Row& row :
       {Row{gpu(90), {}, bf16}, Row{gpu(80), {{fp32, 50}}, bf16}, Row{gpu(90), {{bf16, 700}}, bf16}, Row{gpu(75), {}, fp16}, Row{gpu(61), {}, fp32},
        Row{gpu(90), {{fp32, 50}, {tf32, 350}, {bf16, 700}, {fp16, 720}}, bf16}, Row{gpu(90), {{fp32, 50}, {tf32, 350}, {fp16, 720}}, tf32},
        Row{gpu(75), {{fp32, 8}, {bf16, 6}, {fp16, 50}}, fp16},
        Row{gpu(75), {{fp32, 8}, {tf32, 80}, {bf16, 6}}, fp16},  // it has no tf32, whatever the table says
        Row{cpu(), {{fp32, 100}, {bf16, 60}}, fp32}, Row{cpu(), {{fp32, 100}, {bf16, 114}}, fp32}, Row{cpu(true), {{fp32, 100}, {bf16, 180}}, bf16}}) {
    const PrecisionChoice choice = choose_precision("auto", Fallback::forbid, row.unit, rates(row.table));
    EXPECT_EQ(choice.precision, row.expected) << name(choice.precision) << ": " << choice.reason;
    EXPECT_FALSE(choice.reason.empty());
    EXPECT_FALSE(choice.fell_back);
  }
  EXPECT_TRUE(mentions(choose_precision("auto", Fallback::allow, cpu(), rates({{fp32, 100}, {bf16, 60}})).runner_up, "0.60×"));
  EXPECT_TRUE(mentions(choose_precision("auto", Fallback::allow, cpu()).reason, "kernels of its own"));
  EXPECT_TRUE(mentions(choose_precision("auto", Fallback::allow, cpu(true)).reason, "measured here yet"));
}

TEST(Precision, UnitsComeFromTheScan) {
  GpuScan scan;
  scan.gpus = {{.vendor = Gpu::Vendor::nvidia, .name = "Old", .ordinal = 0, .capability = 75},
               {.vendor = Gpu::Vendor::nvidia, .name = "New", .ordinal = 1, .capability = 90}};
  EXPECT_EQ(arithmetic_of({Device::Kind::cuda, 1}, scan).capability, 90);
  EXPECT_EQ(arithmetic_of({Device::Kind::cuda, 1}, scan).name, "New");
  EXPECT_EQ(arithmetic_of({}, scan).name, "this CPU");
  EXPECT_EQ(arithmetic_of({}, scan).capability, 0);
}

}  // namespace
}  // namespace ridge
