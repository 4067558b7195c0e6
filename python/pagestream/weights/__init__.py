"""Safetensors checkpoints: `open_checkpoint`."""
