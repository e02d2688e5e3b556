"""Megatron-Core's own schedules: CHUNKS STEPS MICROBATCHES OUT. CHUNKS 1 is 1F1B, more is interleaved 1F1B.

Without a GPU: its tensors on the device "cuda" are made on the CPU, its messages go through gloo.
"""

import sys
from pathlib import Path

import stub

stub.install()
chunks, steps, microbatches, out = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
import trace_export.instrument as ti  # noqa: E402

ti.auto()
import torch  # noqa: E402


def on_cpu(make):
    return lambda *args, **how: make(*args, **{k: v for k, v in how.items() if k != "device"})


torch.zeros, torch.tensor, torch.empty = map(on_cpu, (torch.zeros, torch.tensor, torch.empty))
torch.cuda.current_device = lambda: "cpu"
torch.cuda.synchronize = lambda *device: None

import torch.distributed as dist  # noqa: E402
from megatron.core import ModelParallelConfig, parallel_state  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.optimizer.optimizer import FP32Optimizer  # noqa: E402
from megatron.core.optimizer.optimizer_config import OptimizerConfig  # noqa: E402
from megatron.core.pipeline_parallel import get_forward_backward_func  # noqa: E402

HIDDEN, BATCH, LENGTH = 8, 2, 4


class Chunk(torch.nn.Module):
    """A part of the model: the schedule gives it its input, or None on the first stage."""

    model_type = ModelType.encoder_or_decoder

    def __init__(self, config: ModelParallelConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = torch.nn.Linear(HIDDEN, HIDDEN)
        self.given = None

    def set_input_tensor(self, tensors: list) -> None:
        self.given = tensors[0]

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.layer(batch if self.given is None else self.given)


def forward_step(data, model):
    output = model(next(data))
    return output, lambda y: (y.square().mean(), {"loss": 0})


def batches():
    while True:
        yield torch.randn(LENGTH, BATCH, HIDDEN)


torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
parallel_state.initialize_model_parallel(
    pipeline_model_parallel_size=dist.get_world_size(),
    virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
)
config = ModelParallelConfig(
    pipeline_model_parallel_size=dist.get_world_size(),
    virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
    pipeline_dtype=torch.float32,
    microbatch_group_size_per_vp_stage=dist.get_world_size(),
)
config.hidden_size, config.fine_grained_activation_offloading = HIDDEN, False
model = [Chunk(config) for _ in range(chunks)]
sgd = torch.optim.SGD([p for m in model for p in m.parameters()], lr=0.1)
optimizer = FP32Optimizer(sgd, OptimizerConfig(optimizer="sgd", lr=0.1, clip_grad=0.0), lambda *a: None)
optimizer.get_main_grads_for_grad_norm = list
run = get_forward_backward_func()
for _ in range(steps):
    run(
        forward_step_func=forward_step,
        data_iterator=[batches() for _ in model] if chunks > 1 else batches(),
        model=model if chunks > 1 else model[0],
        num_microbatches=microbatches,
        seq_length=LENGTH,
        micro_batch_size=BATCH,
        forward_only=False,
    )
    for parameter in (p for m in model for p in m.parameters()):
        parameter.main_grad = parameter.grad
    optimizer.step()
dist.barrier()
stub.write(out)
dist.destroy_process_group()
