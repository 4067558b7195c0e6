"""Plug-ins for programs that serve models: vLLM, SGLang and TensorRT-LLM.

Each module belongs to one of them and imports it, so nothing here is imported before that
program asks for it.
"""
