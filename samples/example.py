"""A tour of the library in cells: run it whole, or cell by cell in an editor that knows `# %%`."""

# %% Read a folder. Each host is still on its own clock.
from pathlib import Path
from tempfile import mkdtemp

import polars as pl

import trace_export

samples = Path(trace_export.__file__).parents[1] / "samples"  # of the clone that this comes with
run = trace_export.load(samples / "paddle" / "two_machines")
print(run.ranks.select("rank", "stage", "stage_origin", "host"))

# %% One clock for all hosts, and how sure it is.
run = run.align()
print(run.clocks.select("host", "status", "evidence", "offset_ns", "sd_ns", "bound_ns"))

# %% Every block is a row. How long do forwards take, stage by stage?
blocks = run.spans.join(run.ranks.select("rank", "stage"), on="rank")
length = (pl.col("end_ns") - pl.col("start_ns")).mean() / 1e6
print(blocks.filter(pl.col("kind") == "F").group_by("stage").agg(length.alias("forward ms")).sort("stage"))

# %% The bubble of each step, by both definitions.
print(run.report().steps.select("step", "bubble", "bubble_own"))

# %% What would zero bubble give? Durations of one block in nanoseconds; 1F1B's backward holds the weight gradient too.
for name, costs in {
    "1f1b": trace_export.Costs(forward=9e6, backward=18e6),
    "zb-h1": trace_export.Costs(forward=9e6, backward=9e6, weight=9e6),
}.items():
    theory = trace_export.simulate(name, stages=4, microbatches=8, costs=costs)
    print(name, theory.spans["end_ns"].max() / 1e6, "ms")

# %% The chart: in a notebook it is shown by its name alone.
run.plot(bubbles=True)

# %% Pictures and traces.
out = Path(mkdtemp())
for path in run.write(out, ["perfetto", "svg"]):
    print("wrote", path.name)
