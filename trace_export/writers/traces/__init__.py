"""A chart as a trace: Perfetto protobuf and Chrome JSON."""
