"""Hooks of engines, which know when each token was made: vLLM, SGLang, transformers."""
