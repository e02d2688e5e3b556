"""Lays a run out as a chart: tracks, slices, arrows, counters and their colours, free of any file format."""
