// One stream as it happens: its delivery against its reader and the reading line of its class.

import { draw, make, mark, name, number, write } from "/live/format.js";
import { bufferOf, stateOf } from "/live/streams.js";

const [LEFT, RIGHT, TOP, BOTTOM] = [44, 10, 10, 24];
const FRAME_MS = 100;
const MOST_AHEAD_S = 1.5; // how far the reader is drawn beyond the newest event
const LEAST_S = 5;
const LEAST_TOKENS = 20;

/** The panel of one stream; between two events the reader goes on reading what is there. */
export class Detail {
  #parts;
  #shapes;
  #event = null;
  #seen = false; // since it was opened
  #arrived = 0;
  #drawn = 0;
  #still = matchMedia("(prefers-reduced-motion: reduce)");

  constructor(parts) {
    this.#parts = parts;
    const shape = (tag, className) => parts.chart.appendChild(draw(tag, { class: className }));
    const grid = [0, 1, 2, 3].map(() => [shape("line", "grid"), shape("text", "")]);
    const paths = ["buffer", "idle", "line", "delivered", "read"].map((one) => [one, shape("path", one)]);
    this.#shapes = { grid, now: shape("line", "now"), until: shape("text", ""), ...Object.fromEntries(paths) };
  }

  /** Show a stream of which nothing is known yet but its row, or null: nothing. */
  open(row) {
    this.#event = null;
    this.#seen = false;
    const { panel, title, state, facts } = this.#parts;
    panel.hidden = row === null;
    if (row === null) return;
    write(title, `${name(row.slo_class)} · ${name(row.model)}`);
    write(state, "waiting for its delivery");
    mark(state, "bad", false);
    facts.replaceChildren();
    for (const one of ["buffer", "idle", "line", "delivered", "read"]) this.#shapes[one].setAttribute("d", "");
  }

  /** Take an event `stream`: it is in flight (`row`, `curve`), or ended (`verdict`), or gone. */
  take(event) {
    if (event.row) {
      if (this.#event === null) requestAnimationFrame((at) => this.#frame(at));
      this.#event = event;
      this.#seen = true;
      this.#arrived = performance.now();
      this.#words(event.row);
      this.#draw(0);
      return;
    }
    this.#event = null; // the curve stays as it was
    const { state } = this.#parts;
    const verdict = event.verdict;
    const met = { true: "met", false: "MISSED", null: "unsaid" };
    const gone = this.#seen ? "ended, not judged yet" : "not in flight";
    write(state, verdict ? `ended: ${name(verdict.outcome)}, ${met[verdict.met]}, idle ${number(verdict.idle_s, 2)} s` : gone);
    mark(state, "bad", verdict?.met === false);
  }

  #words(row) {
    const { delivered, read, left, waits } = bufferOf(row);
    const { title, state, facts } = this.#parts;
    write(title, `${name(row.slo_class)} · ${name(row.model)}`);
    const words = row.runway_s < 0 ? `reader waits for ${number(waits, 1)} s` : `${number(row.runway_s, 1)} s left to read`;
    write(state, `${number(delivered)} delivered, ${number(read)} read, ${number(left)} left: ${words}`);
    mark(state, "bad", row.runway_s < 0);
    const pairs = {
      instance: name(row.instance), "measured at": name(row.measured_at), state: name(stateOf(row)), "first text s": number(row.ttfo_s, 3), "TTFT s": number(row.ttft_s, 3),
      "idle s": number(row.idle_s, 2), "gap s": number(row.gap_s, 2), fluidity: number(row.fluidity_index, 3),
      "reading speed": `${number(1 / row.pace_s, 1)} tokens/s`,
      trace: row.trace_id, span: `${row.span_id}${row.choice ? ` choice ${row.choice}` : ""}`,
    };
    if ("exact_resume" in row) pairs["exact resume"] = row.exact_resume ? "yes" : name(row.exact_resume_reason);
    if (row.migrations) pairs.migrations = number(row.migrations);
    const entries = Object.entries(pairs);
    while (facts.children.length > 2 * entries.length) facts.lastElementChild.remove();
    entries.forEach(([term, text], at) => {
      const dt = facts.children[2 * at] ?? facts.appendChild(make("dt"));
      const dd = facts.children[2 * at + 1] ?? facts.appendChild(make("dd"));
      write(dt, term);
      write(dd, text);
    });
  }

