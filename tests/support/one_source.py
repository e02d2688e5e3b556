"""What the reader of a format makes of one source, with all times that it gives, however early."""

from trace_export.errors import SourceError
from trace_export.model import Profile
from trace_export.sources.formats import of_kind
from trace_export.sources.source import ReadOptions, Source


def read(source: Source, options: ReadOptions) -> Profile:
    """Raises SourceError."""
    (result,) = of_kind(source.kind).load_reader().read([source], options)
    if isinstance(result, SourceError):
        raise result
    return result
