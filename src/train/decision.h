#pragma once
#include "base/decision.h"
