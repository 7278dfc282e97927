"""Write docs/reference/ from the program's own tables: `python scripts/write_reference.py`, run by `make docs` too.

The pages are kept in git, so that a code host shows them; tests/docs/test_reference.py holds them against the program.
"""

import inspect
import json
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import click
from break_lines import break_lines
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from placebench import errors
from placebench.cli import main as cli
from placebench.commands.group import UNEXPECTED
from placebench.commands.options import WORKLOAD_KEYS, heading_of
from placebench.commands.run import run
from placebench.compare.comparison import compare_run, compare_sides
from placebench.compare.measure.sides import read_sides
from placebench.compare.read.sources import ReadingOptions, parse_source
from placebench.jobs.registry import ADAPTERS
from placebench.jobs.spec import NAMES, JobSpec, LogOfJob, PlacementOfJob
from placebench.logs.registry import DIALECTS, FORMATS
from placebench.logs.run import read_run
from placebench.record.folder import RunFolder, Status, Trial
from placebench.report import paths, placement_schema, schema
from placebench.report.build import build_report
from placebench.report.summary import summarize
from placebench.spec.nested import flatten
from placebench.spec.placement_files import KEYS
from placebench.spec.presets import PRESETS
from placebench.spec.words import SETTINGS
from placebench.spec.workload import SMALL_MODEL, Workload, workload_keys
from placebench.spec.workload_reading import CODE, GRPO, build_workload