  #frame(at) {
    if (this.#event === null) return; // no stream is open, or it has ended
    requestAnimationFrame((next) => this.#frame(next));
    if (this.#still.matches || at - this.#drawn < FRAME_MS) return;
    this.#drawn = at;
    this.#draw(Math.min(MOST_AHEAD_S, (performance.now() - this.#arrived) / 1000));
  }

  /** Draw, `ahead` seconds after the event. */
  #draw(ahead) {
    const { row, curve } = this.#event;
    const { clientWidth: width, clientHeight: height } = this.#parts.chart;
    const now = row.age_s + ahead;
    const [spanS, most] = [Math.max(LEAST_S, now), Math.max(LEAST_TOKENS, row.tokens_read * 1.05)];
    const x = (s) => (LEFT + (s / spanS) * (width - LEFT - RIGHT)).toFixed(1);
    const y = (n) => (height - BOTTOM - (n / most) * (height - TOP - BOTTOM)).toFixed(1);
    const delivered = deliveredPoints(curve, now);
    const { read, waits } = readerPoints(curve, row.age_s, now);
    const path = (points) => points.map(([s, n], at) => `${at ? "L" : "M"}${x(s)} ${y(n)}`).join("");
    const set = (shape, d) => this.#shapes[shape].setAttribute("d", d);
    set("delivered", path(delivered));
    set("read", path(read));
    set("buffer", delivered.length ? `${path([...delivered, ...read.slice().reverse()])}Z` : "");
    const base = height - BOTTOM;
    set("idle", waits.map(([from, to]) => `M${x(from)} ${base}V${base - 7}H${x(to)}V${base}Z`).join(""));
    const reach = Math.min(now, curve.start_s + (most - 1) * curve.pace_s);
    set("line", reach > curve.start_s ? path([[curve.start_s, 1], [reach, 1 + (reach - curve.start_s) / curve.pace_s]]) : "");
    this.#axes(x, y, now, most, { width, height });
  }

  #axes(x, y, now, most, { width, height }) {
    const step = niceStep(most / 3);
    this.#shapes.grid.forEach(([line, text], at) => {
      const n = at * step;
      const shown = n <= most;
      place(line, { x1: LEFT, x2: width - RIGHT, y1: y(n), y2: y(n), visibility: shown ? "visible" : "hidden" });
      place(text, { x: LEFT - 6, y: Number(y(n)) + 4, "text-anchor": "end", visibility: shown ? "visible" : "hidden" });
      write(text, number(n));
    });
    place(this.#shapes.now, { x1: x(now), x2: x(now), y1: TOP, y2: height - BOTTOM });
    place(this.#shapes.until, { x: x(now), y: height - 7, "text-anchor": "end" });
    write(this.#shapes.until, `${number(now, 1)} s since the request`);
  }
}

function place(element, attributes) {
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
}

/** Return the corners of the delivery up to now: flat between two tokens that stand in a row. */
function deliveredPoints({ n, delivered_s: times }, now) {
  const points = [];
  n.forEach((count, at) => {
    if (at && count === n[at - 1] + 1) points.push([times[at], n[at - 1]]);
    else if (!at) points.push([times[0], 0]);
    points.push([times[at], count]);
  });
  if (points.length) points.push([now, n.at(-1)]);
  return points;
}

/**
 * Return the reader's line up to now, and the stretches in which the reader waited. Nothing is known after `known`: a
 * reader who ran dry since then has perhaps got more text.
 */
function readerPoints({ n, delivered_s: delivered, read_s: read, pace_s: pace, start_s: start }, known, now) {
  if (!n.length) return { read: [], waits: now > start ? [[start, now]] : [] };
  const points = [[delivered[0], 0]];
  const waits = delivered[0] > start ? [[start, delivered[0]]] : [];
  for (let at = 0; at < n.length; at += 1) {
    const [before, count] = points.at(-1);
    const begun = Math.max(before, read[at] - (n[at] - count) * pace); // a wait where the next token was late
    if (begun > before + 1e-3 && n[at] === count + 1) {
      waits.push([before, Math.min(begun, now)]);
      points.push([Math.min(begun, now), count]);
    }
    if (begun >= now) return { read: points, waits };
    if (read[at] > now) {
      points.push([now, count + (now - begun) / pace]);
      return { read: points, waits };
    }
    points.push([read[at], n[at]]);
  }
  const [last, count] = points.at(-1);
  if (last <= known) waits.push([last, now]);
  points.push([now, count]);
  return { read: points, waits };
}

/** Return a step of 1, 2 or 5 times a power of ten that is not below `least`. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((one) => one * power).find((one) => one >= least);
}
