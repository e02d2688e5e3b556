"""The recorder of trace_export.instrument: one file of lines a rank, without a profiler."""
