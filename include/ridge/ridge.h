// Includes all public headers of Ridge.
#pragma once
#include "ridge/circuits.h"
#include "ridge/device.h"
#include "ridge/host_environment.h"
#include "ridge/nn.h"
#include "ridge/ops.h"
#include "ridge/profiler.h"
#include "ridge/rl.h"
#include "ridge/step.h"
#include "ridge/tensor.h"
#include "ridge/trainer.h"
#include "ridge/training.h"
