// What was measured, and what was measured of GPUs.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "base/precision.h"

namespace ridge {

struct Measured {
  double median = 0;
  double spread = 0;  // between the quartiles, as a fraction of the median
  int samples = 0;
  std::string variant = {};  // the way that won
};

Measured summarize(std::vector<double> samples);  // median and spread
std::string rate_text(double gflops);             // "790 TFLOP/s"
std::string bandwidth_text(double gbs);           // "4.24 TB/s"

struct GpuCeilings {
  struct Rate {
    Precision precision = Precision::fp32;
    Measured gflops;
  };
  std::string name = {};
  std::vector<Rate> matmul = {};
  Measured copy_gbs = {};                       // in its memory; bytes read and written
  Measured launch_us = {}, round_trip_us = {};  // a kernel after another; one from its launch until the host knows of its end
  Measured upload_pageable_gbs = {}, upload_pinned_gbs = {}, download_pageable_gbs = {}, download_pinned_gbs = {};
  std::vector<std::string> remarks = {};  // what could not be measured, and why

  const Rate* fastest() const;  // null: no matmul was measured
};

struct GpuFindings {
  std::vector<GpuCeilings> gpus = {};
  std::string none = {};  // why there is none; empty: there is one
};

using GpuProbe = std::function<GpuFindings(bool quick)>;  // of all GPUs of one backend

}  // namespace ridge