SCHEMA_MODULES = (schema.__name__, placement_schema.__name__)
FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
_API = (read_run, parse_source, ReadingOptions, read_sides, compare_run, compare_sides, summarize, build_report)


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown, in which a cell may hold a stroke."""
    heads = tuple(heads)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(_in_cell(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _in_cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split()) or "–"


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def commands() -> str:
    """Every command with its options, as click knows them."""
    parts = ["# Commands and options", "`placebench COMMAND --help` prints the same in the terminal."]
    parts.append(table(("command", "what it does"), _command_rows()))
    for path, command in _walk(cli, ("placebench",)):
        context = click.Context(command, info_name=" ".join(path))
        usage = " ".join((*path, *command.collect_usage_pieces(context)))
        parts += [f"## {' '.join(path)}", _paragraphs(command.help or ""), f"```text\n{usage}\n```"]
        groups: dict[str, list[tuple[str, ...]]] = {}
        for param in command.params:
            if isinstance(param, click.Option):
                groups.setdefault(heading_of(param), []).append(_option_row(param, context))
        for heading, rows in groups.items():
            parts.append(table((heading if len(groups) > 1 else "option", "what it says", "default"), rows))
        parts += _epilog(command.epilog or "")
    return "\n\n".join(parts)


def _walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _walk(command.commands[name], (*path, name))
    else:
        yield path, command


def _command_rows() -> Iterator[tuple[str, str]]:
    for path, command in _walk(cli, ("placebench",)):
        name = " ".join(path)
        yield f"[`{name}`](#{name.replace(' ', '-')})", command.get_short_help_str(200)


def _option_row(param: click.Option, context: click.Context) -> tuple[str, str, str]:
    flags = " / ".join((*param.opts, *param.secondary_opts))
    metavar = "" if param.is_flag else f" {param.make_metavar(context)}"
    text, _, default = (param.help or "").removesuffix("]").partition("[default: ")
    if param.show_default and param.default is not None:
        default = str(param.default)
    return _code(f"{flags}{metavar}"), text, default or ("required" if param.required else "")


def _paragraphs(text: str) -> str:
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def _epilog(text: str) -> Iterator[str]:
    for part in text.replace("\b\n", "").strip().split("\n\n"):
        head, _, rest = part.partition("\n")
        if head.endswith(":") and rest:
            yield f"{head}\n\n```text\n{inspect.cleandoc(rest)}\n```"
        elif part:
            yield " ".join(part.split())


def workload() -> str:
    """Every workload key, as the model of the workload has it."""
    small, real = (
        flatten(build_workload({"model": model}).model_dump(mode="json")) for model in (SMALL_MODEL, "owner/name")
    )
    flags = {param.name: param.opts + param.secondary_opts for param in run.params}
    options = {key: flags[name] for name, key in WORKLOAD_KEYS.items()}
    rows = []
    for key in workload_keys():
        field, model = _field(key)
        defaults = dict.fromkeys(_shown(of[key]) for of in ((small,) if key == "model" else (small, real)))
        names = ", ".join(map(_code, (key, *options.get(key, ()))))
        rows.append((names, ", ".join(map(_code, defaults)), _range(model, field), field.description or ""))
    presets = (
        (
            f"`{setting}`",
            ", ".join(
                f"`{section}.{key}` {_shown(value)}" for section, keys in of.items() for key, value in keys.items()
            ),
        )
        for setting, of in (("algorithm.name=grpo", GRPO), ("data.source=code", CODE))
    )
    return "\n\n".join(
        (
            "# Workload keys",
            "Set a key by `--set KEY=VALUE`, in the file of `--config`, or by its option.\n"
            f"Where two defaults stand, the first is of `{SMALL_MODEL}` and the second of every other model.\n"
            "How to use your own prompts and reward: [Your model, data, reward](../workload.md).",
            table(("key", "default", "takes", "meaning"), rows),
            "Some settings bring defaults of their own:",
            table(("with", "the defaults are"), presets),
        )
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _field(key: str) -> tuple[FieldInfo, type[BaseModel]]:
    section, _, name = key.rpartition(".")
    model = type(Workload.model_fields[section].default) if section else Workload
    return model.model_fields[name], model


def _range(model: type[BaseModel], field: FieldInfo) -> str:
    """What a key takes: words, or from and to."""
    (name,) = (name for name, known in model.model_fields.items() if known is field)
    described = model.model_json_schema()["properties"][name]
    parts = (described, *described.get("anyOf", ()), *described.get("prefixItems", ()))
    for part in parts:
        if "enum" in part:
            return ", ".join(map(_code, map(str, part["enum"])))
        if "maximum" in part or "exclusiveMaximum" in part:
            excluded = part.get("exclusiveMaximum")
            least = part["minimum"] if "minimum" in part else part["exclusiveMinimum"] + 1
            return f"{least:.9g} to {f'below {excluded}' if excluded else format(part['maximum'], ',.10g')}"
    return "`true`, `false`" if described.get("type") == "boolean" else "text"


def placements() -> str:
    """The words of placements, their settings, and the keys of a placement file."""
    words = ((_code(preset.form), preset.reading) for preset in PRESETS)
    settings = ((_code(f"/{name}={setting.form}"), setting.reading) for name, setting in SETTINGS.items())
    return "\n\n".join(
        (
            "# Placement words and files",
            "What they mean on devices, with examples: [Who goes where](../placements.md).",
            "## Words",
            table(("word", "meaning"), words),
            "## Settings after a word",
            table(("setting", "meaning"), settings),
            "## Keys of a placement file",
            table(("key", "meaning"), ((_code(key), meaning) for key, meaning in KEYS.items())),
        )
    )


def jobs() -> str:
    """The keys of a job file, and the names in braces."""
    names = ((_code(f"{{{name}}}"), meaning) for name, meaning in NAMES.items() if meaning)
    return "\n\n".join(
        (
            "# Job files",
            "`placebench run --job FILE` takes such a file; how to write one: [Your own job](../jobs.md).",
            f"Frameworks that `job` names: {', '.join(map(_code, ADAPTERS))}.",
            _model_table(JobSpec, "key"),
            "## log",
            _model_table(LogOfJob, "key"),
            "## placements",
            "Of each name:",
            _model_table(PlacementOfJob, "key"),
            "## Names in braces",
            table(("name", "is"), names),
        )
    )


def _model_table(model: type[BaseModel], head: str) -> str:
    rows = (
        (_code(name), _type(field.annotation), _default(field), field.description or "")
        for name, field in model.model_fields.items()
    )
    return table((head, "type", "default", "meaning"), rows)


def _type(kind: Any) -> str:
    """A type in words."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(map(_code, map(str, parts)))
    if origin in (types.UnionType, Union):
        return " or ".join("null" if one is type(None) else _type(one) for one in parts)
    if origin in (tuple, list):
        return f"list of {_type(parts[0])}"
    if origin in (dict, Mapping):
        return f"mapping to {_type(parts[1])}"
    if hasattr(kind, "__metadata__"):
        return _type(parts[0])
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"[{kind.__name__}](#{kind.__name__.lower()})" if kind.__module__ in SCHEMA_MODULES else "mapping"
    known = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "Path": "path"}
    name = getattr(kind, "__name__", str(kind))
    return known.get(
        name, "any" if kind is Any else "text" if isinstance(kind, type) and issubclass(kind, str) else name
    )


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "" if isinstance(value, BaseModel) or value in ((), {}) else _code(json.dumps(value, default=str).strip('"'))


def files() -> str:
    """The files of a run, and what summary.json holds."""
    report = {
        paths.HTML: "The report as one page that loads nothing.",
        paths.MARKDOWN: "The same for a repository or a pull request.",
        f"{paths.PLOTS}/": "Its figures, as svg; with `--png` as png too.",
        paths.TRACE: "Every phase of every launch, for [Perfetto](https://ui.perfetto.dev).",
        "export/": "What `placebench export` has written: see [Export and share](../export.md).",
    }
    classes = dict(one for module in (schema, placement_schema) for one in inspect.getmembers(module, inspect.isclass))
    found = (one for _, one in sorted(classes.items()) if one.__module__ in SCHEMA_MODULES)
    parts = [one for one in found if issubclass(one, BaseModel) and one.model_fields and one is not schema.Summary]
    version = schema.Summary.model_fields["schema_version"].default
    return "\n\n".join(
        (
            "# Files of a run",
            "A run is one folder, `runs/<UTC time>-<name>/`. Every command works from these files alone.\n"
            "How to read the report: [Reading a report](../report.md).",
            "## The run",
            table(
                ("file", "what it holds"),
                (*_files_of(RunFolder), *((_code(name), about) for name, about in report.items())),
            ),
            "## Each launch",
            "`trials/<round>-<placement>/` of each launch holds",
            table(
                ("file", "what it holds"),
                (
                    (
                        "`status`",
                        f"One word: {', '.join(map(_code, (one for one in Status if one is not Status.DAMAGED)))}.",
                    ),
                    *_files_of(Trial),
                ),
            ),
            "## summary.json",
            f"`schema_version` is {version}: a new field keeps it, a changed meaning raises it.\n"
            "`placebench.report.schema.Summary.model_json_schema()` gives the JSON Schema. A missing number is null.",
            _model_table(schema.Summary, "field"),
            *(f"### {one.__name__}\n\n{_docstring(one)}\n\n{_model_table(one, 'field')}" for one in parts),
        )
    )


