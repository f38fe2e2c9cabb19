"""Engines that report each token at the time they made it: vLLM, SGLang, transformers."""
