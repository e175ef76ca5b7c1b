"""Screenshots of installed documentation with boxes of its controls: examples/pages, made again.

    vlrl capture player dialog --viewport 448x448 360x540 540x360 400x400 --scale 0.5 --per-screen 3 --train 252 \
        --test 0 --languages en --seed 1 --out data/held_out_pages
    python scripts/capture_docs.py examples/pages --and data/held_out_pages

Pages of libffi, libxslt and Node.js (MIT), of npm (Artistic-2.0) and of two Rust books (MIT or Apache-2.0), as Debian
and rustup install them, light and dark, in windows of three sizes. What is asked for are controls: names that occur on
at least `RECURRING` screenshots. Links within a text are not. vlrl's own pages `player` and `dialog` join them.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image

from tasks.web import browser
from tasks.web.capture import askable, read_elements
from vlrl.types import UserError

DOC, RUST = Path("/usr/share/doc"), Path.home() / ".rustup/toolchains/stable-x86_64-unknown-linux-gnu/share/doc/rust"
SITES = {  # name: folder, pages
    "npm": (Path("/usr/lib/node_modules/npm/docs/output"), 60),
    "libxslt": (DOC / "libxslt1-dev/gtk-doc", 26),
    "libffi": (DOC / "libffi8/html", 20),
    "node": (DOC / "nodejs/api", 17),
    "book": (RUST / "html/book", 10),
    "nomicon": (RUST / "html/nomicon", 8),
}
WINDOWS = (((448, 448), 1.0), ((640, 440), 0.75), ((900, 600), 0.5))  # CSS pixels; pixels of the screenshot to one
RECURRING, MOST = 6, 5  # screenshots that show a name; questions of a screenshot
LARGEST = 60_000  # bytes of a page: some hold a whole book
DARKEN = """
const root = document.documentElement;
root.classList.add("dark-mode"); // Node.js
if (root.classList.replace("light", "navy")) root.style.colorScheme = "dark"; // mdBook
"""


def choose_pages(rng: np.random.Generator) -> list[tuple[str, Path]]:
    """(site, file), each page once, so many of a site as `SITES` says."""
    chosen = []
    for site, (folder, count) in SITES.items():
        files = sorted(file for file in folder.rglob("*.html") if file.stat().st_size < LARGEST)
        chosen += [(site, files[i]) for i in rng.permutation(len(files))[:count]]
    return [chosen[i] for i in rng.permutation(len(chosen))]


def capture(out: Path, pages: list[tuple[str, Path]], rng: np.random.Generator) -> list[dict]:
    """Screenshots in `out`/images, and a row for every element that one instruction leads to."""
    chrome, rows = browser.launch(WINDOWS[0][0]), []
    try:
        for number, (site, file) in enumerate(pages):
            size, scale = WINDOWS[number % len(WINDOWS)]
            browser.resize(chrome, size, scale)
            try:
                browser.visit(chrome, file.as_uri())
            except UserError as error:  # a busy machine
                print(error)
                continue
            if rng.random() < 0.35:
                chrome.execute_script(DARKEN)
            _, elements = read_elements(chrome, scale)
            png = base64.b64decode(chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"])
            name = f"images/{number:03d}.webp"
            Image.open(io.BytesIO(png)).convert("RGB").save(out / name, quality=60, method=6)
            rows += [{"image": name, "instruction": each.instruction, "box": each.box, "kind": each.kind, "site": site}
                     for each in askable(elements)[0]]  # fmt: skip
    finally:
        browser.end(chrome)
    return rows


def choose_rows(rows: list[dict], rng: np.random.Generator) -> list[dict]:
    """Of each screenshot at most `MOST` of the controls that recur."""
    counts = Counter(row["instruction"] for row in rows)
    chosen = []
    for image in dict.fromkeys(row["image"] for row in rows):
        own = [row for row in rows if row["image"] == image and counts[row["instruction"]] >= RECURRING]
        chosen += [own[i] for i in sorted(rng.permutation(len(own))[:MOST])]
    return chosen


def read_pages(folder: Path, out: Path) -> list[dict]:
    """The rows of a folder that `vlrl capture` wrote, with their screenshots as WebP."""
    rows = []
    for line in (folder / "train.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        name = f"images/{row['page']}_{Path(row['image']).stem}.webp"
        Image.open(folder / row["image"]).convert("RGB").save(out / name, quality=70, method=6)
        rows.append({"image": name, "site": row["page"]} | {key: row[key] for key in ("instruction", "box", "kind")})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--and", dest="pages", type=Path, metavar="DIR", help="a folder that `vlrl capture` wrote")
    options, rng = parser.parse_args(), np.random.default_rng(0)
    (options.out / "images").mkdir(parents=True)
    rows = capture(options.out, choose_pages(rng), rng)
    chosen = choose_rows(rows, rng) + (read_pages(options.pages, options.out) if options.pages else [])
    (options.out / "clicks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in chosen))
    for image in set((options.out / "images").iterdir()) - {options.out / row["image"] for row in chosen}:
        image.unlink()
    print(f"{len(chosen)} questions on {len({row['image'] for row in chosen})} screenshots of {len(rows)} elements")
    print(Counter(row["instruction"] for row in chosen).most_common())


if __name__ == "__main__":
    main()
