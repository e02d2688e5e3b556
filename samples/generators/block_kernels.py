"""What the kernels of a block are: those of the layers of a stage, and ways in which a rank does more or is slower.

A usual block has `LAYERS` layers and nothing else, so that the parts of a longer one are known: shares of the usual.
The library chooses other tiles for products on every second rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from samples.generators.pipeline import Block

LAYERS = 4
PRODUCT = "{product}"
LAYER = (
    ("flash_{way}_kernel", 0.3), (PRODUCT, 0.4), ("layer_norm_{way}_kernel", 0.1), (PRODUCT, 0.15),
    ("gelu_{way}_kernel", 0.05),
)  # fmt: skip
"""The kernels of a layer, and their shares of its time."""
PRODUCTS = sum(share for name, share in LAYER if name == PRODUCT)
WAYS = {"F": "fwd", "B": "bwd", "W": "wgrad", "FB": "pair", "OPT": "step"}
TILES = ("128x256_64x4", "256x128_64x3")

Cut = Callable[[Block], list[tuple[str, int, int]]]
"""The kernels of a block, with the times at which they start and end."""


@dataclass(frozen=True)
class Shape:
    """How the blocks of a rank differ from usual ones. `layers`: how many they have; `more`: kernel → how long it is,
    as a share of a usual block; `slower`: how many times as long the kernels of the layers take; `products`: the same
    of their matrix products alone; `gaps`: how long nothing runs, as a share of a usual block, in as many `pauses`."""

    layers: int = LAYERS
    more: Mapping[str, float] = field(default_factory=dict)
    slower: float = 1.0
    products: float = 1.0
    gaps: float = 0.0
    pauses: int = 1

    @property
    def factor(self) -> float:
        """How many times as long as a usual block."""
        layer = 1 + (self.products - 1) * PRODUCTS
        return self.layers / LAYERS * self.slower * layer + sum(self.more.values()) + self.gaps

    def kernels(self, block: Block) -> list[tuple[str, int, int]]:
        """The kernels of a block, which fill it but for the gaps."""
        way, product = WAYS[block.kind], f"nvjet_tst_{TILES[block.rank % 2]}_{WAYS[block.kind]}_gemm"
        slower = {PRODUCT: self.slower * self.products}
        usual = [
            (name.format(way=way, product=product), share * slower.get(name, self.slower) / LAYERS)
            for name, share in LAYER
        ]
        work = usual * self.layers + list(self.more.items())
        after = {round((n + 1) * len(work) / (self.pauses + 1)) for n in range(self.pauses)} if self.gaps else set()
        pieces: list[tuple[str | None, float]] = []
        for n, kernel in enumerate(work):
            pieces += [(None, self.gaps / len(after)), kernel] if n in after else [kernel]
        length = (block.end_ns - block.start_ns) / self.factor
        ends = [block.start_ns + round(length * until) for until in accumulate(share for _, share in pieces)]
        starts = [block.start_ns, *ends]
        return [(name, a, b) for (name, _), a, b in zip(pieces, starts, ends, strict=False) if name is not None]


USUAL = Shape()


def cut_by(shapes: Mapping[int, Shape] | None) -> Cut | None:
    """The kernels of the blocks of each rank; None where nothing is said of them."""
    return None if shapes is None else lambda block: shapes.get(block.rank, USUAL).kernels(block)
