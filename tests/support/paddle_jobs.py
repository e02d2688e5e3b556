"""Paddle jobs of every kind that the reader has to understand, by name."""

from samples.generators.paddle import Job
from tests.support import golden

INTERLEAVED = golden.orders("vpp2_p4_m8")
JOBS = {
    "all forwards first": Job(4, 8, orders=golden.orders("fthenb_p4_m8")),
    "1f1b": Job(),
    "1f1b with communication jobs": Job(communication=True),
    "1f1b, not announced": Job(announced=False, steps=range(2)),
    "eager 1f1b": Job(orders=golden.orders("eager1f1b_p4_m8")),
    "interleaved": Job(orders=INTERLEAVED, chunks=2, communication=True),
    "interleaved, as many micro-batches as stages": Job(4, 4, orders=golden.orders("vpp2_paddle_p4_m4"), chunks=2),
    "zb-h1": Job(orders=golden.orders("zbh1_paddle_p4_m8"), split=True),
    "zb-v": Job(orders=golden.orders("zbv_p4_m8"), chunks=2, vee=True, split=True),
    "tensor and data parallel": Job(2, 6, tensor=2, data=2),
    "one machine of several": Job(2, 4, machines=1, steps=range(7, 8)),
    "two machines": Job(machines=2, clock_errors_us=(0, 3_200)),
}
"""Those of static graphs."""

RECORDS = {"1f1b": Job(steps=range(2)), "interleaved": Job(steps=range(2), orders=INTERLEAVED, chunks=2)}
"""Those of dynamic graphs."""
