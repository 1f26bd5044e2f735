"""The tables of docs/benchmarks.md, rendered from docs/benchmarks/*.json for `tools/versus --page`.

In the page, a table stands between the lines "<!-- table: NAME -->" and "<!-- end -->"; the text around it is written by hand. NAME.json has

  command, machine, build, date   what was run, where, when; machine is one of the page's list
  note        about how the figures are stored: "medians and ranges of 5 processes; their samples were not kept"; empty if all rows have samples
  columns     {"key": "ridge", "head": "Ridge ms", "from": "ridge_us", "scale": 0.001}; the first is the row's name
  rows        a cell for each column's key, and "notes", which become footnotes; machine, build and date where they differ from the table's

A cell is text, a number (shown with the digits that it is written with), {"median": …, "low": …, "high": …} or {"low": …, "high": …}. Without a cell, a
column is made from the row's raw "samples" under the name "from": the median over processes and their range; a list of lists has the samples of each process.
A column with "ratio": ["rival", "ridge"] divides two other columns, process by process where both have samples of as many processes.
"""
import json
import math
import os
import re
import statistics
from decimal import Decimal

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KEPT_SAMPLES = 20  # of each process


class PageError(Exception):
    pass


def median_interval(values):
    """Confidence bounds from order statistics: the narrowest symmetric pair that covers the median with at least 95 % probability."""
    ordered, n = sorted(values), len(values)
    cut, tail = 0, 0.0
    for k in range(n // 2):
        tail += math.comb(n, k) * 0.5**n
        if 2 * tail > 0.05:
            break
        cut = k + 1
    low = max(cut - 1, 0)
    return ordered[low], ordered[n - 1 - low]


def written(number, digits=3):
    """A number as text: one from JSON as it is written there, a computed one with this many significant digits."""
    if isinstance(number, (int, Decimal)):
        return f"{number:,}"
    if number == 0 or not math.isfinite(number):
        return "0" if number == 0 else "–"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(number))))
    return f"{round(number, digits - 1 - math.floor(math.log10(abs(number)))):,.{decimals}f}"


def figure(cell):
    if isinstance(cell, str):
        return cell
    if isinstance(cell, (int, float, Decimal)):
        return written(cell)
    span = f"{written(cell['low'])}–{written(cell['high'])}" if "low" in cell else ""
    return f"{written(cell['median'])} ({span})" if span and "median" in cell else span or written(cell["median"])


def middle(cell):
    """The figure of a cell that ratios are made of."""
    if isinstance(cell, (int, float, Decimal)):
        return float(cell)
    return float(cell["median"]) if isinstance(cell, dict) and "median" in cell else None


def processes(row, column):
    """One figure per process from the row's raw samples."""
    values = row.get("samples", {}).get(column.get("from"), [])
    scale = float(column.get("scale", 1))
    return [scale * float(statistics.median(v) if isinstance(v, list) else v) for v in values]


def spread(values):
    cell = {"median": statistics.median(values)}
    if len(values) > 1:
        cell["low"], cell["high"] = min(values), max(values)
    return cell


def cell_of(table, row, column):
    if column["key"] in row:
        return row[column["key"]]
    if "ratio" in column:
        above, below = (next(c for c in table["columns"] if c["key"] == key) for key in column["ratio"])
        a, b = processes(row, above), processes(row, below)
        if a and len(a) == len(b):
            ratios = [x / y for x, y in zip(a, b)]
            cell = {"median": statistics.median(ratios)}
            if len(ratios) > 1:
                cell["low"], cell["high"] = median_interval(ratios)
            return cell
        a, b = middle(cell_of(table, row, above)), middle(cell_of(table, row, below))
        return "" if a is None or b is None else {"median": a / b}
    values = processes(row, column)
    return spread(values) if values else ""


def facts(table, row=None):
    machine, build, date = (str((row or table).get(key, table[key])) for key in ("machine", "build", "date"))
    return f"{machine} · {build}" if build.endswith(date) else f"{machine} · {build} · {date}"


def note_numbers(table):
    """Every footnote of the table, numbered by its first row; a row measured elsewhere or at another time has one more."""
    notes = []
    for row in table["rows"]:
        own = [facts(table, row)] if facts(table, row) != facts(table) else []
        row_notes = row.get("notes", []) + own
        notes += [note for note in row_notes if note not in notes]
        row["numbers"] = [notes.index(note) + 1 for note in row_notes]
    return notes


