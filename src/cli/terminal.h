#pragma once
#include "base/terminal.h"
