"""The name of a kernel: whether the kernel communicates, and what it says about the pass of the kernel.

The names are those of PyTorch's own kernels (aten/src/ATen/native/cuda) and of the usual libraries of matrix products,
optimizers and attention. A name is looked at once, however many kernels bear it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int32]

_LIBRARIES = ("nccl", "rccl", "msccl")
"""RCCL calls most of its kernels as NCCL does; MSCCL's are in either."""
COMMUNICATION = rf"^(?:void )?(?:{'|'.join(_LIBRARIES)})"
"""A kernel of communication; demangled names of templates have their type before them."""
GLOBS = tuple(f"{before}{library}*" for before in ("", "void ") for library in _LIBRARIES)
"""The same as patterns of the shell."""
SENDS = r"(?i)SendRecv|(?:dev)?kernel_?Send"
"""The name of a kernel that sends, receives or does both contains this."""
GENERIC = r"(?i)Kernel_?Generic"
"""RCCL's kernel for most operations, which only the operation's name tells apart."""


def is_like(column: str, patterns: tuple[str, ...] = GLOBS) -> str:
    """The SQL condition that a column is like one of the patterns."""
    return "(" + " OR ".join(f"{column} GLOB '{pattern}'" for pattern in patterns) + ")"


GRAPH = "graph "
"""The name of a launch of a whole graph begins with this."""

OPTIMIZER = r"(?i)multi_tensor_apply|adam|lamb(?:[^a-z]|$)|FusedSGD|sgd_|adagrad|muon|lion_|adafactor"
FILL = r"FillFunctor"
SUM = r"(?i)CUDAFunctor(?:OnSelf|OnOther)?_add|AddFunctor"
OWN_SUM = r"CUDAFunctorOnSelf_add"
PRODUCTS = "product"
"""The family of matrix products."""
PRODUCT = r"(?i)gemm|nvjet|cutlass|cublas|wgmma|xmma|_mm_|matmul|\bKernel\b|\bCijk_"
ATTENTION = r"(?i)attention|flash|fmha|sdpa"
BACKWARD = r"(?i)bwd|bprop|backward|_grad_|dgrad|wgrad"
COUNTER = r"(?:CUDAFunctor_add|FillFunctor)<int>"
"""Megatron-LM counts its tokens between the passes with integer sums and fills."""

_BESIDE_PRODUCTS = r"splitK|(?i:reduce)|copy"
_GENERIC = [
    "vectorized_elementwise_kernel", "elementwise_kernel", "unrolled_elementwise_kernel", "multi_tensor_apply_kernel",
    "reduce_kernel",
]  # fmt: skip
"""Kernels of PyTorch whose work is named by the functor among their template arguments."""
_FUNCTOR = r"at::native::[A-Za-z_]+"
_NO_FUNCTOR = r"^at::native::(?:vectorized|elementwise|unroll|modern|legacy|multi|reduce|gpu_)"


def _like(texts: pl.Series, pattern: str) -> Bools:
    matching: Bools = texts.str.contains(pattern).to_numpy()
    return matching


def _names_like(pattern: str) -> cached_property[Bools]:
    """A property of KernelNames: which of the names contain the pattern."""

    def names(names: KernelNames) -> Bools:
        return _like(names.texts, pattern)

    return cached_property(names)


@dataclass(frozen=True)
class KernelNames:
    """Properties of names, by the row of each in `texts` (String): arrays to be indexed by a column of codes."""

    texts: pl.Series

    optimizer = _names_like(OPTIMIZER)
    """Updates of parameters."""
    fill = _names_like(FILL)
    sum = _names_like(SUM)
    own_sum = _names_like(OWN_SUM)
    """Sums with a number, with which torch.distributed.pipelining begins a weight gradient."""
    counter = _names_like(COUNTER)
    """Counts of tokens, which belong to no pass."""
    backward = _names_like(BACKWARD)
    """Kernels that run in backward passes only."""
    graph = _names_like(f"^{GRAPH}")
    """Launches of whole graphs."""
    product = _names_like(PRODUCT)
    """Matrix products."""

    @cached_property
    def weight(self) -> Bools:
        """Parts of weight gradients: products, and sums, reductions and copies beside them."""
        return self.product | self.sum | _like(self._stems, _BESIDE_PRODUCTS)

    @cached_property
    def stem(self) -> Codes:
        """The kind of kernel: equal numbers for names that differ in sizes of tiles and template arguments only.

        All products are one kind, and all graphs; a kernel for any functor counts by its functor:
        `void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>` is `at::native::FillFunctor`
        and `flash_fwd_kernel<64, 128>` is `flash_fwd_kernel`.
        """
        stems = pl.Series(np.where(self.product, PRODUCTS, self._stems.to_numpy()))
        return stems.rank("dense").to_numpy().astype(np.int32)

    @cached_property
    def attention_forward(self) -> Bools:
        """Attention in a forward, as every layer of a transformer has it."""
        return _like(self.texts, ATTENTION) & ~self.backward & ~_like(self.texts, r"(?i)grad")

    @cached_property
    def family(self) -> pl.Series:
        """The function of a kernel: equal texts for names that differ in sizes of tiles and template arguments only.
        All matrix products are `PRODUCTS`; attention, which is made of them, is not."""
        apart = self.product & ~_like(self.texts, ATTENTION)
        return pl.Series(np.where(apart, PRODUCTS, self._stems.to_numpy()), dtype=pl.String)

    @cached_property
    def _stems(self) -> pl.Series:
        text = pl.col("text")
        head = text.str.replace_all(r"\(anonymous namespace\)::|<unnamed>::", "").str.extract(r"^([^<(]*)")
        heads = pl.DataFrame({"text": self.texts}).with_columns(head=head.str.extract(r"([^:\s]+)\s*$").fill_null(text))
        functors = text.str.extract_all(_FUNCTOR).list.eval(
            pl.element().filter(~pl.element().str.contains(_NO_FUNCTOR))
        )
        stem = (
            pl.when(text.str.starts_with(GRAPH))
            .then(pl.lit(GRAPH))
            .when(pl.col("head").is_in(_GENERIC))
            .then(pl.coalesce(functors.list.first(), "head"))
            .otherwise(pl.col("head").str.replace_all(r"\d+", ""))
        )
        return heads.select(stem)[:, 0].rename("stem")
