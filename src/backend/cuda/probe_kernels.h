// The probe's kernels as PTX text, which every driver compiles for its own chip, so that no compiler is needed.
#pragma once

namespace ridge::cuda {

constexpr unsigned kProbeThreads = 256;      // per block
constexpr unsigned kCopyBlockBytes = 16384;  // moved by a block of probe_copy: four times 16 bytes per thread

// probe_nothing()
// probe_copy(to, from): one block per kCopyBlockBytes
// probe_fill(to, sort): 32 random bits per thread, as numbers between -1 and 1: one f32 (sort 0), two bf16 (1) or two f16 (2)
constexpr const char kProbePtx[] = R"(
.version 6.3
.target sm_75
.address_size 64

.visible .entry probe_nothing() { ret; }

.visible .entry probe_copy(.param .u64 to, .param .u64 from) {
  .reg .b32 %block, %thread, %bytes;
  .reg .b64 %to, %from, %at, %lane;
  .reg .b32 %x<16>;
  ld.param.u64 %to, [to];
  ld.param.u64 %from, [from];
  cvta.to.global.u64 %to, %to;
  cvta.to.global.u64 %from, %from;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mul.wide.u32 %at, %block, 16384;
  mul.wide.u32 %lane, %thread, 16;
  add.u64 %at, %at, %lane;
  add.u64 %to, %to, %at;
  add.u64 %from, %from, %at;
  ld.global.nc.v4.u32 {%x0, %x1, %x2, %x3}, [%from];
  ld.global.nc.v4.u32 {%x4, %x5, %x6, %x7}, [%from + 4096];
  ld.global.nc.v4.u32 {%x8, %x9, %x10, %x11}, [%from + 8192];
  ld.global.nc.v4.u32 {%x12, %x13, %x14, %x15}, [%from + 12288];
  st.global.v4.u32 [%to], {%x0, %x1, %x2, %x3};
  st.global.v4.u32 [%to + 4096], {%x4, %x5, %x6, %x7};
  st.global.v4.u32 [%to + 8192], {%x8, %x9, %x10, %x11};
  st.global.v4.u32 [%to + 12288], {%x12, %x13, %x14, %x15};
  ret;
}

.visible .entry probe_fill(.param .u64 to, .param .u32 sort) {
  .reg .b32 %block, %thread, %sort, %x, %y, %t;
  .reg .b64 %to, %at;
  .reg .b16 %low, %high;
  .reg .f32 %f, %g;
  .reg .pred %is;
  ld.param.u64 %to, [to];
  ld.param.u32 %sort, [sort];
  cvta.to.global.u64 %to, %to;
  mov.u32 %block, %ctaid.x;
  mov.u32 %thread, %tid.x;
  mad.lo.u32 %x, %block, 256, %thread;
  mul.wide.u32 %at, %x, 4;
  add.u64 %to, %to, %at;
  mul.lo.u32 %x, %x, 0x9E3779B1;
  shr.u32 %t, %x, 16;
  xor.b32 %x, %x, %t;
  mul.lo.u32 %x, %x, 0x85EBCA6B;
  shr.u32 %t, %x, 13;
  xor.b32 %x, %x, %t;
  mul.lo.u32 %x, %x, 0xC2B2AE35;
  shr.u32 %t, %x, 16;
  xor.b32 %x, %x, %t;
  mul.lo.u32 %y, %x, 0x27D4EB2F;
  shr.u32 %t, %y, 15;
  xor.b32 %y, %y, %t;
  cvt.rn.f32.s32 %f, %x;
  cvt.rn.f32.s32 %g, %y;
  mul.f32 %f, %f, 0f30000000;
  mul.f32 %g, %g, 0f30000000;
  setp.eq.u32 %is, %sort, 0;
  @%is bra whole;
  setp.eq.u32 %is, %sort, 1;
  @%is bra brain;
  cvt.rn.f16.f32 %low, %f;
  cvt.rn.f16.f32 %high, %g;
  mov.b32 %x, {%low, %high};
  st.global.u32 [%to], %x;
  ret;
brain:
  mov.b32 %x, %f;
  mov.b32 %y, %g;
  shr.u32 %x, %x, 16;
  and.b32 %y, %y, 0xFFFF0000;
  or.b32 %x, %x, %y;
  st.global.u32 [%to], %x;
  ret;
whole:
  st.global.f32 [%to], %f;
  ret;
}
)";

}  // namespace ridge::cuda
