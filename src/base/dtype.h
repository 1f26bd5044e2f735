#pragma once
#include "ridge/dtype.h"
