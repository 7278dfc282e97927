"""The report as Markdown and as one self-contained HTML page."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import jinja2

from placebench.report import comparison_table, tables, time_tables
from placebench.report.columns import parts
from placebench.report.notes import notes
from placebench.report.schema import Summary
from placebench.spec.legible import escape_markdown, legible


@dataclass(frozen=True)
class Picture:
    """A figure as the pages need it."""

    title: str
    """Heading."""
    caption: str
    """What it shows."""
    path: str
    """File, relative to the run folder."""
    svg: str
    """The `<svg>` element."""
    narrow_svg: str | None = None
    """The same for the width of a phone; None where only the files of an earlier report are left."""


def markdown(summary: Summary, pictures: Sequence[Picture], trace: str | None) -> str:
    """`report.md`: headline, tables and links to the figures; text is escaped."""
    return _render(_markdown_template(), summary, pictures, trace)


def html(summary: Summary, pictures: Sequence[Picture], trace: str | None) -> str:
    """`report.html`: one page with its figures inside that loads nothing."""
    return _render(_html_template(), summary, pictures, trace)


def load_templates() -> None:
    """Load what `markdown` and `html` need, which takes longer than they do."""
    _markdown_template()
    _html_template()


@cache
def _markdown_template() -> jinja2.Template:
    environment = _environment(autoescape=False)
    environment.filters["plain"] = escape_markdown
    return environment.get_template("report.md.j2")


@cache
def _html_template() -> jinja2.Template:
    environment = _environment(autoescape=True)
    environment.filters["parts"] = parts  # between which a page may break a name
    return environment.get_template("report.html.j2")


def _environment(*, autoescape: bool) -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("placebench.report"),
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )


def _render(template: jinja2.Template, summary: Summary, pictures: Sequence[Picture], trace: str | None) -> str:
    summary = legible(summary)
    return template.render(
        summary=summary,
        first=summary.placements[0],
        numbers=comparison_table,
        tables=tables,
        times=time_tables,
        notes=notes,
        pictures=pictures,
        trace=trace,
    )
