"""Ascend profiles of torch_npu and MindSpore: databases and text exports."""
