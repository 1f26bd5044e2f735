#pragma once
#include "ridge/error.h"
