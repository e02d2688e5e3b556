"""torch.profiler (Kineto) traces."""
