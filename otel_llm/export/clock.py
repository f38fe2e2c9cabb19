"""The only place of the application's side that reads clocks: functions of `time` under names that give their unit."""

from __future__ import annotations

import time
from typing import Final

monotonic_ns: Final = time.monotonic_ns
"""Nanoseconds that never step."""
monotonic_s: Final = time.monotonic
"""The same clock, in seconds."""
perf_counter_s: Final = time.perf_counter
"""Seconds of the clock that SGLang stamps requests with."""
wall_ns: Final = time.time_ns
"""Unix nanoseconds of the wall clock, which may step."""
wall_s: Final = time.time
"""Unix seconds of the wall clock."""
