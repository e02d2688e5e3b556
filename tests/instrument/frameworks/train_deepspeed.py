"""DeepSpeed's PipelineEngine: STEPS MICROBATCHES OUT, on the CPU with gloo."""

import os
import sys
from pathlib import Path

import stub

stub.install()
steps, microbatches, out = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
os.environ.update(DS_ACCELERATOR="cpu", CROSS_SIZE="1", CROSS_RANK="0", LOCAL_SIZE=os.environ["LOCAL_WORLD_SIZE"])
import trace_export.instrument as ti  # noqa: E402

ti.auto()
import deepspeed  # noqa: E402
import torch  # noqa: E402
from deepspeed.pipe import PipelineModule  # noqa: E402

deepspeed.ops.__compatible_ops__.clear()  # compiles none: it takes minutes, and who is killed leaves a lock for ever
torch.set_num_threads(1)
torch.manual_seed(0)
deepspeed.init_distributed(dist_backend="gloo")
layers = [torch.nn.Linear(8, 8) for _ in range(4)]
model = PipelineModule(layers, num_stages=int(os.environ["WORLD_SIZE"]), loss_fn=torch.nn.functional.mse_loss)
settings = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": microbatches,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
    "zero_optimization": {"stage": 0},
}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=settings)
for _ in range(steps):
    engine.train_batch(iter([(torch.randn(2, 8), torch.randn(2, 8))] * microbatches))
stub.write(out)
