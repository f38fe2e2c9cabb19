"""Make the model of the sweep: a Llama with random weights that two CPU cores have to work for. Nothing is downloaded.

Usage: make_model.py FOLDER. Runs if torch is.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

SHAPE = {
    "vocab_size": 512,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 1024,
}
"""76 M parameters: a step takes tens of ms, so that what is measured is the engine, not the HTTP around it."""


def main(folder: str) -> None:
    """Write model and tokenizer to `folder`, as the example of the GPU does for its shapes."""
    made = runpy.run_path(str(Path(__file__).parents[1] / "h200" / "make_model.py"))
    made["SHAPES"]["load-sweep"] = SHAPE
    made["main"]("load-sweep", folder)


if __name__ == "__main__":
    main(sys.argv[1])
