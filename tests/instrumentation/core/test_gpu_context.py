"""GPU facts on a server's request span, against a stand-in for NVML's library; and nothing if there is none."""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import pytest
from support.instrumentation.recorded import Recorded
from support.patience import WAIT_S

import otel_llm
from otel_llm import semconv
from otel_llm.instrumentation.core import gpu
from otel_llm.instrumentation.engines import engine_request as engine
from otel_llm.instrumentation.process import runtime

GIB = 2**30


class NVMLError(Exception):
    pass


class Nvml(types.ModuleType):
    """Two devices; what they do is what a test says."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.__spec__ = ModuleSpec("pynvml", None)
        self.busy = {0: 50, 1: 100}
        self.driver = True
        self.slices = False
        self.looks = 0
        self.open = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.driver:
            raise NVMLError("no driver")
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:  # noqa: N802
        return int(name.removeprefix("GPU-"))

    def nvmlDeviceGetName(self, device: int) -> bytes:  # noqa: N802
        return b"NVIDIA H200"

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:  # noqa: N802
        self.looks += 1
        if self.slices:
            raise NVMLError("not supported")
        return types.SimpleNamespace(gpu=self.busy[device])

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:  # noqa: N802
        return types.SimpleNamespace(used=(device + 1) * GIB, total=8 * GIB)


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sample fast, and for longer than a test takes, in a process that was never asked."""
    before = gpu.sampler()
    gpu.use(gpu.Sampler(period_s=0.01, linger=100_000))
    monkeypatch.delenv(gpu.VISIBLE, raising=False)
    yield
    stop()
    gpu.use(before)


@pytest.fixture
def nvml(fresh: None, monkeypatch: pytest.MonkeyPatch) -> Nvml:
    module = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def sampling() -> bool:
    return gpu.sampler().running


def eventually(reached: Callable[[], bool]) -> None:
    """Wait for another thread, at most as long as no machine takes."""
    limit = time.monotonic() + WAIT_S
    while not reached():
        assert time.monotonic() < limit
        time.sleep(0.001)


def stop() -> None:
    """Stop sampling. It waits for two periods, which on a busy machine is less than a thread takes to end here."""
    gpu.stop()
    eventually(lambda: not sampling())


def newest() -> gpu.Sample | None:
    return gpu.sampler().newest


def more_samples(count: int = 2) -> None:
    """Wait until some more looks were taken."""
    before = 0 if (last := newest()) is None else last.samples
    eventually(lambda: (now := newest()) is not None and now.samples >= before + count)


def served(recorder: Recorded) -> dict[str, Any]:
    """Serve one request, with a few looks in its time; return what its span says."""
    running = runtime.running()
    assert running is not None
    generation = engine.begin(running, operation="chat", model="m", request_id="r", stream=True)
    assert generation is not None
    more_samples()
    generation.tokens(running.clock_ns(), 1)
    generation.finished(running.clock_ns())
    [request] = recorder.requests()
    return dict(request.attributes or {})


def test_a_servers_request_says_what_its_gpus_did(nvml: Nvml, recorder: Recorded) -> None:
    said = served(recorder)
    assert said[semconv.GPU_NAME] == "NVIDIA H200"
    assert said[semconv.GPU_COUNT] == 2
    assert said[semconv.GPU_UTILISATION] == pytest.approx(0.75)
    assert (said[semconv.GPU_MEMORY_USED], said[semconv.GPU_MEMORY_TOTAL]) == (3 * GIB, 16 * GIB)


def test_the_utilisation_is_that_of_the_requests_own_time(nvml: Nvml) -> None:
    gpu.mark()
    more_samples()
    nvml.busy = {0: 0, 1: 0}
    more_samples()
    began = gpu.mark()
    assert began is not None
    assert began.busy > 0
    more_samples()
    assert gpu.attributes(began)[semconv.GPU_UTILISATION] == 0.0


def test_a_request_within_one_sample_says_nothing_of_utilisation(nvml: Nvml) -> None:
    gpu.mark()
    more_samples()
    stop()
    last = newest()
    assert last is not None
    said = gpu.attributes(gpu.Mark(last.samples, last.busy))
    assert semconv.GPU_UTILISATION not in said
    assert said[semconv.GPU_NAME] == "NVIDIA H200"


def test_only_the_devices_of_this_process_count(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpu.VISIBLE, "GPU-1,-1,0")
    began = gpu.mark()
    assert began is not None
    more_samples()
    said = gpu.attributes(began)
    assert (said[semconv.GPU_COUNT], said[semconv.GPU_UTILISATION], said[semconv.GPU_MEMORY_USED]) == (1, 1.0, 2 * GIB)


def test_a_device_without_utilisation_still_has_its_memory(nvml: Nvml) -> None:
    nvml.slices = True
    began = gpu.mark()
    assert began is not None
    eventually(lambda: newest() is not None)
    said = gpu.attributes(began)
    assert semconv.GPU_UTILISATION not in said
    assert said[semconv.GPU_MEMORY_TOTAL] == 16 * GIB


def test_the_thread_ends_when_no_request_comes(nvml: Nvml) -> None:
    gpu.sampler().linger = 3
    gpu.mark()
    eventually(lambda: newest() is not None and not sampling())
    looks = nvml.looks
    assert looks == 6
    assert nvml.open == 0
    gpu.mark()
    eventually(lambda: nvml.looks > looks)


def test_a_client_asks_nothing(nvml: Nvml, recorder: Recorded) -> None:
    for _ in otel_llm.track(iter("abc"), model="m"):
        pass
    assert recorder.stream().outcome == "completed"
    assert (sampling(), newest()) == (False, None)


def test_without_nvml_there_is_nothing(fresh: None, recorder: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    started: list[object] = []
    gpu.use(gpu.Sampler(start=started.append))
    running = runtime.running()
    assert running is not None
    generation = engine.begin(running, operation="chat", model="m", request_id="r", stream=True)
    assert generation is not None
    generation.finished(running.clock_ns())
    [request] = recorder.requests()
    assert not [name for name in request.attributes or {} if "gpu" in name]
    assert (sampling(), started, gpu.mark()) == (False, [], None)
    assert "pynvml" not in sys.modules


@pytest.mark.parametrize("broken", ["driver", "none visible", "count"])
def test_where_nvml_fails_it_is_asked_once(nvml: Nvml, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    if broken == "driver":
        nvml.driver = False
    elif broken == "none visible":
        monkeypatch.setenv(gpu.VISIBLE, "")
    else:
        monkeypatch.setattr(Nvml, "nvmlDeviceGetCount", lambda self: 1 / 0)
    gpu.mark()
    eventually(lambda: not sampling())
    assert (gpu.mark(), sampling(), nvml.open) == (None, False, 0)
    assert gpu.attributes(gpu.Mark()) == {}
