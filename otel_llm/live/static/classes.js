// The classes: sparklines of idle readers, attainment and smooth goodput over the last minutes.

import { draw, make, mark, name, number, percent, write } from "/live/format.js";

const KEPT_S = 300;
const RATE_S = 10;
const ATTAINMENT_S = 60;
const WIDTH = 300;
const HEIGHT = 22;

/** The table of classes; samples are kept by key: a class and where it is measured. */
export class Classes {
  #body;
  #samples = []; // [instant, Map of key index to numbers]
  #rows = new Map();
  #fields = [];

  constructor(table) {
    this.#body = table.tBodies[0];
  }

  /** Begin with the samples that the service has kept. */
  begin(history) {
    this.#fields = history.fields;
    this.#samples = history.samples.map((sample) => this.#read(sample));
  }

  /** Add the newest sample and draw. `keys`: [class, measured at] by index; `objectives`: attainment by class. */
  add(sample, keys, objectives) {
    this.#samples.push(this.#read(sample));
    const now = sample[0];
    while (this.#samples[0][0] < now - KEPT_S) this.#samples.shift();
    while (this.#body.rows.length > keys.length) { // the service has begun anew
      this.#body.deleteRow(-1);
      this.#rows.delete(this.#body.rows.length);
    }
    keys.forEach((key, index) => this.#draw(this.#row(key, index), index, now, objectives[key[0]]));
  }

  #read([at, ...rows]) {
    const numbers = rows.map((row) => Object.fromEntries(this.#fields.map((field, place) => [field, row[place]])));
    return [at, new Map(numbers.map((one) => [one.key, one]))];
  }

  #row([sloClass, measuredAt], index) {
    if (!this.#rows.has(index)) {
      const row = this.#body.insertRow();
      const cell = (className) => row.appendChild(make("td", className));
      const found = { name: cell(""), at: cell(""), inFlight: cell("n"), waiting: cell("n"), sparks: [] };
      for (const classes of [["idle"], ["goal", ""], ["under", ""]]) found.sparks.push(new Spark(cell(""), classes));
      this.#rows.set(index, found);
    }
    const found = this.#rows.get(index);
    write(found.name, name(sloClass));
    write(found.at, name(measuredAt));
    return found;
  }

  #draw(row, index, now, objective) {
    const times = this.#samples.map(([at]) => at);
    const of = (field) => this.#samples.map(([, rows]) => rows.get(index)?.[field] ?? 0);
    const latest = this.#samples.at(-1)[1].get(index);
    const idle = rates(times, of("idle_s"), RATE_S);
    const [met, missed] = [sums(times, of("met"), ATTAINMENT_S), sums(times, of("missed"), ATTAINMENT_S)];
    const attainment = met.map((value, at) => (value + missed[at] ? value / (value + missed[at]) : null));
    const [smooth, all] = [rates(times, of("smooth_tokens"), RATE_S), rates(times, of("tokens_read"), RATE_S)];
    write(row.inFlight, number(latest?.in_flight ?? 0));
    write(row.waiting, number(latest?.waiting ?? 0));
    mark(row.waiting, "bad", (latest?.waiting ?? 0) > 0);
    const x = times.map((at) => WIDTH * (1 - (now - at) / KEPT_S));
    row.sparks[0].show(x, [idle], range([idle], 1), number(idle.at(-1), 1), idle.at(-1) >= 0.05);
    const goal = times.map(() => objective ?? null);
    const low = attainment.at(-1) !== null && attainment.at(-1) < (objective ?? 0);
    row.sparks[1].show(x, [goal, attainment], [0, 1], percent(attainment.at(-1)), low);
    row.sparks[2].show(x, [all, smooth], range([all, smooth], 1), number(smooth.at(-1)), smooth.at(-1) < 0);
  }
}

/** A small line chart and the newest value beside it. */
class Spark {
  #paths;
  #value;

  constructor(cell, classes) {
    const box = cell.appendChild(make("div", "spark"));
    const svg = box.appendChild(draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }));
    this.#paths = classes.map((className) => svg.appendChild(draw("path", { class: className })));
    this.#value = box.appendChild(make("span"));
  }

  show(x, lines, [low, high], text, bad) {
    const y = (value) => (HEIGHT - 1 - ((value - low) / (high - low)) * (HEIGHT - 2)).toFixed(1);
    lines.forEach((values, at) => {
      let path = "";
      let pen = "M";
      values.forEach((value, place) => {
        if (value === null) pen = "M";
        else {
          path += `${pen}${x[place].toFixed(1)} ${y(value)}`;
          pen = "L";
        }
      });
      this.#paths[at].setAttribute("d", path);
    });
    write(this.#value, text);
    mark(this.#value, "bad", bad);
  }
}

/** Return for each sample the sum over the seconds before it. */
function sums(times, values, seconds) {
  let [first, sum] = [0, 0];
  return values.map((value, at) => {
    sum += value;
    while (times[first] <= times[at] - seconds) sum -= values[first++];
    return sum;
  });
}

/** Return for each sample the rate over the seconds before it, or over as many as there are. */
function rates(times, values, seconds) {
  return sums(times, values, seconds).map((sum, at) => sum / Math.min(seconds, Math.max(1, times[at] - times[0])));
}

/** Return the range of lines, which holds 0 and is not smaller than `least`. */
function range(lines, least) {
  const values = lines.flat();
  const low = Math.min(0, ...values);
  return [low, Math.max(low + least, ...values)];
}
