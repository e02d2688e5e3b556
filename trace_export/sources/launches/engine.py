"""How PyTorch names its autograd engine (torch/csrc/autograd/engine.cpp)."""

from __future__ import annotations

AUTOGRAD = "pt_autograd"
"""How the names of its threads begin."""
ENGINE_NODE = "autograd::engine::evaluate_function"
"""How the ranges around the nodes that it executes begin."""
