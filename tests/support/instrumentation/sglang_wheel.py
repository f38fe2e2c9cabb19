"""SGLang's own code out of its wheel, as far as it runs without a GPU, around a stand-in for its scheduler.

SGLang does not import without CUDA builds of torch and others. Real here: `sglang.srt.plugins` with its hook registry,
whole; and of `TokenizerManager`, where our hooks sit, the methods through which every request and every batch of
outputs goes, compiled from the wheel's own source. Standing in: tokenizer, scheduler, their messages, configuration.
Nothing of SGLang is kept in this repository: the wheel is fetched, and what cannot be fetched is a skip.
"""

from __future__ import annotations
import __future__

import ast
import asyncio
import contextlib
import dataclasses
import importlib
import logging
import subprocess
import sys
import tempfile
import time
import types
import zipfile
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from support.requirements import skip_without

VERSION = "0.5.23"
MANAGER = "sglang.srt.managers.tokenizer_manager"
METHODS = {
    "generate_request",
    "handle_loop",
    "_handle_abort_finish_reason",
    "_handle_abort_req",
    "_handle_batch_output",
    "_get_scheduler_first_token_time",
    "_init_req_state",
    "_mark_state_dispatched",
    "_release_lora_once",
    "_release_req_states_on_failure",
    "_stream_one_response",
    "_wait_one_response",
    "abort_request",
}
"""The methods of the real `TokenizerManager` that run here."""


def unpacked(cache: Path) -> Path:
    """Return the folder of the unpacked wheel; fetched once, skipped if it cannot be.

    Whole or not at all: several processes may want it at once.
    """
    folder = cache / VERSION
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as made:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", made]
            done = subprocess.run([*command, f"sglang=={VERSION}"], capture_output=True, text=True, check=False)
            wheels = list(Path(made).glob("*.whl"))
            if done.returncode or not wheels:
                skip_without("sglang-wheel", f"no wheel of sglang {VERSION}")
            with zipfile.ZipFile(wheels[0]) as wheel:
                wheel.extractall(Path(made, "unpacked"))
            with contextlib.suppress(OSError):  # another process was first
                Path(made, "unpacked").rename(folder)
    return folder


@dataclasses.dataclass
class GenerateReqInput:
    """A request as SGLang's HTTP side hands it over."""

    rid: Any
    text: Any = "hello"
    stream: bool = True
    sampling_params: Any = dataclasses.field(default_factory=dict)
    received_time: float | None = None
    external_trace_header: dict[str, str] | None = None
    background: bool = False
    log_metrics: bool = False
    max_thinking_tokens: None = None
    routed_dp_rank: None = None
    return_prompt_token_ids: bool = False
    return_logprob: bool = False
    return_sampling_mask: bool = False
    lora_path: None = None
    input_error: str | None = None

    @property
    def is_single(self) -> bool:
        return isinstance(self.rid, str)

    def __getitem__(self, i: int) -> GenerateReqInput:
        return dataclasses.replace(self, rid=self.rid[i], sampling_params=self.sampling_params)

    def normalize_batch_and_arguments(self) -> None:
        pass


@dataclasses.dataclass
class BatchStrOutput:
    """A batch of outputs as the detokenizer sends it; only what the methods above read."""

    rids: list[str]
    completion_tokens: list[int]
    finished_reasons: list[Any]
    reasoning_tokens: list[int]
    prompt_tokens: list[int]
    retraction_counts: list[int]
    output_strs: list[str]
    output_ids: list[list[int]]
    cached_tokens: list[int]
    time_stats: Any = None
    customized_info: None = None
    weight_versions: None = None
    dp_ranks: None = None


class Other:
    """What no message here is."""


@dataclasses.dataclass
class AbortReq:
    rid: str = ""
    abort_all: bool = False
    finished_reason: Any = None
    abort_message: str | None = None
    weight_versions: None = None


class TimeStats:
    """The API server's stop-watch of a request."""

    def __init__(self, disagg_mode: Any = None) -> None:
        self.created_time = self.first_token_time = self.response_sent_to_client_time = 0.0
        self.trace_ctx = types.SimpleNamespace(tracing_enable=False)

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0.0


@dataclasses.dataclass
class SchedulerStats:
    """What the scheduler tells of a request if its metrics are on."""

    queue_duration_s: float
    forward_entry_time: float = 1.0


def serving() -> Any:
    return types.SimpleNamespace(
        batch_notify_size=16, tokenizer_worker_num=1, enable_strict_thinking=False, skip_tokenizer_init=False
    )


class Locked:
    """A lock that is never held."""

    @property
    def reader_lock(self) -> Locked:
        return self

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *exc_info: object) -> None:
        pass


class Anything:
    """A callable whose answer is not used."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    def exporter_enabled(self) -> bool:
        return False

    def disable(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def _module(name: str, path: Path | None = None) -> types.ModuleType:
    module = types.ModuleType(name)
    if path is not None:
        module.__path__ = [str(path)]
    sys.modules[name] = module
    return module


@contextlib.contextmanager
def installed(wheel: Path) -> Iterator[types.ModuleType]:
    """Put SGLang's packages in place, real if they can be; give the module of the tokenizer manager."""
    before = {name for name in sys.modules if name.partition(".")[0] == "sglang"}
    assert not before, before
    try:
        # The packages themselves are not run: the first lines of sglang/__init__.py import torch.
        _module("sglang", wheel / "sglang")
        _module("sglang.srt", wheel / "sglang" / "srt")
        _module("sglang.srt.managers", wheel / "sglang" / "srt" / "managers")
        importlib.import_module("sglang.srt.plugins")
        yield _manager(wheel)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
            del sys.modules[name]


