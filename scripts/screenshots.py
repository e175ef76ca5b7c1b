"""Pictures of the pages that people look at: a run's report, `vlrl view` and the page of `vlrl serve-model`.

    vlrl train gui_grounding train.steps=60 eval.num_samples=128 out=runs/tour
    python scripts/screenshots.py runs/tour --out pictures     # and further runs, for `vlrl view`

Each page as NAME.png, NAME_dark.png and, 390 pixels wide, NAME_narrow.png. The model that is asked is the first run's.
"""

from __future__ import annotations

import argparse
import base64
import io
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, ImageChops

from tasks.gui_grounding import GuiGrounding
from tasks.web import browser
from vlrl.report.html import write_report
from vlrl.report.server import Viewer

LOOKS = {"": (1100, 1400, "light"), "_dark": (1100, 1400, "dark"), "_narrow": (390, 1400, "dark")}
TO_SAMPLES = "document.getElementById('rollouts').scrollIntoView({ behavior: 'instant' })"
PATIENCE = 300  # seconds: other programs run as well
ASK = """
const [image, question, done] = arguments;
const bytes = Uint8Array.from(atob(image), (letter) => letter.charCodeAt(0));
byId("question").value = question;
const file = new File([bytes], "screen.png", { type: "image/png" });
take(file).then(ask).then(() => done(), (error) => done(String(error)));
"""
SETTLED = """
const done = arguments[0];
const wait = (n) => (n ? requestAnimationFrame(() => setTimeout(() => wait(n - 1), 100)) : done());
wait(15);
"""


@contextmanager
def serve_model(model: str) -> Iterator[str]:
    """The address of a server of the model's."""
    command = [sys.executable, "-m", "vlrl.cli", "serve-model", model, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stdout or ())
            yield next(found[1] for line in lines if (found := re.search(r"serving .* at (http://\S+)", line)))
        finally:
            process.terminate()


def shoot(out: Path, name: str, address: str, script: str = "", *arguments: str) -> None:
    """Args: script: run first with the arguments; what it calls back with is what went wrong."""
    for label, (width, height, scheme) in LOOKS.items():
        chrome = browser.launch((width, height))
        chrome.set_page_load_timeout(PATIENCE)
        chrome.set_script_timeout(PATIENCE)
        try:
            media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
            chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
            browser.visit(chrome, address)
            chrome.execute_async_script(SETTLED)  # `vlrl view` asks for its runs first
            if script and (problem := chrome.execute_async_script(script, *arguments)):
                raise SystemExit(problem)
            chrome.execute_async_script(SETTLED)
            png = chrome.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
        finally:
            browser.end(chrome)
        image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
        trim(image).quantize(256, kmeans=2).save(out / f"{name}{label}.png", optimize=True)


def trim(image: Image.Image) -> Image.Image:
    """Without what is empty below a short page."""
    empty = Image.new("RGB", image.size, image.getpixel((0, image.height - 1)))
    box = ImageChops.difference(image, empty).getbbox() or (0, 0, *image.size)
    return image.crop((0, 0, image.width, min(image.height, box[3] + 24)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for the pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    shoot(options.out, "report", write_report(options.runs[0]).resolve().as_uri())
    viewer = Viewer(options.runs)
    threading.Thread(target=viewer.serve, daemon=True).start()
    shoot(options.out, "view", viewer.url, f"{TO_SAMPLES}; arguments[0]();")
    viewer.close()
    prompt = GuiGrounding(held_out=4).samples("test")[0].prompt
    file = io.BytesIO()
    prompt.images[0].save(file, "PNG")
    with serve_model(str(options.runs[0])) as address:
        image = base64.b64encode(file.getvalue()).decode()
        shoot(options.out, "playground", f"{address}/", ASK, image, prompt.text)


if __name__ == "__main__":
    main()
