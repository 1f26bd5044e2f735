#pragma once
#include "ridge/shape.h"
