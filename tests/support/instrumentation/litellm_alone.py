"""LiteLLM for one test: without the network, and quiet."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.requirements import require


@contextmanager
def litellm_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import LiteLLM here, so that the rest of the suite never sees it; skip the test if it is not installed."""
    require("litellm")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # it would ask the network for its prices
    import litellm

    monkeypatch.setattr(litellm, "suppress_debug_info", True)
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.collect()  # the connections that litellm drops warn here, while the test's own filters of warnings stand
