"""Launches as runs of TensorBoard: scalars of every step, and the verdict as a text."""

from collections.abc import Iterable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from placebench.out.tracked import TrackedRun
from placebench.record.writing import making_folder, replacing
from placebench.spec.text import slug

# By `tfevents` TensorBoard knows it. It is always the same, so that the same run is not there twice.
_FILE = "events.out.tfevents.0.placebench"
_VERSION = "brain.Event:2"


def write(run: TrackedRun, where: Path) -> str:
    """Write an event file for each launch, and one for the comparison; returns the folder."""
    for launch in run.launches:
        events = (
            Event(wall_time=step.wall, step=step.step, summary=Summary(value=_scalars(step.values.items())))
            for step in launch.steps
        )
        _write(where / slug(launch.name), launch.steps[0].wall, events)
    text = TensorProto(dtype=DT_STRING, string_val=[run.verdict.replace("\n", "\n\n").encode()])
    text.tensor_shape.dim.add(size=1)
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    verdict = Summary.Value(tag="verdict/text_summary", tensor=text, metadata=metadata)
    values = [*_scalars(run.results.items()), verdict]
    _write(where / "comparison", run.ended, [Event(wall_time=run.ended, step=0, summary=Summary(value=values))])
    return str(where)


def _scalars(values: Iterable[tuple[str, float]]) -> list[Summary.Value]:
    return [Summary.Value(tag=name, simple_value=value) for name, value in values]


def _write(folder: Path, begun: float, events: Iterable[Event]) -> None:
    # TensorBoard's own writer has a thread, which prints a traceback where the disk is full.
    with making_folder(folder), replacing(folder / _FILE) as scratch, scratch.open("wb") as stream:
        records = RecordWriter(stream)
        for event in (Event(wall_time=begun, file_version=_VERSION), *events):
            records.write(event.SerializeToString())
