"""What measured blocks mean: their stage, step, micro-batch, schedule, messages and dependencies."""
