"""The switches of the policy. Each mechanism can be turned off, so that its worth can be measured."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Chunking = Literal["slack", "tpot", "engine"]
"""The prefill tokens of a batch beside decodes; `engine`: `max_batched_tokens`, which the policy cannot change."""


@dataclass(frozen=True)
class PolyServeSettings:
    """The mechanisms of PolyServe (section 4) and what is ours.

    `load_gradient`: the fullest replica that meets the promise, else the least loaded. `lazy_promotion`: a request may
    go to a tighter tier when its own is full. `dynamic_chunking`: the rest of a prompt below twice the budget is one
    chunk, on a replica without decodes. `continuous_prediction`: the budget must hold until the end of the prefill.
    `slack_share`: the part of the slack that a batch may use. `kv_margin`: the part of KV that the predicted future
    leaves free. `late_share`: a late request joins a replica that stays below this part of its bounds. `unlimited`: the
    idle pool never runs out of replicas.
    """

    load_gradient: bool = True
    lazy_promotion: bool = True
    dynamic_chunking: bool = True
    continuous_prediction: bool = True
    chunking: Chunking = "slack"
    slack_share: Fraction = Fraction(4, 5)
    kv_margin: Fraction = Fraction(1, 10)
    late_share: Fraction = Fraction(3, 4)
    unlimited: bool = False
