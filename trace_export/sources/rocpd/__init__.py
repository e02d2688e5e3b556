"""AMD's profiler databases (rocpd), as rocprofv3 writes them since ROCm 7."""
