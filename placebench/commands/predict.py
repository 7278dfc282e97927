"""What placements would take that nobody ran, from what was measured."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from placebench.commands.completion import complete_placements
from placebench.commands.console import open_console
from placebench.commands.options import GroupedCommand, option, option_group, verbose_option
from placebench.commands.outputs import OutputPath, writing
from placebench.commands.predicting import AskedPrediction, prediction_options, read_asked
from placebench.errors import Reasons, UsageError
from placebench.spec.legible import shown
from placebench.spec.text import few

if TYPE_CHECKING:
    from placebench.spec.placement import Placement

# Of placements that are left out; of more it is the first one's, and the names of the others.
_MOST_REASONS = 2

_EXAMPLES = """\b
Examples:
  placebench predict --from latest --placements standard,split/overlap=none
  placebench predict --gpu H200 --model qwen2.5-7b --devices gpu:8 --price 2.5
"""


@click.command(cls=GroupedCommand, epilog=_EXAMPLES, short_help="Predict the step of placements that were not run.")
@option_group(
    "Placements",
    option(
        "--placements",
        "words",
        metavar="WORDS",
        shell_complete=complete_placements,
        help="Words of placements.  [default: those that were measured, standard and split]",
    ),
)
@prediction_options
@option_group(
    "Files",
    option("--json", "json_path", type=OutputPath(), metavar="FILE", help="Write every number."),
    option("--plot", type=OutputPath(), metavar="FILE", help="Draw a step of each placement: .svg, .png or .pdf."),
    option("--out", type=OutputPath(), metavar="FILE", help="Write the calibration, for --from elsewhere."),
    verbose_option,
)
def predict(
    words: str | None, json_path: Path | None, plot: Path | None, out: Path | None, verbose: bool, **given: Any
) -> None:
    """Predict the step time, memory and cost of placements that were not run.

    Each with its interval, its class, and how cases of this class that were held out have erred. Neither torch, ray
    nor a GPU is needed.
    """
    from placebench.predict.asking import explain_lookups, uncounted_log_probs
    from placebench.predict.prediction import predict as predict_steps
    from placebench.record.writing import json_text, refuse_same, write_output
    from placebench.report.predicted import prediction_file, print_predictions, write_predictions

    refuse_same({"--json": json_path, "--plot": plot, "--out": out})
    if plot is not None:
        from placebench.report.predicted_timeline import draw_predictions, refuse_other_formats

        refuse_other_formats(plot)
    asked = read_asked(given)
    if out is not None and len(asked.calibrations) > 1:
        raise UsageError(f"--out {out}: {len(asked.calibrations)} calibrations are named with --from: name one")
    placements, left_out = _placements(words, asked)
    with explain_lookups(asked.devices[0].name, is_known_work=asked.workload is not None):
        found = predict_steps(
            asked.steps, [one for _, one in placements], elsewhere=asked.elsewhere, price=given.get("price")
        )
    deciding = replace(asked.question.deciding, spelled={one.name: word for word, one in placements})
    log_probs = uncounted_log_probs(asked.steps, [one for _, one in placements])
    question = replace(asked.question, deciding=deciding, notes=(*asked.question.notes, *log_probs, *left_out))
    print_predictions(found, question, open_console(), verbose=verbose)
    if json_path is not None:
        with writing("--json", json_path):
            write_predictions(prediction_file(found, question), json_path)
    if plot is not None:
        draw_predictions(found, plot)
    if out is not None:
        with writing("--out", out):
            write_output(out, json_text(asked.calibrations[0].model_dump(mode="json")))


def _placements(words: str | None, asked: AskedPrediction) -> "tuple[list[tuple[str, Placement]], list[str]]":
    """The placements that are asked for behind their words, each of which must be possible; else the calibration's.

    Returns:
        Them, and what to know of those of the calibration that are left out.
    """
    from placebench.plan.catalogue import look_up
    from placebench.spec.words import given_twice, read_placement, split_words

    reasons, placements, read, refused = Reasons(), [], list[str](), dict[str, tuple[str, ...]]()
    # A point of a benchmark is no placement.
    names = [case.name for file in asked.calibrations for case in file.cases if case.step_s is not None]
    asked_words = tuple(dict.fromkeys([*names, "standard", "split"])) if words is None else split_words(words)
    if "" in asked_words:
        raise UsageError(f"--placements {shown(words)} has an empty entry: write for example standard,split")
    nodes = asked.steps.nodes
    for word in asked_words:
        of_word = Reasons()
        if asked.workload is None:
            placement = read_placement(word, nodes, of_word)
        else:
            entry = look_up(word, asked.devices, asked.workload)
            of_word.add(entry.reasons)
            placement = entry.bound.placement if entry.bound else None
        read += [placement.name] if placement else []
        if placement and not of_word.lines:
            placements.append((word, placement))
        elif words is None:
            refused[word] = of_word.lines
        else:
            reasons.add(of_word.lines)
    if words is not None:
        reasons.add(given_twice(read, words))
    reasons.raise_any()
    if not placements:
        # Those of the first, as the others are in many words the same.
        none = "none of the measured placements can be on these devices: name others with --placements"
        raise UsageError(*next(iter(refused.values()), ()), none)
    notes = [f"left out: {lines[0]}" for lines in refused.values()]
    if len(notes) > _MOST_REASONS:
        others = few([*refused][1:], ", ")
        notes[1:] = [f"left out, too: {others}; --placements with one of these says why"]
    return placements, notes
