"""The recording of one owned request: its session's events go to its segments and to the rules."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from opentelemetry import trace

from otel_llm import semconv
from otel_llm.evaluate.own_streams.own_stream import Identity
from otel_llm.export.records import CONTENT, KIND_NAMES
from otel_llm.instrumentation.parse.sse_chunks import viewed
from otel_llm.instrumentation.segments.choices import GOES_ON_NS
from otel_llm.instrumentation.segments.chunks import SPECIAL_TOKENS, most_tokens, shares, text_of_delta
from otel_llm.instrumentation.segments.outcomes import COMPLETED
from otel_llm.instrumentation.segments.text_size import size_of
from otel_llm.instrumentation.segments.timeline import FLUSH_INTERVAL_NS
from otel_llm.relay.recording.trace_headers import key_of, trace_headers
from otel_llm.slo.token_events import TokenEvents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.context import Context

    from otel_llm.evaluate.own_streams.first_hand import FirstHand
    from otel_llm.evaluate.own_streams.own_stream import OwnStream
    from otel_llm.export.records import AttributeValue
    from otel_llm.formats.records import RequestKey
    from otel_llm.instrumentation.core.committed_request import Request
    from otel_llm.instrumentation.core.recording import Recording
    from otel_llm.relay.recording.environment import Environment
    from otel_llm.relay.recording.reply_facts import ReplyFacts, StatedChunk
    from otel_llm.slo.classes import SloClass

ANNOUNCE_S: Final = 0.25
"""How long segment 0 waits for a backend's response headers, which name the instance."""
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_CODES: Final[Mapping[str, int]] = {name: code for code, name in enumerate(KIND_NAMES)}
Kind = Literal["content", "reasoning", "tool"]


