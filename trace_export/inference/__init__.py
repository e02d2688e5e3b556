"""Blocks from the launches of GPU work alone, for captures in which no pass is named (profiler-independent)."""
