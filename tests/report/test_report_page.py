"""The page in a real browser: nothing sticks out at the width of a phone."""

import html
import re
import subprocess
from pathlib import Path

import pytest
from browser import BROWSER, FLAGS
from synthetic_run import SPLIT, STANDARD, SyntheticRun

from placebench.report.build import build_report

MEASURE = """<!DOCTYPE html><body><iframe width="{width}" height="800" srcdoc="{page}"></iframe><script>
onload = () => {{
  const page = document.querySelector("iframe").contentDocument;
  const root = page.documentElement;
  const found = [root.scrollWidth, root.clientWidth, page.querySelectorAll("svg").length];
  document.body.textContent = "measured " + found.join(" ") + " end";
}}
</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed here")
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_no_wider_than_the_screen(tmp_path: Path, width: int) -> None:
    assert BROWSER is not None
    layouts = {"standard": STANDARD, "split:3+1/overlap=none": SPLIT}
    path = SyntheticRun(layouts=layouts, rounds=2).write(tmp_path / "run")
    page = build_report(path).html.read_text()
    outer = tmp_path / "outer.html"
    outer.write_text(MEASURE.format(width=width, page=html.escape(page)))
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000", "--dump-dom"]
    done = subprocess.run([*command, outer.as_uri()], capture_output=True, text=True, check=True, timeout=60)
    found = re.search(r"measured (\d+) (\d+) (\d+) end", done.stdout)
    assert found, done.stdout[-2000:]
    scroll_width, client_width, figures = map(int, found.groups())
    assert (client_width > 0.9 * width, figures) == (True, 5)
    assert scroll_width <= client_width