def _manager(wheel: Path) -> types.ModuleType:
    file = wheel / "sglang" / "srt" / "managers" / "tokenizer_manager.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kept: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "ReqState":
            kept.append(node)
        elif isinstance(node, ast.ClassDef) and node.name == "TokenizerManager":
            node.bases, node.decorator_list = [], []
            node.body = [one for one in node.body if getattr(one, "name", None) in METHODS]
            assert {getattr(one, "name", None) for one in node.body} == METHODS, "a method is gone"
            kept.append(node)
    module = _module(MANAGER)
    vars(module).update(
        asyncio=asyncio,
        dataclasses=dataclasses,
        time=time,
        logger=logging.getLogger(MANAGER),
        fastapi=types.SimpleNamespace(HTTPException=RuntimeError),
        HTTPStatus=HTTPStatus,
        HEALTH_CHECK_RID_PREFIX="HEALTH_CHECK",
        _REQUEST_STATE_WAIT_TIMEOUT=0.05,
        GenerateReqInput=GenerateReqInput,
        BatchStrOutput=BatchStrOutput,
        BatchTokenIDOutput=Other,
        BatchEmbeddingOutput=Other,
        AbortReq=AbortReq,
        APIServerReqTimeStats=TimeStats,
        get_serving=serving,
        get_disagg=lambda: types.SimpleNamespace(language_only=False),
        get_spec=lambda: types.SimpleNamespace(speculative_algorithm=None),
        unwrap_from_pickle=lambda wrapped: wrapped() if callable(wrapped) else wrapped,
        try_build_beam_search_out_dict=lambda *_: None,
        is_health_check_generate_req=lambda message: message.rid.startswith("HEALTH_CHECK"),
        async_sock_recv=lambda queue: queue.get(),
        real_time=time.time,
    )
    compiled = compile(
        ast.Module(kept, []), str(file), "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True
    )
    exec(compiled, vars(module))
    return module


def running(module: types.ModuleType) -> Any:
    """Return a tokenizer manager before a stand-in: `scheduled` has its requests, `send` is how they are answered."""

    class Manager(module.TokenizerManager):  # type: ignore[misc, name-defined]
        served_model_name = "tiny"
        enable_metrics = enable_lora = enable_trace = is_pause = False
        incremental_streaming_output = skip_tokenizer_init = False
        dump_requests_folder = crash_dump_folder = disaggregation_mode = None
        tokenizer = None

        def __init__(self) -> None:
            self.rid_to_state: dict[str, Any] = {}
            self.scheduled: list[str] = []
            self.aborted: list[AbortReq] = []
            self.encoder_dispatch_ready: dict[str, Any] = {}
            self.is_pause_cond = asyncio.Condition()
            self.model_update_lock = Locked()
            self.request_logger = self.request_metrics_exporter_manager = self.soft_watchdog = Anything()
            self.recv_from_detokenizer: asyncio.Queue[Any] = asyncio.Queue()
            self.loop = asyncio.get_running_loop().create_task(self.handle_loop())

        def auto_create_handle_loop(self) -> None:
            pass

        def _set_default_priority(self, obj: Any) -> None:
            pass

        def config_value(self, name: str) -> str:
            return "default"

        async def _validate_and_resolve_lora(self, obj: Any) -> None:
            pass

        async def _tokenize_one_request(self, obj: Any) -> Any:
            if obj.input_error is not None:
                raise ValueError(obj.input_error)
            return types.SimpleNamespace(rid=obj.rid, input_ids=[1, 2, 3])

        async def _send_one_request(self, tokenized: Any) -> None:
            self.scheduled.append(tokenized.rid)
            self._mark_state_dispatched(tokenized.rid)

        def _dispatch_to_scheduler(self, message: Any) -> None:
            self.aborted.append(message)

        def _result_dispatcher(self, message: Any) -> None:
            self._handle_abort_req(message)

        async def _handle_batch_request(self, obj: Any, request: Any, states: Any) -> AsyncIterator[Any]:
            # As the real one if each prompt has one reply; if it has more, each gets an id of its own.
            for i in range(len(obj.rid)):
                await self._send_one_request(await self._tokenize_one_request(obj[i]))
            waiting = [self._wait_one_response(obj[i], request) for i in range(len(obj.rid))]
            for one in waiting:
                async for response in one:
                    yield response

        async def send(self, *outputs: tuple[str, int, Any], reasoning: int = 0, queue_s: float | None = None) -> None:
            """Send a batch of outputs (id, tokens so far, why it ended or None) and let everybody see it."""
            stats = [SchedulerStats(queue_s) for _ in outputs] if queue_s is not None else None
            count = len(outputs)
            batch = BatchStrOutput(
                rids=[rid for rid, _, _ in outputs],
                completion_tokens=[tokens for _, tokens, _ in outputs],
                finished_reasons=[
                    None if why is None else {"type": why} if isinstance(why, str) else why for _, _, why in outputs
                ],
                reasoning_tokens=[reasoning] * count,
                prompt_tokens=[3] * count,
                retraction_counts=[0] * count,
                output_strs=["x"] * count,
                output_ids=[[1]] * count,
                cached_tokens=[0] * count,
                time_stats=None if stats is None else lambda: stats,
            )
            await self.say(batch)

        async def say(self, message: Any) -> None:
            self.recv_from_detokenizer.put_nowait(message)
            while not self.recv_from_detokenizer.empty():
                await asyncio.sleep(0)
            for _ in range(5):
                await asyncio.sleep(0)

    return Manager()
