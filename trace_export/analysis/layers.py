"""Where the layers of a model should be: the split into whole layers with the shortest step, by replay.

A part is a chunk on a stage. The parts between the first and the last hold only layers, so their blocks tell the cost
of a layer; the rest of the first part is the embedding, that of the last the output layer with the loss:

    part      0        1      2      3
    layers    8        8      8      8
    F ms      8.2      8.0    8.1    10.1      a layer 1.0, the embedding 0.2, the head 2.1
    better    9        9      8      6         F 9.2, 9.0, 8.1, 8.1

Layers are moved one at a time from the stage with the most work to those with the least while the replay gets shorter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trace_export.analysis.typical import Typical
from trace_export.answer import Sentence
from trace_export.errors import UsageError
from trace_export.steps.graph import Floats, Graph, Ints
from trace_export.steps.replay import Replay, Scenario
from trace_export.units import duration

Split = tuple[int, ...]
"""The number of layers of each part, chunk by chunk and in a chunk stage by stage: part a·P + b is chunk a on stage
b."""
COUNT = "count"
"""In place of a split: the layers are counted in the ranges of the forwards, or in their kernels."""
SURE = 0.025
"""9 of 10 simulated jobs that get the split, with other random numbers, come this near to the gain, as a share of the
step."""
TRIED = 4
"""Layers go from each of this many stages with the most work to each of this many with the least."""


@dataclass(frozen=True)
class Placement:
    """`layers`: the split of the run; `best`: that with the shortest step; `step_ns` of it and `gain_ns`, what it is
    shorter than the run, in replays with ordinary delays. `stages`: how many there are."""

    layers: Split
    best: Split
    stages: int
    step_ns: float
    gain_ns: float

    @property
    def gain(self) -> float:
        """The share of the step that is gained, within `SURE`."""
        return max(self.gain_ns, 0.0) / (self.step_ns + self.gain_ns)


def parse(text: str, parameter: str) -> Split:
    """The layers of each part: `80` gives (80,), which are to be spread evenly; `20,20,20,20` a list; and a layout of
    Megatron-LM, as `Et*20|(t*20|)*2t*20L`, its decoder layers. Raises UsageError that names `parameter`."""
    if re.fullmatch(r"\d{1,5}(?:,\d{1,5})*", text):
        return tuple(int(part) for part in text.split(","))
    expanded = re.sub(r"\(([^)]{1,200})\)\*(\d{1,3})", lambda m: m[1] * int(m[2]), text.replace(",", ""))
    expanded = re.sub(r"(.)\*(\d{1,4})", lambda m: m[1] * int(m[2]), expanded)
    if re.fullmatch(r"E[tm|]*L", expanded) and "t" in expanded:
        return tuple(part.count("t") for part in expanded.split("|"))
    raise UsageError(
        f'"{text[:100]}" is not a number of layers', "write it like 80, 20,20,20,20 or Et*20|(t*20|)*2t*20L, or count",
        parameter=parameter,
    )  # fmt: skip


def layout(split: Split) -> str:
    """As `--pipeline-model-parallel-layout` of Megatron-LM takes it: `Et*9|t*9|t*8|t*6L`."""
    parts = ["" if n == 0 else "t" if n == 1 else f"t*{n}" for n in split]
    return f"E{'|'.join(parts)}L"


def modules(split: Split) -> list[list[str]]:
    """As `module_fqns_per_model_part` of torchtitan takes it: the modules of each part; older
    versions call `lm_head` `output`."""
    numbers = iter(range(sum(split)))
    parts = [[f"layers.{next(numbers)}" for _ in range(count)] for count in split]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def best_split(graph: Graph, layers: Split, parameter: str, placement: str | None = None) -> Placement:
    """The best split of the layers of a run, which are spread over its parts as `layers` says. `placement`: how its
    chunks lie on the stages (`Declared.placement`).

    Raises UsageError that names `parameter` where they do not fit the parts of the run, no part is between the first
    and the last, or several chunks do not lie in a loop: then the last part is not on the last stage.
    """
    costs = _Costs.of(Typical(graph), layers, parameter)
    if len(costs.layers) > costs.stages and placement != "loop":
        raise UsageError(
            "layers can be moved only between chunks that lie in a loop, and those of this run do not",
            "leave it out", parameter=parameter,
        )  # fmt: skip
    replay = Replay(graph)
    best, step = costs.layers, float(replay.means([costs.scenario(costs.layers)])[0])
    measured = step
    while others := list(costs.near(best)):
        lengths = replay.means([costs.scenario(each) for each in others])
        if lengths.min() >= step:
            break
        best, step = others[int(lengths.argmin())], float(lengths.min())
    return Placement(costs.layers, best, costs.stages, step, measured - step)


def sentence(graph: Graph, layers: Split, parameter: str, placement: str | None, by: str | None = None) -> Sentence:
    """The best split in words; the facts have it in the forms that frameworks take. `by`: the ranges or the kernel by
    which the layers were counted."""
    split = best_split(graph, layers, parameter, placement)
    facts = {
        "layers": list(split.layers), "best": list(split.best), "gain_ns": max(split.gain_ns, 0.0), "gain": split.gain,
        "step_ns": split.step_ns, "band": SURE, "layout": layout(split.best), "modules": modules(split.best),
        "counted_by": by,
    }  # fmt: skip
    now = ", ".join(map(str, split.layers)) + (f" (counted by {by})" if by else "")
    best = ", ".join(map(str, split.best))
    if split.best == split.layers:
        return Sentence("layers", facts, f"No split into whole layers is better than that of the run ({now}).")
    if split.gain < SURE:
        text = f"No split into whole layers is surely better than that of the run ({now}): with {best} a step would be"
        return Sentence("layers", facts, f"{text} {split.gain:.1%} shorter, ± {100 * SURE:.1f} points.")
    text = (
        f"With {best} layers in place of {now} a step would take {duration(split.step_ns)}, {duration(split.gain_ns)}"
        f" ({split.gain:.1%}) less, ± {100 * SURE:.1f} points, by a replay of the measured blocks."
    )
    how = f"give Megatron-LM --pipeline-model-parallel-layout '{layout(split.best)}'"
    if len(split.best) == split.stages:
        how += f", MindSpeed --num-layer-list {','.join(map(str, split.best))}"
    how += "; torchtitan takes the lists `modules` of --json as module_fqns_per_model_part"
    return Sentence("layers", facts, text, how)


@dataclass(frozen=True)
class _Costs:
    """The time of the blocks of each part: for `each` of its layers, and `besides` (part × kind of block). `part` and
    `kind` of each operation, -1 where it is not a block; `blocks` of each part and kind in a step and replica."""

    typical: Typical
    layers: Split
    stages: int
    part: Ints
    kind: Ints
    each: Floats
    besides: Floats
    blocks: Floats

    @staticmethod
    def of(typical: Typical, layers: Split, parameter: str) -> _Costs:
        stage, chunk = typical.stage, np.maximum(typical.column("chunk"), 0)
        work = typical.is_block & (typical.column("microbatch") >= 0)
        stages, chunks = (int(of[work].max(initial=0)) + 1 for of in (stage, chunk))
        count = stages * chunks
        if len(layers) == 1 and layers[0] % count == 0:
            layers = (layers[0] // count,) * count
        if len(layers) != count or min(layers) < 1:
            parts = f"{stages} stages" if chunks == 1 else f"{stages} stages with {chunks} chunks each"
            raise UsageError(
                f"{sum(layers)} layers in {len(layers)} parts do not fit the run, which has {parts}",
                f"give {count} numbers, chunk by chunk", parameter=parameter,
            )  # fmt: skip
        if count < 3:
            raise UsageError(
                "two parts are too few to tell a layer from the embedding and the output layer",
                "give it for a run of at least three stages", parameter=parameter,
            )  # fmt: skip
        part = np.where(work, chunk * stages + stage, -1)
        kind = np.where(work, typical.graph.kind, -1)
        shape = count, int(kind.max()) + 1
        cell = part[work] * shape[1] + kind[work]
        number = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
        total = np.bincount(cell, typical.length[work], shape[0] * shape[1]).reshape(shape)
        mean = total / np.maximum(number, 1)
        each = mean / np.array(layers)[:, None]
        usual = np.median(each[1:-1], axis=0)
        each[[0, -1]] = np.minimum(usual, each[[0, -1]])
        return _Costs(typical, layers, stages, part, kind, each, mean - each * np.array(layers)[:, None], number)

    def means(self, split: Split) -> Floats:
        """The mean length of a block, part × kind."""
        means: Floats = self.each * np.array(split)[:, None] + self.besides
        return means

    def scenario(self, split: Split) -> Scenario:
        """A step with other numbers of layers: each block in the ratio of the means."""
        before = self.means(self.layers)
        ratio = np.append((self.means(split) / np.where(before > 0, before, 1)).ravel(), 1.0)
        at = np.where(self.part >= 0, self.part * before.shape[1] + self.kind, ratio.size - 1)
        return self.typical.length * ratio[at], self.typical.usual_delay

    def near(self, split: Split) -> Iterator[Split]:
        """The splits that move one layer."""
        load = (self.means(split) * self.blocks).sum(axis=1).reshape(-1, self.stages).sum(axis=0)
        order = np.argsort(-load, kind="stable")
        for high in order[:TRIED].tolist():
            for low in order[::-1][:TRIED].tolist():
                for source in self._parts(high, split, least=2):
                    for target in self._parts(low, split, least=0):
                        if source != target:
                            yield _moved(split, source, target)

    def _parts(self, stage: int, split: Split, least: int) -> list[int]:
        return [part for part in range(stage, len(split), self.stages) if split[part] >= least]


def _moved(split: Sequence[int], source: int, target: int) -> Split:
    moved = list(split)
    moved[source] -= 1
    moved[target] += 1
    return tuple(moved)