def moved(
    from_: str | None,
    to: str | None,
    tokens_carried: int | None = None,
    gap_seconds: float | None = None,
    *,
    rule: str | None = None,
    reason: str | None = None,
) -> dict[str, AttributeValue]:
    """Return the attributes of a move, without those that are not known.

    `gap_seconds`: from the last text of one backend to the first of the other; a rule or a reason caused it.
    """
    attributes: dict[str, AttributeValue | None] = {
        semconv.MIGRATED_FROM: from_,
        semconv.MIGRATED_TO: to,
        semconv.TOKENS_CARRIED: tokens_carried,
        semconv.GAP_SECONDS: gap_seconds,
        semconv.MIGRATION_RULE: rule,
        semconv.MIGRATION_REASON: reason,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def text_of_choice(stated: Mapping[str, Any]) -> tuple[int | None, int, str]:
    """Return the kind and size of the text in a choice of a chunk, and the text of content; None if it has none."""
    delta = stated.get("delta") or stated.get("message")  # of a reply that comes at once
    text = delta.get("content") if isinstance(delta, dict) else stated.get("text")
    if isinstance(text, str) and text:
        return CONTENT, size_of(text), text
    return (*text_of_delta(viewed(delta)), "")


class Recorded:
    """The recording of one request; all instants are monotonic ns of the environment's clock.

    `key` identifies it, `commit_ns` is its commit. No method raises for a failure of ours.
    """

    def __init__(
        self,
        environment: Environment,
        forget: Callable[[Recorded], None],
        request: Request,
        recording: Recording,
        facts: ReplyFacts,
        context: Context,
        headers: Iterable[tuple[bytes, bytes]],
        prompt_known: Callable[[int], None] | None = None,
    ) -> None:
        self.commit_ns = request.commit_ns
        self.key: RequestKey = key_of(recording.context)
        above = trace.get_current_span(context).get_span_context()
        self.parent: RequestKey | None = key_of(above) if above.is_valid else None
        """The client's span, None if it sent none."""
        self.migrations = 0
        self._environment = environment
        self._forget = forget
        self._request = request
        self._recording = recording
        self._facts = facts
        self._context = context
        self._headers = headers
        self._streams: dict[int, OwnStream] = {}  # the open choices
        self._finished: dict[int, int] = {}  # when choices finished, unix ns
        self._prompt_known = prompt_known
        self._stated: dict[str, float] = {}  # facts of the relay's own
        self._instance = ""
        self._exact_resume = False
        self._identity: Identity | None = None  # that of segment 0; None until it is announced
        self._over = False
        self._followed = 0  # choices, ended ones included
        self._timer = environment.later(ANNOUNCE_S, self._announce)

    def headers_for_backend(self) -> list[tuple[str, str]]:
        """Return the headers replacing the client's `TRACE_HEADERS` for a backend: its parent is the request span."""
        return trace_headers(self._recording.context, self._headers)

    # The backend.

    def serving(self, instance: str) -> None:
        """Note the backend that is asked, or serves from now on; facts and labels name it."""
        if instance == self._instance:
            return
        self._instance = instance
        if self._identity is None:
            return
        if self._identity.instance is None:  # no backend had been asked when segment 0 was due
            self._identity = replace(self._identity, instance=instance)
            self._recording.identify({semconv.INSTANCE: instance})
        self._apply(lambda stream, now_ns: self._first_hand.identify(stream, instance=instance, now_ns=now_ns))

    def served_by(self, instance: str, *, exact_resume: bool) -> None:
        """Note the backend whose headers were received; the first call announces the streams, if a timer has not."""
        self.serving(instance)
        self.exact_resume(exact_resume)
        self._announce()

    def exact_resume(self, possible: bool) -> None:
        """Note whether the streams can be continued elsewhere token for token."""
        if possible is self._exact_resume:
            return
        self._exact_resume = possible
        self._apply(lambda stream, now_ns: self._first_hand.identify(stream, exact_resume=possible, now_ns=now_ns))

    def disconnected(self) -> None:
        """Note that no backend's connection is open."""
        self._apply(self._first_hand.disconnected)

    def connected(self) -> None:
        """Note that a backend's connection is open again."""
        self._apply(self._first_hand.connected)

    def blocked(self, waits: bool) -> None:
        """Note whether bytes wait for the client's socket."""
        self._apply(lambda stream, now_ns: self._first_hand.hold_back(stream, blocked=waits, now_ns=now_ns))

    # Received tokens and facts.

    def tokens(
        self, at_ns: int, choice: int, count: int, kind: Kind, text: str = "", stated: Mapping[str, Any] = NOTHING
    ) -> None:
        """Record tokens counted by their ids, of a chunk with this text of content; the rest as in `text`."""
        if not self._records(choice, at_ns, stated) or count <= 0:
            return
        with self._environment.bugs:
            if count > SPECIAL_TOKENS + len(text) and count > most_tokens(text_of_choice(stated)[1]):
                self.text(at_ns, choice, stated)
                return
            parts = self._facts.parts(choice, _CODES[kind], len(text), text)
            for code, share in shares(parts, count):
                self._tokens(at_ns, choice, share, code, exact=True)

    def text(self, at_ns: int, choice: int, stated: Mapping[str, Any]) -> int:
        """Record the text without ids in `stated`, a choice of a chunk; return its tokens."""
        if not self._records(choice, at_ns, stated):
            return 0
        tokens = 0
        with self._environment.bugs:
            kind, size, text = text_of_choice(stated)
            if kind is None:
                return 0
            estimate = self._recording.estimates.of(choice, self._facts.response_model)
            for code, length in self._facts.parts(choice, kind, size, text):
                tokens += self._tokens(at_ns, choice, estimate.of(code, -length), code, exact=False)
        return tokens

    def heard(self, at_ns: int, waited_ns: int = 0) -> None:
        """Note that bytes of the reply were read at `at_ns`, with tokens or not, `waited_ns` after their arrival."""
        if self._over:
            return
        self._facts.waited(waited_ns)
        self._recording.last_byte_ns = at_ns
        unix_ns = at_ns + self._environment.offset_ns
        with self._environment.bugs:
            for stream in self._streams.values():
                self._first_hand.heard(stream, unix_ns)
        self._environment.rearm()

    def _records(self, choice: int, at_ns: int, stated: Mapping[str, Any]) -> bool:
        """Return whether tokens are recorded; those behind a finish are if they have text, and come soon."""
        end_ns = self._finished.get(choice)
        if end_ns is None or self._over:
            return not self._over and 0 <= choice < semconv.MAX_CHOICES
        since_ns = at_ns + self._environment.offset_ns - end_ns
        soon = since_ns < (GOES_ON_NS if self._alone else FLUSH_INTERVAL_NS)
        return soon and choice in self._streams and text_of_choice(stated)[0] is not None

    def _tokens(self, at_ns: int, choice: int, count: int, code: int, *, exact: bool) -> int:
        if not count:
            return 0
        if choice in self._finished:  # the reason was not its last: servers state reasons too early
            del self._finished[choice]
            self._facts.goes_on(choice)
            self._apply(self._first_hand.resume, (self._streams[choice],))
        self._facts.count(choice, count, exact=exact)
        unix_ns = self._take(choice, at_ns, code, count)
        stream = self._streams.get(choice)
        if stream is None:
            return count
        with self._environment.bugs:
            counting = self._basis(choice), self._recording.estimates.learned(choice)
            if counting != (stream.token_basis, stream.token_ratio_learned):
                self._first_hand.identify(stream, counting=counting, now_ns=unix_ns)
            kinds, counts = None if code == CONTENT else bytes((code,)), None if count == 1 else (count,)
            self._first_hand.tokens(stream, TokenEvents((unix_ns,), kinds, counts), unix_ns)
        self._environment.rearm()
        return count

    def input_tokens(self, count: int) -> None:
        """Note the number of prompt tokens; the first statement counts."""
        if self._facts.input_tokens is not None:
            return
        self._facts.input_tokens = count
        if self._prompt_known is not None:
            self._prompt_known(count)
        self._apply(lambda stream, now_ns: self._first_hand.identify(stream, input_tokens=count, now_ns=now_ns))
        if not self._alone:
            for choice, end_ns in self._finished.items():  # they were waiting for it
                self._close(choice, end_ns, COMPLETED)

    def noted(self, chunk: StatedChunk, at_ns: int, *, continues: bool) -> None:
        """Record the statements of a chunk, read at `at_ns`, besides its tokens; `tokens` is called before.

        `continues`: its backend began after tokens of another, which are part of its prompt.
        """
        stated = self._facts.states(chunk.value, continues=continues)
        if chunk.prompt_ids is not None and self._request.choices == 1 and not continues:
            stated = len(chunk.prompt_ids)
        if stated is not None:
            self.input_tokens(stated)
        for choice in chunk.choices:
            if choice.finish is not None:
                self._finish(choice.index, choice.finish, at_ns)

    def migrated(self, from_: str, to: str, tokens_carried: int, gap_seconds: float, **why: str) -> None:
        """Note that the client now has text of another backend; `why`: its `rule`, or its `reason`."""
        self.migrations += 1
        attributes = moved(from_, to, tokens_carried, gap_seconds, **why)
        self._recording.event(semconv.MIGRATED_EVENT, self._environment.clock_ns(), attributes)

    def paused(self, instance: str, rule: str) -> None:
        """Note that a rule took the stream from its backend: none of its rules is evaluated until `resumed`."""
        self._apply(self._first_hand.pause)
        self._recording.event(semconv.PAUSED_EVENT, self._environment.clock_ns(), moved(instance, None, rule=rule))

    def resumed(self, instance: str, tokens_carried: int, gap_seconds: float, reason: str) -> None:
        """Note that a backend serves the stream again, and the reason."""
        attributes = moved(None, instance, tokens_carried, gap_seconds, reason=reason)
        self._recording.event(semconv.RESUMED_EVENT, self._environment.clock_ns(), attributes)
        self._apply(self._first_hand.resume)

    def ended(self, outcome: str, at_ns: int | None = None, error: str | None = None) -> None:
        """End the recording, once; `error` is an `error.type`. A finished choice is completed, whatever follows.

        Raises ValueError for an outcome that no sender may state.
        """
        if outcome not in semconv.OUTCOMES:
            raise ValueError(f"outcome {outcome!r} is none of {', '.join(semconv.OUTCOMES)}")
        if self._over:
            return
        self._announce()
        self._over = True
        environment, recording = self._environment, self._recording
        at_ns = environment.clock_ns() if at_ns is None else at_ns
        recording.attributes(self._facts.of_relay(self.migrations))
        recording.ended(outcome, error, at_ns)
        for choice in list(self._streams):
            if choice in self._finished:
                self._close(choice, self._finished[choice], COMPLETED)
            else:
                end_ns = max(at_ns, recording.recorded_until_ns(choice)) + environment.offset_ns
                self._close(choice, end_ns, outcome)
        self._forget(self)

    # For placement.

    @property
    def slo(self) -> SloClass:
        """Return its class."""
        identity = self._identity or self._known({})
        return self._first_hand.classes.choose(identity.declared_class, identity.attributes)[0]

    @property
    def output_tokens(self) -> int:
        """Return the tokens that were read so far, of all choices."""
        return self._facts.counted_tokens

    def state(self, attributes: Mapping[str, float]) -> None:
        """Note facts of the relay's own: in segment 0, or in the next one if that was sent."""
        self._stated.update(attributes)
        if self._identity is not None:
            self._recording.identify(attributes)

    def starving(self) -> int:
        """Count its streams whose reader has read all and waits; not those that are paused, or behind a slow client."""
        return sum(not one.suspended and one.stream.running.starving(self._now_ns()) for one in self._streams.values())

    @property
    def pace_needed(self) -> float | None:
        """Return the tokens a second that its class promises, None if it promises none."""
        token_time_ns = self.slo.token_time_ns
        return None if not token_time_ns else 1e9 / token_time_ns

    def pace(self, over_s: float) -> float | None:
        """Return the tokens a second of the only choice over the last seconds; None before it is as old as that."""
        stream = self._streams.get(0)
        if stream is None or len(self._streams) > 1:
            return None
        times_ns, counts = stream.stream.times_ns, stream.stream.counts
        since_ns = self._now_ns() - int(over_s * 1e9)
        if not times_ns or times_ns[0] > since_ns:
            return None
        at = bisect_right(times_ns, since_ns)
        return (len(times_ns) - at if counts is None else sum(counts[at:])) / over_s

    # For the web port.

    @property
    def runway_s(self) -> float | None:
        """Return the text that the reader of the only choice has left, in seconds of reading; below 0 the reader waits.

        None if that is not known: several choices, no token read yet, or bytes wait for the client's socket.
        """
        stream = self._streams.get(0)
        if stream is None or len(self._streams) > 1 or stream.has_gap or not stream.stream.running.count:
            return None
        return (stream.stream.running.dry_ns - self._now_ns()) / 1e9

    @property
    def streams(self) -> Mapping[int, OwnStream]:
        """Return the followed streams, by choice; none before they are announced."""
        return self._streams

    # Internals.

    @property
    def _first_hand(self) -> FirstHand:
        return self._environment.first_hand

    def _now_ns(self) -> int:
        return self._environment.clock_ns() + self._environment.offset_ns

    def _announce(self) -> None:
        """Send segment 0 of each choice, once, with the facts known by now, and let the rules follow them."""
        if self._identity is not None:
            return
        self._timer.cancel()
        late: dict[str, AttributeValue] = dict(self._stated)
        if self._instance:
            late[semconv.INSTANCE] = self._instance
        if self._exact_resume:
            late[semconv.EXACT_RESUME] = True
        self._recording.announce(self._context, late)
        self._identity = self._known(late)
        for choice in range(self._request.choices):
            self._follow(choice, self._identity)

    def _known(self, late: Mapping[str, AttributeValue]) -> Identity:
        """Return the identity known by now; `late`: attributes that were not known at the commit."""
        reported = {**self._request.gen_ai, **self._request.ours, **late}
        return Identity.stated(reported, instance=self._instance or None, exact_resume=self._exact_resume)

    def _follow(self, choice: int, identity: Identity) -> None:
        """Let the rules follow a choice from the commit on."""
        identity = replace(identity, input_tokens=self._facts.input_tokens)
        key, commit_ns = (*self.key, choice), self.commit_ns + self._environment.offset_ns
        now_ns = self._now_ns()
        self._followed += 1
        with self._environment.bugs:
            stream = self._streams[choice] = self._first_hand.begin(key, commit_ns, identity, now_ns)
            # Changes since segment 0 was sent, if the choice is found later than that.
            self._first_hand.identify(
                stream, instance=self._instance or None, exact_resume=self._exact_resume, now_ns=now_ns
            )
        self._environment.rearm()

    def _take(self, choice: int, at_ns: int, kind: int, count: int, *, finished: bool = False) -> int:
        """Append to the recording; return the recorded instant, unix ns, not before the last one."""
        self._announce()
        if choice >= self._request.choices and choice not in self._streams and self._identity is not None:
            self._follow(choice, self._identity)  # not asked for: its segment 0 goes out with its first token
        offset_ns, stream = self._environment.offset_ns, self._streams.get(choice)
        if stream is not None:
            at_ns = max(at_ns, stream.stream.last_ns - offset_ns)
        return self._recording.take(at_ns, (choice, kind, count, finished)) + offset_ns

    def _finish(self, choice: int, reason: str, at_ns: int) -> None:
        """Note that the backend has completed a choice."""
        if self._over or choice in self._finished or not 0 <= choice < semconv.MAX_CHOICES:
            return
        self._facts.finish(choice, reason)
        end_ns = self._finished[choice] = self._take(choice, at_ns, CONTENT, 0, finished=True)
        stream = self._streams.get(choice)
        if stream is None or (not self._alone and self._facts.tells_lengths(choice)):
            self._close(choice, end_ns, COMPLETED)
            return
        # Usage comes after the finish of all choices, and so may text.
        self._apply(self._first_hand.pause, (stream,))

    @property
    def _alone(self) -> bool:
        return self._request.choices == self._followed == 1

    def _close(self, choice: int, end_ns: int, outcome: str) -> None:
        """Judge a choice as ended at `end_ns` (unix ns)."""
        stream = self._streams.pop(choice, None)
        if stream is None:
            return
        now_ns = max(end_ns, self._now_ns())
        with self._environment.bugs:
            queue_s = self._stated.get(semconv.GEN_AI_LATENCY_QUEUE)
            statement = self._facts.statement(choice, self._basis(choice), queue_s, alone=self._alone)
            self._first_hand.end(stream, end_ns, outcome, now_ns, statement)
        self._environment.rearm()

    def _basis(self, choice: int) -> str:
        return self._recording.estimates.basis(choice, self._facts.basis(choice))

    def _apply(self, step: Callable[[OwnStream, int], object], streams: tuple[OwnStream, ...] | None = None) -> None:
        """Apply an event of now to streams, all that are followed by default."""
        if not (streams := tuple(self._streams.values()) if streams is None else streams):
            return
        now_ns = self._now_ns()
        for stream in streams:
            with self._environment.bugs:
                step(stream, now_ns)
        self._environment.rearm()
