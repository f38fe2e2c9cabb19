"""The use of GPUs during a request, from NVML; nothing if NVML is missing.

NVML (`nvidia-ml-py`, imported as `pynvml`) is asked once a second by a thread that the first request starts and that
ends after a minute without one. A request only reads running totals: at its commit and at its end.
"""

from __future__ import annotations

import contextlib
import os
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_llm import semconv
from otel_llm.export import threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_llm.export.records import AttributeValue

PERIOD_S: Final = 1.0
LINGER: Final = 60
"""The number of samples without a request after which the thread ends."""
DEVICES: Final = 16
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


class Mark(NamedTuple):
    """The running totals at a request's commit: number of samples, and the sum of their utilisation."""

    samples: int = 0
    busy: float = 0.0


class Sample(NamedTuple):
    """The newest sample of all devices; `busy` is the sum over the `samples` that had a utilisation."""

    samples: int
    busy: float
    name: str
    devices: int
    used: int | None
    total: int | None


class Sampler:
    """Asks NVML every `period_s` while requests come; the thread is a daemon, and ends by itself.

    It ends after `linger` samples without a request; `start` starts it.
    """

    def __init__(
        self,
        *,
        period_s: float = PERIOD_S,
        linger: int = LINGER,
        start: Callable[[Callable[[], None]], object] = threads.start,
    ) -> None:
        self.linger = linger
        self._period_s = period_s
        self._start_thread = start
        self._lock = threads.lock()
        self._wanted = 0
        self.newest: Sample | None = None
        self.running = False
        self.hopeless = False
        self._stopping = False
        self._wake = threads.Wake()

    def want(self) -> Sample | None:
        """Return the newest sample; see to it that there will be newer ones."""
        self._wanted = self.linger
        if not self.running and not self.hopeless:
            self._start()
        return self.newest

    def stop(self) -> None:
        """End the thread, and wait for it."""
        self._stopping = True
        self._wake.set()
        threads.wait_until(lambda: not self.running, 2 * self._period_s)

    def _start(self) -> None:
        if find_spec("pynvml") is None:
            self.hopeless = True
            return
        with self._lock:
            starts = not self.running
            self.running = True
        if starts:
            self._stopping = False
            try:
                self._start_thread(self._run)
            except BaseException:
                self.running = False
                raise

    def _run(self) -> None:
        # Any failure, of the driver or of its bindings, means that there is no data.
        try:
            nvml = import_module("pynvml")
            nvml.nvmlInit()
        except Exception:  # noqa: BLE001
            self.hopeless = True
            self.running = False
            return
        try:
            devices = _visible(nvml)
            name = _names(nvml, devices)
            while devices and self._wanted > 0:
                self._wanted -= 1
                self.newest = _sample(nvml, devices, name, self.newest)
                self._wake.wait(self._period_s)
                if self._stopping:
                    break
            self.hopeless = not devices
        except Exception:  # noqa: BLE001
            self.hopeless = True
        finally:
            with contextlib.suppress(Exception):
                nvml.nvmlShutdown()
            self.running = False


def _visible(nvml: Any) -> list[Any]:
    """Return the handles of the devices that this process may use."""
    stated = os.environ.get(VISIBLE)
    if stated is None:
        names: list[str] = [str(index) for index in range(nvml.nvmlDeviceGetCount())]
    else:
        names = [name.strip() for name in stated.split(",") if name.strip()]
    handles = []
    for name in names[:DEVICES]:
        if name.isdigit():
            handles.append(nvml.nvmlDeviceGetHandleByIndex(int(name)))
        elif name.startswith(("GPU-", "MIG-")):
            handles.append(nvml.nvmlDeviceGetHandleByUUID(name))
        else:  # CUDA stops at the first invalid one, -1 for example
            break
    return handles


def _names(nvml: Any, devices: list[Any]) -> str:
    names = [nvml.nvmlDeviceGetName(device) for device in devices]
    return ", ".join(sorted({name.decode() if isinstance(name, bytes) else str(name) for name in names}))


def _sample(nvml: Any, devices: list[Any], name: str, before: Sample | None) -> Sample:
    samples, busy = (before.samples, before.busy) if before is not None else (0, 0.0)
    used = total = None
    with contextlib.suppress(nvml.NVMLError):  # a MIG slice has no utilisation
        busy += sum(nvml.nvmlDeviceGetUtilizationRates(device).gpu for device in devices) / (100.0 * len(devices))
        samples += 1
    with contextlib.suppress(nvml.NVMLError):
        memory = [nvml.nvmlDeviceGetMemoryInfo(device) for device in devices]
        used, total = sum(one.used for one in memory), sum(one.total for one in memory)
    return Sample(samples, busy, name, len(devices), used, total)


_sampler: Final = [Sampler()]


def sampler() -> Sampler:
    """Return what asks in this process."""
    return _sampler[0]


def use(one: Sampler) -> None:
    """Ask by this one from now on."""
    _sampler[0] = one


def _after_fork() -> None:
    use(Sampler())


_registered: Final[list[bool]] = []


def mark() -> Mark | None:
    """Return where the totals stand as a request begins, None if there is no NVML; never raises, never waits."""
    try:
        if sampler().hopeless:
            return None
        if not _registered and hasattr(os, "register_at_fork"):
            _registered.append(True)
            os.register_at_fork(after_in_child=_after_fork)
        newest = sampler().want()
    except Exception:  # noqa: BLE001
        return None
    return Mark() if newest is None else Mark(newest.samples, newest.busy)


def attributes(began: Mark) -> dict[str, AttributeValue]:
    """Return what the devices did since `began`; what is not known is not said. Never raises, never waits."""
    newest = sampler().newest
    if newest is None:
        return {}
    reported: dict[str, AttributeValue] = {semconv.GPU_NAME: newest.name, semconv.GPU_COUNT: newest.devices}
    if newest.samples > began.samples:
        reported[semconv.GPU_UTILISATION] = (newest.busy - began.busy) / (newest.samples - began.samples)
    if newest.used is not None and newest.total is not None:
        reported[semconv.GPU_MEMORY_USED], reported[semconv.GPU_MEMORY_TOTAL] = newest.used, newest.total
    return reported


def stop() -> None:
    """Stop asking, until the next request."""
    sampler().stop()
