"""The operations of a training step by the names of the straggler study (arXiv 2505.05713, table 1 and its artifact).

They name what a step consists of, whichever profiler recorded it: `analysis.what_if` reports by these names.
"""

from __future__ import annotations

F, B = "forward-compute", "backward-compute"
W, FB = "weight-compute", "forward-backward-compute"
"""Not the study's: the weight gradient as a block of its own, and an overlapped pair."""
FS, FR, BS, BR = "forward-send", "forward-recv", "backward-send", "backward-recv"
AG, RS, SEP = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
LN, EMB = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
TAIL = "wait-for-optimizer"
"""Not the study's: what lies between the last block of a step and the optimizers, where no collective was recorded."""
CLIP, OPT, GC = "optimizer-clip-main-grad", "optimizer", "gc"

BLOCKS = {F: "F", B: "B", W: "W", FB: "FB", OPT: "OPT"}
"""The `kind` of a span (`model.SPANS`) by its type of operation."""
TYPE_OF_KIND = {kind: name for name, kind in BLOCKS.items()}
TRANSFERS = {FS: ("send", "F"), FR: ("recv", "F"), BS: ("send", "B"), BR: ("recv", "B")}
"""`role` and `direction` of a point-to-point transfer (`model.P2P`)."""
COLLECTIVE = {AG: "stage", RS: "stage", SEP: "stage", LN: "own", EMB: "replica", CLIP: "world"}
"""The collectives, and whom they wait for: all replicas of the `stage`, the first and the last stage of the `replica`,
all ranks of the `world`, or nobody that is recorded (`own`)."""
REPORTED = {FS: "forward-pp-comm", FR: "forward-pp-comm", BS: "backward-pp-comm", BR: "backward-pp-comm"}
"""Both sides of a transfer are reported under one name."""
TYPICAL_IS_MEDIAN = frozenset({*TRANSFERS, *COLLECTIVE, TAIL})
"""The typical length of these is the median of all, since a few long ones have waited; that of the others the mean."""
