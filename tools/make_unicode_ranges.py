#!/usr/bin/env python3
"""Writes src/data/unicode_ranges.h: the letters and numbers of Unicode as ranges, from Python's own tables.

usage: tools/make_unicode_ranges.py > src/data/unicode_ranges.h

The Unicode version is that of the Python that runs it; the committed file was made with 14.0.
"""
import sys
import unicodedata

PER_LINE = 8


def ranges(initial):
    """Code points whose general category begins with `initial`, as [first, last] pairs in order."""
    found = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code))[0] != initial:
            continue
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found


def array(name, pairs):
    items = [f"{{0x{first:04x}, 0x{last:04x}}}" for first, last in pairs]
    lines = [", ".join(items[i : i + PER_LINE]) for i in range(0, len(items), PER_LINE)]
    return f"inline constexpr CodeRange {name}[] = {{\n    " + ",\n    ".join(lines) + "};\n"


print(f"""// Letters (general category L) and numbers (N) of Unicode {unicodedata.unidata_version}, in order. Written by tools/make_unicode_ranges.py.
#pragma once

namespace ridge {{

struct CodeRange {{
  char32_t first, last;
}};

// clang-format off
{array("kLetters", ranges("L"))}
{array("kNumbers", ranges("N"))}// clang-format on

}}  // namespace ridge""")
