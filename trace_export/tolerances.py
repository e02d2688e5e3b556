"""Tolerances: how far apart two times of one instant may lie, and by how much two times may contradict each other.

Times of two devices differ by the errors of two clock conversions, 8-9 µs each where it was measured (CPU and GPU of an
H200: TileOPs, pull request 1838). The ends of one transfer or collective differ by a part of the transfer besides, up
to some tens of µs. The values leave a factor of 5 to 10 for both, and are well below a micro-batch (milliseconds), the
least error of a wrong pairing. On 120 simulated runs half or twice of each changed the share of right decisions by at
most 3 %; ten times as much spoils them (7 % of the messages paired wrongly, machines of one name split in 56 % instead
of 80 % of the runs).
"""

from __future__ import annotations

GRID_NS = 1_000
"""A block may seem to end this much after the next send has begun, and to begin this much before the previous receive
has ended: unix µs that are written as floats lie on a grid of 0.25 µs, and each time is rounded to it."""
CAUSALITY_NS = 5_000
"""A hard bound on a clock allows for a message that seems to arrive this much before it was sent: reading noise."""
SAME_CLOCK_NS = 50_000
"""Ranks on one clock contradict each other by at most this much."""
STEADY_NS = 100_000
"""An offset of a clock scatters by less; if the scatter is larger, a sender or receiver waits."""
BLOCKS_NS = 100_000
"""A block may seem to start this much before a block of the same host on which it depends has ended."""
MESSAGE_ENDS_NS = 100_000
"""The ends of sends and receives that are paired rightly scatter by less, so that no other pairing need be tried."""
COLLECTIVE_ENDS_NS = 200_000
"""The ends of one collective scatter by less, once the clocks' difference is taken out."""
ROUND_TRIP_NS = 200_000
"""The sum of the times of a message and of the one back may seem to be negative by this much."""
MESSAGE_AFTER_NS = 1_000_000
"""A message may seem to be sent this much before the block that made its data has ended: the block's last kernels and
the send are on two streams."""
POSTED_NS = 100_000
"""A receive that starts this soon after a block of its rank was posted by the code after that block."""
PROMPT_NS = 20_000
"""A task of a device that starts this soon after its communication ends waited for it."""
LAUNCH_NS = 1_000_000
"""A device may seem to begin its work this much before the host gave it. Profilers convert the device's clock by a line
between two comparisons with the host's, and on real captures (CUDA, 2023 to 2025) the result is off by up to 20 µs; no
kernel there begins less than 5 µs after the call that launched it."""
FEW_LAUNCHES_NS = 100_000
"""The same for few tasks of a process: if the clocks differ by more, all tasks that waited for nothing show it."""
FIFTH = 0.2
"""The usual value of ranks is that of the rank at the lowest fifth: half of them may be late."""
OVERLAP_NS = 100_000
"""A task may run on this long after the next one of its stream began. Streams run one task after the other, and on real
captures a kernel ends 0.2 µs or more before the next one begins. Only a programmatic launch lets the next one begin
early: its first blocks wait while the last ones of the kernel before finish, which takes some µs to tens of them."""
