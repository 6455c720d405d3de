"""Pages as a browser sees them, where there is one."""

import re
import shutil
import subprocess

import pytest

from reticent.report import write_report

from .runs import audited, diagnosed

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--enable-logging=stderr",
)
# of a copy of the page that may run scripts: what sticks out to the right of it
MEASURE = """<script>
const wide = document.documentElement.clientWidth;
const out = [...document.querySelectorAll("body *")].filter(
  e => !e.closest(".scroll, pre, svg") && e.getBoundingClientRect().right > wide + 1);
document.title = [innerWidth, document.documentElement.scrollWidth, out.length,
  getComputedStyle(document.body).backgroundColor].join(";");
</script></body>"""


def seen(path, profile, width, *flags):
    done = subprocess.run(
        [
            BROWSER,
            *FLAGS,
            f"--user-data-dir={profile}",
            f"--window-size={width},900",
            *flags,
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture
def page(folder):
    audited(folder)
    diagnosed(folder)
    return write_report(folder, private=True)


def test_a_browser_finds_nothing_wrong(page, tmp_path):
    dom, told = seen(page, tmp_path / "profile", 1280)
    assert told == []
    sections = re.findall(r'<section id="(\w+)"', page.read_text())
    assert re.findall(r'<section id="(\w+)"', dom) == sections
    assert len(sections) == 8
    assert dom.count("<svg") == 7


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True), (360, False)])
def test_nothing_sticks_out(page, tmp_path, width, dark):
    text = re.sub(r'<meta http-equiv="[^>]*>', "", page.read_text())
    copy = tmp_path / "copy.html"
    copy.write_text(text.replace("</body>", MEASURE))
    flags = ("--blink-settings=preferredColorScheme=0",) if dark else ()
    dom, _ = seen(copy, tmp_path / "profile", width, *flags)
    inner, whole, out, colour = re.search(r"<title>(.*?)</title>", dom)[1].split(";")
    assert int(whole) <= int(inner) <= max(width, 500)
    assert out == "0"
    assert colour == ("rgb(20, 23, 26)" if dark else "rgb(248, 247, 244)")
