"""Launches as runs of TensorBoard: scalars of every step, and the verdict as a text."""

from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from placebench.out.tracked import TrackedRun
from placebench.spec.text import slug


def write(run: TrackedRun, where: Path) -> str:
    """Write an event file for each launch, and one for the comparison; returns the folder."""
    for launch in run.launches:
        writer = EventFileWriter(str(where / slug(launch.name)))
        for step in launch.steps:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in step.values.items()]
            writer.add_event(Event(wall_time=step.wall, step=step.step, summary=Summary(value=values)))
        writer.close()
    writer = EventFileWriter(str(where / "comparison"))
    values = [Summary.Value(tag=name, simple_value=value) for name, value in run.results.items()]
    text = TensorProto(dtype=DT_STRING, string_val=[run.verdict.replace("\n", "\n\n").encode()])
    text.tensor_shape.dim.add(size=1)
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    values.append(Summary.Value(tag="verdict/text_summary", tensor=text, metadata=metadata))
    writer.add_event(Event(wall_time=run.ended, step=0, summary=Summary(value=values)))
    writer.close()
    return str(where)
