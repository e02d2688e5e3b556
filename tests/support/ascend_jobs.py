"""Ascend and MindSpore jobs of every kind that the reader has to understand, by name."""

from samples.generators.ascend import Job, model_graph_marker, no_marker, without_model_graph_marker
from samples.generators.pipeline import Order
from tests.support import golden, mindspeed


def _dualpipev(stages: int, microbatches: int, *, fused: bool = True) -> list[Order]:
    return [
        [operation for operation, _, _ in stage] for stage in mindspeed.dualpipev(stages, microbatches, fused=fused)
    ]


def _information(microbatches: int) -> dict[str, object]:
    return {"pp_type": "dualpipev", "microbatch_num": microbatches}


JOBS = {
    "1f1b": Job(4, 8, skew_ns=3_500_000),
    "interleaved": Job(4, 8, 1, orders=golden.orders("vpp2_p4_m8"), chunks=2),
    "dualpipev": Job(
        4, 10, orders=_dualpipev(4, 10), chunks=2, vee=True, marker=model_graph_marker(10), nested=True,
        pipeline_info=_information(10), skew_ns=-2_400_000,
    ),
    "dualpipev not fused": Job(
        2, 6, 1, orders=_dualpipev(2, 6, fused=False), chunks=2, vee=True, marker=without_model_graph_marker(6),
        pipeline_info=_information(6), hosts=1,
    ),
    "dualpipev, context parallel": Job(
        2, 6, 1, orders=_dualpipev(2, 6), chunks=2, vee=True, context=2, marker=model_graph_marker(6),
        pipeline_info=_information(6), hosts=1,
    ),
    "batched transfers": Job(4, 6, 1, batched=True),
    "clipped": Job(2, 6, clip={1: 3}, hosts=1),
    "level none": Job(4, 6, 1, level=None),
    "level 0": Job(2, 4, 1, level=0, hosts=1),
    "ranks in the order tp, pp, dp": Job(2, 4, 1, tensor=2, data=2, pipelines_first=True),
    "mindspore": Job(4, 6, 1, framework="mindspore"),
    "mindspore text": Job(4, 4, framework="mindspore", text=True),
    "text": Job(4, 6, 1, text=True, skew_ns=3_500_000),
    "text, times as numbers": Job(4, 6, 1, text=True, skew_ns=3_500_880, stamps="numbers"),
    "text, relative times": Job(4, 6, 1, text=True, skew_ns=3_500_000, stamps="relative"),
    "text, relative times, marks alone": Job(4, 6, 1, text=True, level=None, hosts=1, stamps="relative"),
    "mindspore text, packed": Job(4, 4, 1, framework="mindspore", text=True, packed=True),
    "mindspore text of 2.4": Job(4, 4, 1, framework="mindspore", text=True, skew_ns=-1_400_000, layout="beside"),
    "mindspore text of 2.3": Job(4, 4, 1, framework="mindspore", text=True, hosts=1, layout="timeline beside"),
    "mindspore text of 2.3, rank folders": Job(
        4, 4, 1, framework="mindspore", text=True, hosts=1, layout="rank folders"
    ),
    "text, loose": Job(2, 4, 1, text=True, layout="loose"),
    "text, merged": Job(2, 4, 1, text=True, layout="merged"),
    "mindspore text without markers": Job(4, 4, framework="mindspore", text=True, marker=no_marker),
}  # fmt: skip
