"""SGLang's own code of its OpenAI endpoints, out of its wheel, around a stand-in for its engine.

Real here: the protocol's classes, whole; the generator of a streamed completion; the step from token ids to text; the
beginning of a chat's request. Standing in: tokenizer, scheduler and the configuration. Nothing of it is kept here.
"""

from __future__ import annotations
import __future__

import ast
import asyncio
import contextlib
import dataclasses
import importlib
import importlib.util
import json
import logging
import sys
import time
import types
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from support.relay.fake_model import Json
from support.relay.fake_sglang import FakeSglangModel, decode

OPENAI = "sglang.srt.entrypoints.openai"


class Code:
    """The parts of the code, made of the wheel's files. `protocol` is SGLang's module of that name."""

    def __init__(self, wheel: Path) -> None:
        self._srt = wheel / "sglang" / "srt"
        self.protocol = importlib.import_module(OPENAI + ".protocol")
        usage = importlib.import_module(OPENAI + ".usage_processor")
        utils = self._taken("entrypoints/openai/utils.py", {"should_include_usage": None}, {})
        printable = self._taken("../utils.py", {"_is_chinese_char": None, "find_printable_text": None}, {})
        self.incremental = False
        known = {**vars(self.protocol), "UsageProcessor": usage.UsageProcessor, "get_serving": self._serving}
        known |= {"time": time, "json": json, "HTTPStatus": HTTPStatus, **utils, **printable}
        base = self._taken(
            "entrypoints/openai/serving_base.py", {"OpenAIServingBase": ["create_streaming_error_response"]}, known
        )
        self.serving = self._taken(
            "entrypoints/openai/serving_completions.py",
            {"OpenAIServingCompletion": ["_generate_completion_stream", "_get_echo_text"]},
            known,
        )["OpenAIServingCompletion"]
        self.serving.create_streaming_error_response = base["OpenAIServingBase"].create_streaming_error_response
        self.chat = self._taken(
            "entrypoints/openai/serving_chat.py",
            {"OpenAIServingChat": ["_convert_to_internal_request"]},
            {**known, "uses_hunyuan_reasoning_effort": lambda *_: True},
        )["OpenAIServingChat"]
        self.detokenizer = self._taken(
            "managers/detokenizer_manager.py",
            {
                "DecodeStatus": None,
                "DetokenizerManager": [
                    "trim_matched_stop", "_clamp_decode_ids", "_grouped_batch_decode", "_decode_batch_token_id_output",
                ],
            },
            {**known, "dataclasses": dataclasses, "defaultdict": defaultdict, "logger": logging.getLogger(__name__)},
        )["DetokenizerManager"]  # fmt: skip

    def _serving(self) -> Any:
        return types.SimpleNamespace(
            incremental_streaming_output=self.incremental,
            stream_response_default_include_usage=False,
            enable_cache_report=False,
        )

    def _taken(self, file: str, wanted: dict[str, list[str] | None], known: Json) -> Json:
        """Return functions and classes of a file, of a class the methods named (None: whole), without its bases."""
        path = self._srt / file
        kept: list[ast.stmt] = []
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if getattr(node, "name", None) not in wanted:
                continue
            methods = wanted[node.name]  # type: ignore[attr-defined]
            if isinstance(node, ast.ClassDef) and methods is not None:
                node.bases = []
                node.body = [one for one in node.body if getattr(one, "name", None) in methods]
                assert len(node.body) == len(methods), "a method is gone"
            kept.append(node)
        assert len(kept) == len(wanted), "something is gone"
        name = "sglang." + file
        module = sys.modules[name] = types.ModuleType(name)  # dataclasses look their module up
        vars(module).update({**vars(importlib.import_module("typing")), **known, "__name__": name})
        flags = __future__.annotations.compiler_flag
        exec(compile(ast.Module(kept, []), str(path), "exec", flags=flags, dont_inherit=True), vars(module))
        return {one: vars(module)[one] for one in wanted}

    def completion(self, model: FakeSglangModel, body: Json, *, incremental: bool) -> list[bytes]:
        """Return the events of a streamed completion of a model's tokens, as SGLang writes them."""
        self.incremental = incremental
        request = self.protocol.CompletionRequest.model_validate(body)
        server = self.serving()
        server.tokenizer_manager = types.SimpleNamespace(
            generate_request=lambda *_: self._contents(model, body, incremental=incremental)
        )

        async def events() -> list[bytes]:
            return [event.encode() async for event in server._generate_completion_stream(None, request, None)]

        return asyncio.run(events())

    async def _contents(self, model: FakeSglangModel, body: Json, *, incremental: bool) -> AsyncIterator[Json]:
        """Yield what the engine gives of a request, each time that it has tokens to tell."""
        prompt = model.prompt_ids(body)
        detokenizer = self.detokenizer()
        detokenizer.vocab_size, detokenizer.decode_status = None, {}
        detokenizer.disable_tokenizer_batch_decode = detokenizer.is_tool_call_parser_gpt_oss = False
        detokenizer.tool_close_token_ids = set()
        detokenizer.tokenizer = types.SimpleNamespace(
            is_fast=True,
            batch_decode=lambda rows, skip_special_tokens, spaces_between_special_tokens: [
                decode(ids, skip_special=skip_special_tokens) for ids in rows
            ],
        )
        context, output, text = prompt[-5:], list[int](), ""
        for ids, _, finish, matched in model._batches(body, prompt):
            reason = {"type": finish, **({} if matched is None else {"matched": matched})} if finish else None
            batch = types.SimpleNamespace(
                rids=["r"],
                decoded_texts=[""],
                decode_ids=[ids if output else context + ids],
                read_offsets=[len(context)],
                finished_reasons=[reason],
                no_stop_trim=[body.get("no_stop_trim", False)],
                skip_special_tokens=[body.get("skip_special_tokens", True)],
                spaces_between_special_tokens=[True],
            )
            (new,) = detokenizer._decode_batch_token_id_output(batch)
            output, text = output + ids, text + new
            yield {
                "text": new if incremental else text,
                "output_ids": ids if incremental else output,
                "prompt_token_ids": prompt if body.get("return_token_ids") else None,
                "meta_info": {
                    "id": "r",
                    "finish_reason": reason,
                    "prompt_tokens": len(prompt),
                    "completion_tokens": len(output),
                },
            }


@contextlib.contextmanager
def installed(wheel: Path) -> Iterator[Code]:
    """Put the packages in place that the code asks for, stand-ins if they need a GPU or are not here."""
    assert not any(map(_is_ours, sys.modules))
    stands_in = importlib.util.find_spec("msgspec") is None
    try:
        for name in ("sglang", "sglang.srt", "sglang.srt.entrypoints", OPENAI):
            package = sys.modules[name] = types.ModuleType(name)
            package.__path__ = [str(wheel.joinpath(*name.split(".")))]
        utils = sys.modules["sglang.utils"] = types.ModuleType("sglang.utils")
        vars(utils)["convert_json_schema_to_str"] = json.dumps
        if stands_in:
            msgspec = sys.modules["msgspec"] = types.ModuleType("msgspec")
            vars(msgspec)["Struct"] = type("Struct", (), {"__init_subclass__": classmethod(lambda *_, **__: None)})
        yield Code(wheel)
    finally:
        for name in [name for name in sys.modules if _is_ours(name) or (stands_in and name == "msgspec")]:
            del sys.modules[name]


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "sglang"
