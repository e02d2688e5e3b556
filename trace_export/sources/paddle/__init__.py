"""Paddle's pipeline profilers: logs of the static graph, records of the dynamic graph."""
