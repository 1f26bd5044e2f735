"""The table of rooms in docs/architecture.md, for the tools that check and draw it."""
import os
import re
import sys

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read_rows():
    """[(names of the rooms in a row, subject)], lowest layer first, from the table below the heading 'Rooms'."""
    rows, seen = [], set()
    with open(os.path.join(root, "docs", "architecture.md"), encoding="utf-8") as file:
        text = file.read().split("\n## Rooms\n", 1)[1].split("\n## ", 1)[0]
    for line in text.split("\n"):
        if not line.startswith("| `"):
            continue
        cells = line.split("|")
        names = re.findall(r"`([\w/]+)`", cells[1])
        for name in names:
            if name in seen:
                sys.exit(f"docs/architecture.md lists the room {name} twice")
            seen.add(name)
        rows.append((names, cells[2].strip()))
    return rows
