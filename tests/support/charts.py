"""A chart as a trace file."""

from pathlib import Path
from types import ModuleType

from trace_export.chart.chart import Chart


def write_trace(writer: ModuleType, chart: Chart, path: Path, gzip: bool = False) -> None:
    """By `writers.traces.perfetto` or `chrome`."""
    chart.put(writer.writing(chart, path, gzip))
