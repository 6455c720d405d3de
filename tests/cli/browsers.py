"""Pages in a real browser: what its console says, and what a script finds on a copy of them."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, NAMES)), None)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=4000",
)
DARK = "--blink-settings=preferredColorScheme=0"

# asks what a person would see: sizes on the screen, not what the file says
_LOOK = """<script>addEventListener("load", () => {
for (const fold of document.querySelectorAll("details")) fold.open = true;
const box = e => e.getBoundingClientRect();
const wide = document.documentElement.clientWidth;
const size = e => parseFloat(getComputedStyle(e).fontSize);
const figures = [...document.querySelectorAll("figure")];
parent.postMessage({
  name: NAME, width: innerWidth,
  scroll: document.documentElement.scrollWidth,
  out: [...document.querySelectorAll("body *")].filter(
    e => !e.closest(".scroll, pre, svg") && box(e).right > wide + 1).length,
  images: [...document.images].map(e => e.naturalWidth),
  charts: [...document.querySelectorAll("svg.chart")].map(e => ({
    width: box(e).width, height: box(e).height,
    drawn: [...e.querySelectorAll("path, use, rect")].filter(
      one => { const b = box(one); return b.width + b.height > 1; }).length,
    letters: Math.min(...[...e.querySelectorAll("text")].map(t => size(t) *
      box(e).width / e.viewBox.baseVal.width))})),
  tables: figures.map(f => [...f.querySelectorAll("tbody tr")].filter(
    r => box(r).height > 5).length),
  smallest: Math.min(...[...document.querySelectorAll("p, li, td, th, dd, dt, summary")].map(size)),
  page: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color}, "*");
});</script></body>"""
_HEAR = """<!DOCTYPE html><meta charset="utf-8"><body><pre id="found"></pre>FRAMES<script>
const found = [];
addEventListener("message", e => { found.push(e.data);
  document.getElementById("found").textContent = JSON.stringify(found); });
</script></body>"""


def opened(path: Path, profile: Path, *flags: str) -> tuple[str, list[str]]:
    """The page after loading, and what its console said."""
    assert BROWSER is not None
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={profile}", *flags, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def looked_at(
    pages: dict[str, Path], widths: tuple[int, ...], folder: Path, *flags: str
) -> dict[tuple[str, int], dict[str, Any]]:
    """What is seen of copies of pages that may run scripts, in frames; one browser for all."""
    frames = []
    for name, path in pages.items():
        text = re.sub(r'<meta http-equiv="[^>]*>', "", path.read_text(encoding="utf-8"))
        copy = folder / f"copy-{name}.html"
        copy.write_text(text.replace("</body>", _LOOK.replace("NAME", json.dumps(name))))
        frames += [
            f'<iframe src="{copy.name}" style="border:0;width:{width}px;height:900px"></iframe>'
            for width in widths
        ]
    listening = folder / "listening.html"
    listening.write_text(_HEAR.replace("FRAMES", "".join(frames)))
    dom, _ = opened(listening, folder / "profile", "--window-size=1400,1000", *flags)
    heard = re.search(r'<pre id="found">(.*?)</pre>', dom, re.DOTALL)
    assert heard, dom[-2000:]
    return {(one["name"], one["width"]): one for one in json.loads(html.unescape(heard[1]))}
