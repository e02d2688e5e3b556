"""Ranges around the layers of a block, on the thread that launches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from samples.generators.pipeline import Block

SPELLINGS: dict[str, list[str]] = {
    "fsdp": ["FSDP::pre_forward (layers.{layer})", "FSDP::pre_forward (layers.{layer}.mlp)"],
    "megatron-fsdp": ["MFSDP module.layers.{layer} forward", "MFSDP module.layers.{layer}.mlp forward"],
    "megatron": [
        "megatron.core.transformer.transformer_layer._forward_attention.self_attention",
        "megatron.core.transformer.transformer_layer._forward_attention.self_attn_bda",
        "megatron.core.transformer.transformer_layer._forward_mlp.mlp",
    ],
    "megatron-overlapped": ["layer_{local}f"],
    "modules": [
        "nn.Module: LlamaDecoderLayer_{local}", "nn.Module: SelfAttention_{local}", "nn.Module: Linear_{twice}",
    ],
}  # fmt: skip
"""What the ranges of a layer are called. `layer`: its number in the model; `local`: that in the process."""

Put = Callable[[int, int, str, bool], None]
"""Takes a range: start, end, name, and whether it is on the thread of the autograd engine."""


@dataclass(frozen=True)
class LayerRanges:
    """`held`: how many layers each part has, chunk by chunk; `spelling`: see `SPELLINGS`; `beside`: what
    other ranges the passes of a part have. The forward is computed once more in the backward, with the same ranges."""

    held: tuple[int, ...]
    spelling: str
    beside: Mapping[int, Sequence[str]] = field(default_factory=dict)

    def write(self, block: Block, part: int, stages: int, start: int, end: int, put: Put) -> None:
        """The ranges of a forward or backward of a `part`, between `start` and `end`."""
        count, first = self.held[part], sum(self.held[:part])
        local = 0 if self.spelling == "megatron-overlapped" else sum(self.held[part % stages : part : stages])
        for at, name in enumerate(self.beside.get(part, ()) if block.kind in "FB" else ()):
            put(start + at, start + at + 1, name, block.kind == "B")
        for n in range(count if block.kind in "FB" else 0):
            numbers = {"layer": first + n, "local": local + n, "twice": 2 * (local + n)}
            begin, until = (start + 100 + (end - start - 200) * at // count for at in (n, n + 1))
            for name in (names := SPELLINGS[self.spelling]):
                part_ns = (until - begin) // len(names)
                put(begin, begin + part_ns - 1, name.format(**numbers), block.kind == "B")
                begin += part_ns
