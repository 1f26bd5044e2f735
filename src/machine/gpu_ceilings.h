// Measured values, and the measured ceilings of GPUs.
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
  std::string variant = {};  // the fastest variant
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
  Measured copy_gbs = {};                       // in device memory; bytes read plus bytes written
  Measured launch_us = {}, round_trip_us = {};  // back-to-back kernels; from a launch until the host sees it finish
  Measured upload_pageable_gbs = {}, upload_pinned_gbs = {}, download_pageable_gbs = {}, download_pinned_gbs = {};
  std::vector<std::string> remarks = {};  // what could not be measured, and why

  const Rate* fastest() const;  // null: no matmul was measured
};

struct GpuFindings {
  std::vector<GpuCeilings> gpus = {};
  std::string none = {};  // why there is none; otherwise empty
};

using GpuProbe = std::function<GpuFindings(bool quick)>;  // for all GPUs of one backend

}  // namespace ridge