def render(table):
    columns = table["columns"]
    notes = note_numbers(table)
    lines = ["| " + " | ".join(c["head"] for c in columns) + " |", "|" + "---|" * len(columns)]
    for row in table["rows"]:
        cells = [figure(cell_of(table, row, c)).replace("|", "\\|") for c in columns]
        if row["numbers"]:
            cells[0] += " <sup>" + ", ".join(map(str, row["numbers"])) + "</sup>"
        lines.append("| " + " | ".join(cells) + " |")
    lines.append("")
    lines += [f"<sup>{number + 1}</sup> {note}  " for number, note in enumerate(notes)]
    command = f" · `{table['command']}`" if table.get("command") else ""
    lines.append(f"<sup>{facts(table)} · {table.get('note') or 'raw samples in the file'}{command} · [{table['name']}.json](benchmarks/{table['name']}.json)</sup>")
    return "\n".join(lines)


def load(folder, name):
    path = os.path.join(folder, "benchmarks", name + ".json")
    try:
        with open(path, encoding="utf-8") as file:
            table = json.load(file, parse_float=Decimal)
    except FileNotFoundError:
        raise PageError(f"{path} is missing; add it, or remove the table '{name}' from the page") from None
    except json.JSONDecodeError as error:
        raise PageError(f"{path} is not JSON: {error}") from None
    table["name"] = name
    known = {c.get("key") for c in table.get("columns", [])} | {"samples", "name", "notes", "machine", "build", "date"}
    for key in ("machine", "build", "date", "columns", "rows"):
        if not table.get(key):
            raise PageError(f"{path} has no '{key}'")
    for row in table["rows"]:
        if unknown := set(row) - known:
            raise PageError(f"{path}: the row {row.get(table['columns'][0]['key'])} has '{sorted(unknown)[0]}', which is not a column")
        if not table.get("note") and not row.get("samples"):
            raise PageError(f"{path}: the row {row.get(table['columns'][0]['key'])} has no samples, and the table no 'note' that says why")
    return table


