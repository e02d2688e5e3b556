"""The operations of a training step by the names of the straggler study (arXiv 2505.05713, table 1 and its artifact).

Its tables have these names, and tables of other tools may.
"""

from __future__ import annotations

F, B = "forward-compute", "backward-compute"
W, FB = "weight-compute", "forward-backward-compute"
"""Not the study's: the weight gradient as a block of its own, and an overlapped pair."""
FS, FR, BS, BR = "forward-send", "forward-recv", "backward-send", "backward-recv"
AG, RS, SEP = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
LN, EMB = "layernorm-grads-all-reduce", "embedding-grads-all-reduce"
CLIP, OPT, GC = "optimizer-clip-main-grad", "optimizer", "gc"

BLOCKS = {F: "F", B: "B", W: "W", FB: "FB", OPT: "OPT"}
"""The `kind` of a span (`model.SPANS`) by its type of operation."""
TRANSFERS = {FS: ("send", "F"), FR: ("recv", "F"), BS: ("send", "B"), BR: ("recv", "B")}
"""`role` and `direction` of a point-to-point transfer (`model.P2P`)."""
COLLECTIVE = {AG: "stage", RS: "stage", SEP: "stage", LN: "own", EMB: "replica", CLIP: "world"}
"""The collectives, and whom they wait for: all replicas of the `stage`, the first and the last stage of the `replica`,
all ranks of the `world`, or nobody that is recorded (`own`)."""
