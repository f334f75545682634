#!/usr/bin/env python3
"""Makes the pictures of README.md from dated results. usage: pictures.py OUT-DIR   (committed: docs/pictures)

What a picture shows stands in the files that SOURCES names, and nowhere else. crates/ccfs/tests/pictures.rs checks that the
committed pictures are what this script makes.
"""

import json
import math
import pathlib
import sys
from html import escape

TOP = pathlib.Path(__file__).resolve().parent.parent
SOURCES = {
    "crash": "docs/results/2026-11-27-cut.json",
    "rates": "docs/results/2026-11-24-standard.md",
}
WIDTH = 860

# Of a page in light and in dark mode. A picture brings its background: a viewer's mode need not be that of the page around it.
STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", Arial, sans-serif; font-size: 13px; fill: #1f2328; }
  .page { fill: #ffffff; stroke: #d1d9e0; }
  .title { font-size: 18px; font-weight: 600; }
  .head { font-size: 15px; font-weight: 600; }
  .small { font-size: 12px; }
  .soft { fill: #59636e; }
  .track { fill: #eaeef2; }
  .line { stroke: #59636e; stroke-width: 1; }
  .grid { stroke: #d1d9e0; stroke-width: 1; }
  .good { fill: #0969da; }
  .other { fill: #1a7f5a; }
  .bad { fill: #d9730d; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .page { fill: #0d1117; stroke: #3d444d; }
    .soft { fill: #9aa4af; }
    .track { fill: #2a313b; }
    .line { stroke: #9aa4af; }
    .grid { stroke: #3d444d; }
    .good { fill: #58a6ff; }
    .other { fill: #3fb98a; }
    .bad { fill: #f0883e; }
  }
"""


class Picture:
    """An SVG file, from top to bottom."""

    def __init__(self, title: str, description: str):
        self.title, self.description = title, description
        self.parts: list[str] = []

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start"):
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>')

    def bar(self, x: float, y: float, width: float, height: float, style: str):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{height:g}" class="{style}"/>')

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str):
        self.parts.append(f'<line x1="{x1:.1f}" y1="{y1:g}" x2="{x2:.1f}" y2="{y2:g}" class="{style}"/>')

    def svg(self, height: int) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
            'role="img" aria-labelledby="title description">'
        )
        page = f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8" class="page"/>'
        named = [
            f'<title id="title">{escape(self.title)}</title>',
            f'<desc id="description">{escape(self.description)}</desc>',
        ]
        return "\n".join([head, *named, f"<style>{STYLE}</style>", page, *self.parts, "</svg>"]) + "\n"


def is_prefix(left: dict) -> bool:
    """As Left::is_prefix in verify/tests/src/cut."""
    lines, settings, done = left["journal_lines"], left["settings"] or 0, left["done_files"]
    return (
        left["journal_rest"] == 0
        and left["done_whole"] == done
        and lines - 1 <= settings <= lines
        and settings - 1 <= done <= settings
        and lines - 1 <= done
    )


def left_in_words(name: str, after: int, left: dict) -> str:
    return (
        f"{name}, cut after {after} s in step {left['last_step']}: {left['journal_lines']} lines of the journal, "
        f"{left['done_files']} files done.N, {left['done_files'] - left['done_whole']} of them empty."
    )


def crash() -> str:
    """What is left of one program's files after the same cut, on ext4 and on ccfs."""
    found = json.loads((TOP / SOURCES["crash"]).read_text(encoding="utf-8"))
    rounds = found["rounds"]
    words = [left_in_words(name, r["cut_after_s"], r[name]) for name in ("ext4", "ccfs") for r in rounds]
    out = Picture("A program that never syncs is cut off: what is left of its files", " ".join(words))
    out.text(24, 36, out.title, "title")
    out.text(24, 60, "A step appends line N to a journal, and then makes a file done.N, which says: line N is in the journal.", "soft")
    out.text(24, 78, "Both file systems are stopped by the same call at the same moment, and mounted again.", "soft")
    first, row, width, bar = 128, 46, 215, 13
    out.text(70, 110, "cut after", "small soft", "end")
    for name, x in (("ext4", 84), ("ccfs", 500)):
        kept = sum(is_prefix(r[name]) for r in rounds)
        out.text(x, 110, name, "head")
        out.text(x + 44, 110, f"files and journal agree after {kept} of {len(rounds)} cuts", "small soft")
        for n, r in enumerate(rounds):
            left, y = r[name], first + n * row
            share = width / left["last_step"]
            empty = left["done_files"] - left["done_whole"]
            if name == "ext4":
                out.text(70, y + 12, f"{r['cut_after_s']} s", "", "end")
            for line in range(2):
                out.bar(x, y + line * (bar + 3), width, bar, "track")
            out.bar(x, y, left["done_whole"] * share, bar, "good")
            out.bar(x + left["done_whole"] * share, y, empty * share, bar, "bad")
            out.bar(x, y + bar + 3, left["journal_lines"] * share, bar, "other")
            files = f"{left['done_files']} files" + (f", {empty} empty" if empty else "")
            out.text(x + width + 8, y + 11, files, "small")
            out.text(x + width + 8, y + bar + 14, f"{left['journal_lines']} lines", "small")
    y = first + len(rounds) * row + 10
    x = 24
    for style, label in (
        ("good", "files done.N"),
        ("bad", "files done.N that are empty"),
        ("other", "lines of the journal"),
        ("track", "up to the step in which it was cut"),
    ):
        out.bar(x, y - 11, 14, 13, style)
        out.text(x + 20, y, label, "small")
        x += 48 + round(6.2 * len(label))
    out.text(24, y + 26, f"{found['date'][:10]}, {found['kernel']}, default mount options. All figures: {SOURCES['crash'][:-5]}.md", "small soft")
    return out.svg(y + 44)


# Title of a group, and its rows: label, workload and system of the result's tables.
RATES = [
    ("Server workloads", [
        ("mail server (varmail)", "varmail", "ccfs"),
        ("random writes (randwrite)", "randwrite", "ccfs"),
        ("many small files (createfiles)", "createfiles", "ccfs"),
        ("sequential writes (seqwrite)", "seqwrite", "ccfs"),
        ("file server (fileserver)", "fileserver", "ccfs"),
        ("web server (webserver)", "webserver", "ccfs"),
    ]),
    ("Programs, with all the syncs that a power cut asks for", [
        ("Git", "table4/git", "ccfs"),
        ("SQLite", "table4/sqlite", "ccfs"),
        ("LevelDB", "table4/leveldb", "ccfs"),
    ]),
    ("The same programs, syncs ignored on ccfs only: order stays, the newest work can be lost", [
        ("Git", "table4/git", "ccfs+ignore-fsync"),
        ("SQLite", "table4/sqlite", "ccfs+ignore-fsync"),
        ("LevelDB", "table4/leveldb", "ccfs+ignore-fsync"),
    ]),
    ("An fsync of one byte beside 100 MB that another program did not sync", [
        ("both in one stream", "table3/append", "ccfs"),
        ("each in a stream of its own", "table3/append", "ccfs+streams"),
    ]),
]


def ratios() -> dict[tuple[str, str], str]:
    """(workload, system) to the cell "to ext4"."""
    rows = (TOP / SOURCES["rates"]).read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows if row.startswith("| ")]
    return {(c[0], c[1]): c[4] for c in cells if len(c) > 7}


def rates() -> str:
    """Rates of ccfs over those of ext4: gains and losses."""
    found = ratios()
    rows = [(label, found[workload, system]) for _, rows in RATES for label, workload, system in rows]
    words = "; ".join(f"{label}: {ratio}" for label, ratio in rows)
    out = Picture("How fast: the rate of ccfs over that of ext4", f"A bar chart. 1 is the rate of ext4. {words}.")
    out.text(24, 36, out.title, "title")
    out.text(24, 60, "1 is ext4 on the same disk. Bars to the right: ccfs is faster. Bars to the left: it is slower.", "soft")
    low, high, x, width = 1 / 64, 4, 290, 460

    def place(ratio: float) -> float:
        return x + width * math.log(ratio / low) / math.log(high / low)

    y = 84
    marks = (1 / 64, 1 / 16, 1 / 4, 1, 4)
    for mark in marks:
        name = f"1/{round(1 / mark)}" if mark < 1 else f"{mark:g}"
        out.text(place(mark), y + 8, name, "small soft", "middle")
    y += 20
    for group, members in RATES:
        y += 20
        out.text(24, y, group, "head small")
        y += 8
        for mark in marks:
            out.line(place(mark), y, place(mark), y + 20 * len(members) - 4, "line" if mark == 1 else "grid")
        for label, workload, system in members:
            text = found[workload, system]
            ratio = float(text.split()[0])
            ends = sorted((place(1), place(ratio)))
            out.text(228, y + 12, label, "", "end")
            out.bar(ends[0], y + 1, ends[1] - ends[0], 14, "good" if ratio >= 1 else "bad")
            if ratio >= 1:
                out.text(round(ends[1] + 6), y + 12, text, "small")
            else:
                out.text(round(ends[0] - 6), y + 12, text, "small", "end")
            y += 20
    out.text(24, y + 28, "2026-11-24, 2 cores of an AMD EPYC; a flush of the disk takes 0.1 ms. The scale is logarithmic.", "small soft")
    out.text(24, y + 46, f"All figures: {SOURCES['rates']}", "small soft")
    return out.svg(y + 62)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, make in (("crash", crash), ("rates", rates)):
        path = pathlib.Path(sys.argv[1]) / f"{name}.svg"
        path.write_text(make(), encoding="utf-8")


if __name__ == "__main__":
    main()
