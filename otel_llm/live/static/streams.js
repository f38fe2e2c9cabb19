// The streams in flight as buffers. The service sends the page of those closest to starving; a row follows its stream.

import { make, mark, name, number, write } from "/live/format.js";

const FULL_S = 10; // the bar is full at this runway, and at this wait
const SHORT_S = 2;

/** Return the key of a stream, as the service writes it. */
export function keyOf(row) {
  return `${row.trace_id}-${row.span_id}-${row.choice}${row.tenant === "default" ? "" : `-${row.tenant}`}`;
}

/** Return what the reader of a stream has: tokens delivered, read and left; and the wait, s, where there is none. */
export function bufferOf(row) {
  const kept = row.runway_s > 0 ? Math.min(row.tokens_read, Math.ceil(row.runway_s / row.pace_s - 1e-9)) : 0;
  return { delivered: row.tokens_read, read: row.tokens_read - kept, left: kept, waits: Math.max(0, -row.runway_s) };
}

/** Return the state of a stream in words. */
export function stateOf(row) {
  const words = [row.runway_s < 0 && "waiting", row.queued && "queued", row.paused && "paused", row.migrations && "moved"];
  return [...words.filter(Boolean), ...row.rules].join(", ");
}

/** The grid: one stop for Tab; arrows select a row, `open` is called on Enter or a click with its key. */
export class Streams {
  #table;
  #body;
  #rows = new Map();
  #order = [];
  #selected = null;
  #opened = null;
  #numbers = 0;

  constructor(table, open) {
    this.#table = table;
    this.#body = table.tBodies[0];
    table.addEventListener("keydown", (event) => this.#key(event, open));
    table.addEventListener("focus", () => this.#select(this.#selected ?? this.#order[0] ?? null));
    this.#body.addEventListener("click", (event) => {
      const key = event.target.closest("tr")?.dataset.key;
      if (!key) return;
      this.#select(key);
      open(key);
    });
  }

  /** Mark the stream that is open; null for none. */
  set opened(key) {
    this.#opened = key;
    for (const [one, row] of this.#rows) mark(row.element, "opened", one === key);
  }

  /** Show a page of streams. */
  show(streams) {
    const place = this.#order.indexOf(this.#selected);
    const order = streams.map(keyOf);
    for (const key of this.#order) if (!order.includes(key)) this.#drop(key);
    streams.forEach((stream, at) => {
      const key = order[at];
      const known = this.#rows.has(key);
      if (!known) this.#rows.set(key, this.#make(key));
      const row = this.#rows.get(key);
      if (this.#body.rows[at] !== row.element) this.#body.insertBefore(row.element, this.#body.rows[at] ?? null);
      this.#write(row, stream);
      mark(row.element, "moves", known); // a new bar does not grow from nothing
    });
    this.#order = order;
    if (this.#selected !== null && !order.includes(this.#selected)) {
      this.#select(order[Math.min(Math.max(place, 0), order.length - 1)] ?? null);
    }
  }

  #make(key) {
    const element = make("tr");
    element.dataset.key = key;
    element.id = `stream-${this.#numbers++}`;
    element.setAttribute("aria-selected", "false");
    mark(element, "opened", key === this.#opened);
    const box = element.appendChild(make("td")).appendChild(make("div", "runway"));
    const bar = box.appendChild(make("div", "track")).appendChild(make("i"));
    const runway = box.appendChild(make("span", "n"));
    const cells = ["n", "n", "n", "n", "n", "", "", "", "", "code"].map((one) => element.appendChild(make("td", one)));
    return { element, bar, runway, cells };
  }

  #write({ element, bar, runway, cells }, row) {
    const { delivered, read, left, waits } = bufferOf(row);
    const dry = row.runway_s < 0;
    const [model, instance, state] = [name(row.model), name(row.instance), name(stateOf(row))];
    mark(element, "dry", dry);
    mark(element, "short", !dry && row.runway_s < SHORT_S);
    bar.style.transform = `scaleX(${Math.min(1, Math.abs(row.runway_s) / FULL_S).toFixed(3)})`;
    write(runway, dry ? `waiting ${number(waits, 1)}` : number(row.runway_s, 1));
    mark(runway, "bad", dry);
    mark(runway, "low", !dry && row.runway_s < SHORT_S);
    const texts = [
      ...[delivered, read, left].map((one) => number(one)), number(row.idle_s, 1), number(row.age_s, 1),
      name(row.slo_class), model, instance, state === "–" ? "" : state, row.trace_id.slice(0, 8),
    ];
    texts.forEach((text, at) => write(cells[at], text));
    mark(cells[3], "bad", row.idle_s > 0 && dry);
    for (const [at, text] of [[6, model], [7, instance], [8, state]]) if (cells[at].title !== text) cells[at].title = text;
  }

  #drop(key) {
    this.#rows.get(key)?.element.remove();
    this.#rows.delete(key);
  }

  #select(key) {
    const before = this.#rows.get(this.#selected)?.element;
    const now = this.#rows.get(key)?.element;
    this.#selected = now ? key : null;
    if (before && before !== now) before.setAttribute("aria-selected", "false");
    if (!now) return this.#table.removeAttribute("aria-activedescendant");
    now.setAttribute("aria-selected", "true");
    this.#table.setAttribute("aria-activedescendant", now.id);
  }

  #key(event, open) {
    const last = this.#order.length - 1;
    const at = this.#order.indexOf(this.#selected);
    const steps = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 10, PageUp: at - 10, Home: 0, End: last };
    if (event.key in steps && last >= 0) {
      this.#select(this.#order[Math.min(last, Math.max(0, steps[event.key]))]);
      this.#rows.get(this.#selected)?.element.scrollIntoView({ block: "nearest" });
    } else if (event.key === "Enter" && this.#selected !== null) {
      open(this.#selected);
    } else return;
    event.preventDefault();
  }
}
