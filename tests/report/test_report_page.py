"""The page in a real browser: nothing sticks out at the width of a phone, and no table breaks words."""

import html
import json
import re
import subprocess
from pathlib import Path

import pytest
from browser import BROWSER, FLAGS
from layouts import SPLIT, STANDARD
from synthetic_run import SyntheticRun

from placebench.report.build import build_report

WIDTHS = (360, 420, 640, 1280)
# Measured in frames of several widths; what is drawn inside a figure is the figure's.
MEASURE = """<!DOCTYPE html><body>{frames}<script>
onload = () => {{
  const measured = [...document.querySelectorAll("iframe")].map(frame => {{
    const page = frame.contentDocument, width = page.documentElement.clientWidth;
    const shown = [...page.body.querySelectorAll("*")].filter(one => !one.closest("svg *") && one.offsetParent);
    const wide = shown.filter(one => one.getBoundingClientRect().right > width + 1 || one.scrollWidth > width);
    const figures = [...page.querySelectorAll("svg")].filter(one => one.getBoundingClientRect().width);
    const texts = figures.flatMap(figure => [...figure.querySelectorAll("text")].filter(text => {{
      const box = text.getBoundingClientRect(), outer = figure.getBoundingClientRect();
      return box.width && (box.right > outer.right + 2 || box.left < outer.left - 2);
    }}));
    const cells = shown.filter(one => one.matches("th, .fields td") && one.textContent.length < 30);
    const broken = cells.flatMap(cell => [...cell.childNodes].filter(one => one.nodeType === 3).flatMap(text =>
      [...text.data.matchAll(/\\w+/g)].filter(word => {{
        const range = page.createRange();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        return new Set([...range.getClientRects()].map(box => box.top)).size > 1;
      }}).map(word => word[0])));
    const smallest = Math.min(...figures.map(one => one.getBoundingClientRect().width / one.viewBox.baseVal.width));
    return [width, page.documentElement.scrollWidth, figures.length, smallest,
      wide.map(one => `${{one.tagName}} ${{one.textContent.slice(0, 40)}}`), texts.map(one => one.textContent), broken];
  }});
  document.body.textContent = "measured " + JSON.stringify(measured) + " end";
}}
</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed here")
def test_nothing_is_wider_than_the_screen(tmp_path: Path) -> None:
    assert BROWSER is not None
    long = "learners:2,2+engines:4xtp2/staleness=1/inflight_updates=true"
    layouts = {"standard": STANDARD, "split:3+1/overlap=none": SPLIT, long: SPLIT}
    path = SyntheticRun(layouts=layouts, rounds=2).write(tmp_path / "run")
    page = html.escape(build_report(path).html.read_text())
    frames = "".join(f'<iframe width="{width}" height="800" srcdoc="{page}"></iframe>' for width in WIDTHS)
    outer = tmp_path / "outer.html"
    outer.write_text(MEASURE.format(frames=frames))
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000", "--dump-dom"]
    done = subprocess.run([*command, outer.as_uri()], capture_output=True, text=True, check=True, timeout=60)
    found = re.search(r"measured (.*) end", done.stdout)
    assert found, done.stdout[-2000:]
    for width, (shown, scrolled, figures, scale, wide, texts, broken) in zip(
        WIDTHS, json.loads(html.unescape(found[1])), strict=True
    ):
        assert (shown > 0.9 * width, figures) == (True, 6)
        assert scrolled <= shown
        # Figures are drawn for the width: their letters are as large as they were meant to be.
        assert scale > (1.0 if width < 600 else 0.7)
        assert texts == []
        assert wide == [] or width > 600
        assert broken == [] or width < 600
