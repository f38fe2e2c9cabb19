"""Let a process that spins on `os.sched_yield` sleep instead, as the first module in its PYTHONPATH.

vLLM's workers wait for their next step that way for a second. On Linux 6.18 such a storm of yields can keep every
thread that is woken on the same core waiting for half a minute (the collector's had 34 s of run delay each), so that
nothing that runs beside the engine on a machine of two cores can be tested.
"""

import os
import time

os.sched_yield = lambda: time.sleep(0.0001)