MARK = re.compile(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->", re.S)


def rendered(folder):
    """The page with every table rendered again, and the names of its tables."""
    with open(os.path.join(folder, "benchmarks.md"), encoding="utf-8") as file:
        text = file.read()
    names = MARK.findall(text)
    if len(names) != text.count("<!-- table:") or len(set(names)) != len(names):
        raise PageError('every table of benchmarks.md needs its own name and a line "<!-- end -->"')
    machines = re.findall(r"^\| (\w+): ", text, re.M)
    unused = {f[:-5] for f in os.listdir(os.path.join(folder, "benchmarks")) if f.endswith(".json")} - set(names)
    if unused:
        raise PageError(f"benchmarks.md does not show {sorted(unused)[0]}.json; add the lines <!-- table: {sorted(unused)[0]} --> and <!-- end -->")
    bare = MARK.sub("", text)
    if found := re.search(r"^\|.*\d.*\|$", bare.split("<!-- tables -->")[-1], re.M):
        raise PageError(f"benchmarks.md has figures outside its rendered tables: {found.group(0)[:60]}")
    tables = {name: load(folder, name) for name in names}
    for table in tables.values():
        for row in [table, *table["rows"]]:
            if row.get("machine", table["machine"]) not in machines:
                raise PageError(f"{table['name']}.json: the machine '{row['machine']}' is not one of the page's: {', '.join(machines)}")
    return text, MARK.sub(lambda m: f"<!-- table: {m.group(1)} -->\n{render(tables[m.group(1)])}\n<!-- end -->", text), names


def thinned(values):
    """At most KEPT_SAMPLES of a process, evenly chosen, with five significant digits."""
    step = max(1, -(-len(values) // KEPT_SAMPLES))
    return [float(f"{v:.5g}") for v in values[::step]]


def measured_rows(path):
    """[(names, samples)] of a file written by `tools/versus --json` or `ridge bench --save`, and its build and date. names: the best first."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if text.startswith('{"ridge_bench"'):
        record = json.loads(text)
        rows = []
        for row in record["rows"]:
            facts, rounds = row["facts"], row["rounds"]
            samples = {"times_us": [thinned(r["times_us"]) for r in rounds]}
            if all(r["roof"] > 0 for r in rounds):
                samples["roof"] = [float(f"{r['roof']:.4g}") for r in rounds]
            medians = [statistics.median(r["times_us"]) for r in rounds]
            for key in ("tokens_s", "steps_s", "units_s"):  # the facts are those of the first process
                if facts.get(key):
                    samples[key] = [float(f"{facts[key] * medians[0] / m:.5g}") for m in medians]
            number_format = facts.get("precision", facts.get("dtype", ""))
            rows.append(([f"{facts['name']}, batch {facts.get('batch')}, {number_format}", f"{facts['name']} {number_format}", facts["name"]], samples))
        return rows, {"build": record["build"], "date": record["date"][:10]}
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    if not lines or "ridge_us" not in lines[0]:
        raise PageError(f"{path} is neither a file of ridge bench --save nor the output of tools/versus --json")
    rows = [([line["name"]], {peer: [float(f"{v:.5g}") for v in line[peer]] for peer in ("ridge_us", "rival_us")}) for line in lines]
    return rows, {"build": f"{lines[0]['versions']['ridge']}, rival {lines[0]['versions']['rival']}", "date": lines[0].get("date", "")}


def find_row(table, names):
    """The row with one of these names in its first cell, or the only one that begins with the last; none: a new row."""
    first = table["columns"][0]["key"]
    cells = [str(row[first]).replace("`", "") for row in table["rows"]]
    for name in names:
        if name in cells:
            return table["rows"][cells.index(name)]
    near = [i for i, cell in enumerate(cells) if re.match(re.escape(names[-1]) + "[ ,]", cell)]
    if len(near) > 1:
        raise PageError(f"several rows of {table['name']} begin with {names[-1]}: {cells[near[0]]}; {cells[near[1]]}. Put the samples into the file by hand")
    return table["rows"][near[0]] if near else None


class Numbers(json.JSONEncoder):
    """Writes Decimals with their own digits."""

    def encode(self, value):
        if isinstance(value, Decimal):
            return str(value)
        if isinstance(value, dict):
            return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {self.encode(v)}" for k, v in value.items()) + "}"
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(map(self.encode, value)) + "]"
        return json.dumps(value, ensure_ascii=False)


def text_of(table):
    encode = Numbers().encode
    lines = [f"  {encode(key)}: {encode(value)}" for key, value in table.items() if key not in ("name", "columns", "rows")]
    for key in ("columns", "rows"):
        items = [{k: v for k, v in item.items() if k != "numbers"} for item in table[key]]
        lines.append(f"  \"{key}\": [\n" + ",\n".join("    " + encode(item) for item in items) + "\n  ]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def add(folder, name, path, machine):
    """Replaces the figures of rows by those of a measurement, and appends rows that are new."""
    table = load(folder, name)
    rows, measured = measured_rows(path)
    for names, samples in rows:
        row = find_row(table, names)
        if row is None:
            row = {table["columns"][0]["key"]: f"`{names[-1]}`"}
            table["rows"].append(row)
        for column in table["columns"][1:]:  # figures of an earlier measurement go
            if column.get("from") in samples or "ratio" in column:
                row.pop(column["key"], None)
        row["samples"] = samples
        row.update({k: v for k, v in {"machine": machine, **measured}.items() if v})
    with open(os.path.join(folder, "benchmarks", name + ".json"), "w", encoding="utf-8") as file:
        file.write(text_of(table))
    return len(rows)


def command(options):
    """tools/versus --page [--check] [--add TABLE FILE]: returns the exit code."""
    folder = os.path.join(options.root or ROOT, "docs")
    try:
        if options.add:
            print(f"versus: {add(folder, *options.add, options.machine)} rows written to docs/benchmarks/{options.add[0]}.json")
        before, after, names = rendered(folder)
    except PageError as error:
        print(f"versus: {error}")
        return 1
    if before == after:
        print(f"versus: docs/benchmarks.md shows {len(names)} tables as they are in docs/benchmarks")
        return 0
    if options.check:
        old, new = before.split("\n"), after.split("\n")
        line = next((i for i, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
        print(f"versus: docs/benchmarks.md differs from docs/benchmarks in line {line + 1}; run tools/versus --page\n  page: {old[line] if line < len(old) else ''}\n  JSON: {new[line] if line < len(new) else ''}")
        return 1
    with open(os.path.join(folder, "benchmarks.md"), "w", encoding="utf-8") as file:
        file.write(after)
    print("versus: docs/benchmarks.md rendered")
    return 0
