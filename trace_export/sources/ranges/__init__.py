"""From profiler annotations (NVTX ranges, record_function) to pipeline blocks, for any profiler with launches."""
