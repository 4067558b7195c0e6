"""Plug-ins for programs that serve models: vLLM, SGLang and TensorRT-LLM.

Each module belongs to one of these programs and imports it, so no module here is imported before its program
requests it.
"""
