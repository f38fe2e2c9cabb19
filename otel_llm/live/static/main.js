// The live page: events of the service in, text and lines out. Plain modules; there is no build step.

import { Classes } from "/live/classes.js";
import { Detail } from "/live/detail.js";
import { Feed } from "/live/feed.js";
import { fill, make, mark, name, number, write } from "/live/format.js";
import { Streams, keyOf } from "/live/streams.js";

const FILTERS = { slo_class: "slo_classes", model: "models", instance: "instances" };
const at = (id) => document.getElementById(id);

const classes = new Classes(at("classes"));
const streams = new Streams(at("streams"), open);
const detail = new Detail({
  panel: at("detail"), title: at("detail-title"), state: at("detail-state"), chart: at("chart"), facts: at("facts"),
});
const feed = new Feed(take, showState);
let rows = new Map();
let opened = null;

function take(event, value) {
  if (event === "history") begin(value);
  else if (event === "fleet") showFleet(value);
  else if (event === "page") showPage(value);
  else if (event === "stream") detail.take(value);
  if (event === "busy") showState("busy", "the service is busy");
  else showState("live", "live");
}

function begin(history) {
  write(at("service"), history.service);
  at("links").replaceChildren(
    ...Object.entries(history.links).map(([text, path]) => Object.assign(make("a", "", text), { href: path })),
  );
  classes.begin(history);
}

function showState(state, words) {
  write(at("status"), words);
  at("status").dataset.state = state;
  at("token").hidden = state !== "token";
  if (state === "token" && document.activeElement !== at("token-text")) at("token-text").focus();
}

function showFleet(fleet) {
  write(at("in-flight"), number(fleet.in_flight));
  write(at("waiting"), number(fleet.waiting));
  mark(at("waiting"), "bad", fleet.waiting > 0);
  document.title = `${fleet.waiting ? `(${fleet.waiting} waiting) ` : ""}otel-llm`;
  classes.add(fleet.sample, fleet.keys, fleet.objectives);
  const more = fleet.left_out ? `; ${number(fleet.left_out)} more are not shown` : "";
  write(at("classes").caption, `Classes, last 5 minutes${more}`);
  for (const [id, names] of Object.entries(FILTERS)) choices(at(id), fleet[names]);
  showRules(fleet.rules);
  at("notes").hidden = !fleet.notes.length;
  at("notes").replaceChildren(...fleet.notes.map((text) => make("li", "", text)));
  const met = { true: ["met", "good"], false: ["MISSED", "bad"], null: ["unsaid", "muted"] };
  fill(at("verdicts").tBodies[0], fleet.verdicts, (row) => [
    met[row.met], [name(row.slo_class), ""], [name(row.model), ""], [name(row.outcome) + cut(row), ""], [number(row.tokens), "n"],
    [number(row.ttfo_s, 2), "n"], [number(row.ttft_s, 2), "n"], [number(row.idle_s, 2), "n"], [number(row.fluidity_index, 3), "n"],
    [(row.trace_id ?? "").slice(0, 8), "code"],
  ]);
  fill(at("decisions").tBodies[0], fleet.decisions, (row) => [
    [clock(row.time_unix_nano), ""], [name(row.rule), ""], [name(row.state), ""], [name(row.action), ""], [name(row.outcome), ""],
    row.trace_id ? [row.trace_id.slice(0, 8), "code"] : [name(Object.values(row.labels).join(" ")), ""],
  ]);
}

/** Return the words for a reply that ended before the model was done. */
function cut(row) {
  return ["length", "content_filter"].includes(row.finish_reason) ? ` (cut: ${row.finish_reason})` : "";
}

function clock(unixNano) {
  return new Date(unixNano / 1e6).toLocaleTimeString("en-GB");
}

function showRules(rules) {
  const list = at("firing").querySelector("ul");
  const items = rules.map((one) => {
    const item = make("li");
    const streams = `${number(one.firing)} ${one.firing === 1 ? "stream" : "streams"}`;
    item.append(make("b", "", name(one.rule)), make("span", "", one.scope === "stream" ? streams : name(one.on.join(", "))));
    return item;
  });
  list.replaceChildren(...(items.length ? items : [make("li", "muted", "none")]));
}

/** Offer the names that are in flight now, and the chosen one. */
function choices(select, names) {
  const chosen = select.value;
  const offered = chosen && !names.includes(chosen) ? [...names, chosen] : names;
  const known = [...select.options].slice(1).map((option) => option.value);
  if (select.options.length && known.length === offered.length && known.every((one, place) => one === offered[place])) return;
  const option = (value, text) => Object.assign(make("option", "", text), { value });
  select.replaceChildren(option("", "all"), ...offered.map((one) => option(one, name(one))));
  select.value = chosen;
}

function showPage(page) {
  rows = new Map(page.streams.map((row) => [keyOf(row), row]));
  streams.show(page.streams);
  at("empty").hidden = page.streams.length > 0;
  write(at("empty"), chosen().length ? "No stream with these names is in flight." : "No stream is in flight.");
  const some = page.matching > page.streams.length ? `${number(page.streams.length)} of ` : "";
  write(at("matching"), `${some}${number(page.matching)} shown`);
}

/** Return the chosen names, [filter, name]. */
function chosen() {
  return Object.keys(FILTERS).filter((id) => at(id).value).map((id) => [id, at(id).value]);
}

function connect() {
  feed.open({ ...Object.fromEntries(chosen()), ...(opened ? { stream: opened } : {}) });
}

function open(key) {
  opened = key;
  streams.opened = key;
  detail.open(key === null ? null : rows.get(key) ?? null);
  document.querySelector("main").classList.toggle("open", key !== null);
  connect();
}

function close() {
  open(null);
  at("streams").focus();
}

addEventListener("keydown", (event) => {
  if (event.key === "Escape" && opened !== null) close();
});
at("close").addEventListener("click", close);
for (const id of Object.keys(FILTERS)) at(id).addEventListener("change", connect);
at("token").addEventListener("submit", (event) => {
  event.preventDefault();
  feed.token = at("token-text").value.trim();
  at("token-text").value = "";
  connect();
});
for (const id of Object.keys(FILTERS)) choices(at(id), []);
connect();
