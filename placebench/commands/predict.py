"""What placements would take that nobody ran, from what was measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from placebench.commands.completion import complete_placements
from placebench.commands.console import open_console
from placebench.commands.group import readers_may_leave
from placebench.commands.options import GroupedCommand, option, option_group, verbose_option
from placebench.commands.outputs import OutputPath, writing
from placebench.commands.predicting import prediction_options, read_asked
from placebench.errors import UsageError

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
        help="Placements to predict.  [default: those that were measured, standard and split]",
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
    from placebench.plan.predictable import measured_placements, named_placements
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
    chosen = (
        measured_placements(asked.calibrations, asked.devices, asked.workload, asked.job)
        if words is None
        else named_placements(words, asked.calibrations, asked.devices, asked.workload, asked.job)
    )
    placements = tuple(chosen.placements.values())
    with explain_lookups(asked.devices[0].name, is_known_work=asked.workload is not None):
        found = predict_steps(asked.steps, placements, elsewhere=asked.elsewhere, price=given.get("price"))
    spelled = {placement.name: word for word, placement in chosen.placements.items()}
    deciding = replace(asked.question.deciding, spelled=spelled)
    log_probs = uncounted_log_probs(asked.steps, placements)
    question = replace(asked.question, deciding=deciding, notes=(*asked.question.notes, *log_probs, *chosen.notes))
    with readers_may_leave():
        print_predictions(found, question, open_console(), verbose=verbose)
    if json_path is not None:
        with writing("--json", json_path):
            write_predictions(prediction_file(found, question), json_path)
    if plot is not None:
        draw_predictions(found, plot)
    if out is not None:
        with writing("--out", out):
            write_output(out, json_text(asked.calibrations[0].model_dump(mode="json")))