def _files_of(folder: type) -> Iterator[tuple[str, str]]:
    for value in vars(folder).values():
        if hasattr(value, "about"):
            yield _code(value.name), value.about


def logs() -> str:
    """The formats of logs, in the order in which they are tried, and the traps that are known."""
    formats = (
        (_code(one.name), one.title, one.dialect.framework if one.dialect else "any framework") for one in FORMATS
    )
    traps = ((_code(trap.name), dialect.framework, trap.text) for dialect in DIALECTS for trap in dialect.traps)
    return "\n\n".join(
        (
            "# Formats of logs",
            "The first of these of which a file holds a step tells its format; `--format NAME` forces one.\n"
            "How logs are read and compared: [Logs of any framework](../logs.md).",
            table(("name", "what", "metrics of"), formats),
            "## Numbers that mislead",
            "Each is told by its name whenever a log has the numbers that it is about.",
            table(("name", "framework", "what is wrong, and what placebench does"), traps),
        )
    )


def exit_codes() -> str:
    """Exit codes, as the errors have them."""
    meanings: dict[int, list[str]] = {0: ["Done. Of `placebench check`: nothing is shown to be worse."]}
    for _, error in inspect.getmembers(errors, inspect.isclass):
        if issubclass(error, errors.PlacebenchError) and errors.PlacebenchError in error.__bases__:
            first = inspect.cleandoc(error.__doc__ or "").split("\n\n")[0]
            meanings.setdefault(error.exit_code, []).append(" ".join(first.split()))
    meanings[UNEXPECTED] = ["An error of placebench itself; the message names the file with its traceback."]
    rows = ((str(code), " ".join(dict.fromkeys(meanings[code]))) for code in sorted(meanings))
    return "\n\n".join(
        (
            "# Exit codes",
            "Every command ends with one of these; whatever is wrong stands on stderr, one line a reason.",
            table(("code", "meaning"), rows),
            "128 + N: signal N, not that of Ctrl-C, ended the command when only its report was missing.",
        )
    )


def api() -> str:
    """The functions by which a script reads and compares what the commands do."""
    parts = [
        "# Python API",
        "`placebench.load` reads a run for scripts and notebooks: [Runs in Python](../python.md).\n"
        "Everything behind it is plain functions over files: no torch, Ray or GPU is needed.",
        "```python\nfrom pathlib import Path\n\n"
        "from placebench.compare.comparison import compare_run\nfrom placebench.report.summary import summarize\n\n"
        'summary = summarize(compare_run(Path("runs/20260101T000000Z-standard-split")))\n'
        "for placement in summary.placements:\n    print(placement.name, placement.headline)\n```",
        "`summarize` gives what `summary.json` holds: its fields are in [Files of a run](files.md#summaryjson).",
    ]
    for function in _API:
        parts.append(f"## {function.__name__}")
        parts.append(f"```text\nfrom {function.__module__} import {function.__name__}\n{_signature(function)}\n```")
        parts.append(_docstring(function))
    return "\n\n".join(parts)


def _signature(function: Callable[..., Any]) -> str:
    text = re.sub(r"[\w.]+\.(?=[A-Z]\w+)", "", str(inspect.signature(function, eval_str=False))).replace("'", "")
    return f"{function.__name__}{text}"


def _docstring(of: object) -> str:
    """A docstring in Markdown: its sections become lists."""
    text = inspect.getdoc(of) or ""
    parts = []
    for part in text.split("\n\n"):
        head, _, rest = part.partition("\n")
        if head in ("Args:", "Raises:", "Returns:"):
            items = re.sub(r"\n(?!\w+: )", " ", inspect.cleandoc(rest)).splitlines()
            shown = (re.sub(r"^(\w+): ", r"`\1`: ", " ".join(item.split())) for item in items)
            parts.append(f"{head}\n\n" + "\n".join(f"- {item}" for item in shown))
        else:
            parts.append(" ".join(part.split()))
    return "\n\n".join(parts)


PAGES: Mapping[str, Callable[[], str]] = {
    "commands": commands,
    "workload": workload,
    "placements": placements,
    "jobs": jobs,
    "files": files,
    "logs": logs,
    "exit-codes": exit_codes,
    "api": api,
}


def content(name: str) -> str:
    """The text of a page."""
    return break_lines(PAGES[name]() + "\n")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PAGES:
        (FOLDER / f"{name}.md").write_text(content(name), encoding="utf-8")
