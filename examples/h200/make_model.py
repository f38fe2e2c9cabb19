"""Make a Llama with random weights and a tokenizer that knows all its tokens: nothing is downloaded.

Usage: make_model.py SHAPE FOLDER, SHAPE being llama-3.1-8b (16 GB), llama-3.2-1b (3 GB) or tiny. Runs if torch is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 8192,
        "rope_theta": 500_000.0,
    },
    "llama-3.2-1b": {
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rope_theta": 500_000.0,
    },
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 1024,
    },
}
SPECIAL = ["<unk>", "<s>", "</s>", "<|user|>", "<|assistant|>"]
LEARNED = 480


def tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Learn some tokens from torch's own sources; the others are words of their own, so that each id has a text."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=LEARNED, special_tokens=SPECIAL, initial_alphabet=alphabet)
    sources = sorted(Path(torch.__file__).parent.joinpath("nn", "modules").glob("*.py"))[:30]
    bpe.train([str(path) for path in sources], trainer)
    learned = json.loads(bpe.to_str())
    vocabulary = learned["model"]["vocab"]  # as words of their own they would take 8 s at every start of a server
    vocabulary.update({f"Ġw{number}": number for number in range(len(vocabulary), size)})
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(learned)),
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="</s>",
    )
    fast.chat_template = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% endfor %}<|assistant|>"
    return fast


def main(shape: str, folder: str) -> None:
    """Write model and tokenizer to `folder`."""
    sizes = SHAPES[shape]
    tokenizer(int(sizes["vocab_size"])).save_pretrained(folder)
    config = LlamaConfig(**sizes, bos_token_id=1, eos_token_id=None, pad_token_id=2, tie_word_embeddings=False)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = None  # replies are as long as they are asked to be
    model.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
