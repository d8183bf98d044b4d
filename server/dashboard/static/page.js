// The page: asks the gateway for its figures every two seconds, while it is looked at, and shows them.

import * as format from "./format.js";
import { Plot } from "./plot.js";
import { TenantTable } from "./tenants.js";

const ASK_MS = 2000, SLOW_ASK_MS = 5000, TIMEOUT_MS = 10000, OLD_S = 8, LEAST_SPAN_S = 120;
const STATES = {
  ready: "ready",
  draining: "draining: takes no new requests",
  engine_dead: "the engine has died",
  limits_unavailable: "limits can’t be checked: refuses requests",
  overloaded: "starting",
};

const rate = (lines, unit, title, more = {}) => new Plot({ title, unit, lines, ...more });
const PLOTS = [
  rate([
    { column: "input_tokens_per_s", label: "in", colour: "blue" },
    { column: "output_tokens_per_s", label: "out", colour: "orange" },
  ], "tokens/s", "Tokens"),
  rate([{ column: "decode_tokens_per_s", label: "mean", colour: "orange" }], "tokens/s", "One user’s decode speed"),
  rate([
    { column: "ttft_p50_s", label: "p50", colour: "blue" },
    { column: "ttft_p90_s", label: "p90", colour: "purple" },
  ], "time", "Time to first token", { show: format.seconds }),
  rate([
    { column: "running", label: "running", colour: "green" },
    { column: "waiting", label: "waiting in the engine", colour: "purple" },
    { column: "queued", label: "queued", colour: "red" },
  ], "requests", "Requests under way", { whole: true, limit: "seats" }),
  rate([
    { column: "finished_per_s", label: "finished", colour: "green" },
    { column: "cancelled_per_s", label: "cancelled", colour: "grey" },
    { column: "refused_per_s", label: "refused", colour: "orange" },
    { column: "invalid_per_s", label: "invalid", colour: "purple" },
    { column: "failed_per_s", label: "failed", colour: "red" },
  ], "requests/s", "Requests by how they ended"),
  rate([
    { column: "kv_cache_usage", label: "KV cache in use", colour: "green" },
    { column: "cache_hit_ratio", label: "prefix-cache hits", colour: "blue" },
    { column: "draft_acceptance", label: "drafts accepted", colour: "orange" },
  ], "share", "Caches and drafts", { show: format.percent, most: 1 }),
  rate([{ column: "tokens_per_step", label: "with drafts", colour: "orange" }], "tokens/step", "Tokens per step of the engine"),
  rate([
    { column: "loop_lag_p50_s", label: "p50", colour: "blue" },
    { column: "loop_lag_p99_s", label: "p99", colour: "red" },
  ], "time", "Event-loop lag", { show: format.seconds }),
  rate([
    { column: "token_gap_p50_s", label: "p50", colour: "blue" },
    { column: "token_gap_p99_s", label: "p99", colour: "red" },
  ], "time", "Time between tokens", { show: format.seconds }),
  rate([
    { column: "overhead_p50_s", label: "p50", colour: "blue" },
    { column: "overhead_p90_s", label: "p90", colour: "purple" },
  ], "time", "The gateway’s own part of a request", { show: format.seconds }),
  rate([{ column: "ledger_pending_rows", label: "pending", colour: "purple" }], "rows", "Ledger backlog", { whole: true }),
  rate([
    { column: "images_per_s", label: "loaded", colour: "blue" },
    { column: "bad_images_per_s", label: "refused or failed", colour: "red" },
  ], "images/s", "Images"),
];

/** Key, label, unit, and the text of the last point. */
const TILES = [
  ["output", "Tokens out", "tok/s", (now) => format.number(now.output_tokens_per_s)],
  ["input", "Tokens in", "tok/s", (now) => format.number(now.input_tokens_per_s)],
  ["decode", "One user’s decode speed", "tok/s", (now) => format.number(now.decode_tokens_per_s)],
  ["ttft", "Time to first token, p50 / p90", "", (now) => `${format.seconds(now.ttft_p50_s)} / ${format.seconds(now.ttft_p90_s)}`],
  ["running", "Running / seats", "requests", (now, all) => `${format.count(now.running)} / ${format.count(all.seats)}`],
  ["waiting", "Queued / waiting in the engine", "requests", (now) => `${format.count(now.queued)} / ${format.count(now.waiting)}`],
  ["kv", "KV cache in use", "", (now) => format.percent(now.kv_cache_usage)],
  ["hit", "Prefix-cache hits", "", (now) => format.percent(now.cache_hit_ratio)],
  ["step", "Tokens per step", "", (now) => format.number(now.tokens_per_step)],
  ["acceptance", "Drafts accepted", "", (now) => format.percent(now.draft_acceptance)],
  ["finished", "Requests finished", "per s", (now) => format.number(now.finished_per_s)],
  ["refused", "Refused / failed", "per s", (now) => `${format.number(now.refused_per_s)} / ${format.number(now.failed_per_s)}`],
  ["lag", "Event-loop lag, p99", "", (now) => format.seconds(now.loop_lag_p99_s)],
  ["ledger", "Ledger backlog", "rows", (now) => format.count(now.ledger_pending_rows)],
  ["images", "Images loaded", "per s", (now) => format.number(now.images_per_s)],
];

const by = (id) => document.getElementById(id);
const seen = { epoch: "", epochs: new Set(), areMany: false, next: 0, points: [], restarts: [], last: null, answeredMs: 0, skewS: 0, failedMs: null };
let timer = 0, asking = null;

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const tiles = TILES.map(([key, label, unit, show]) => {
  const box = document.createElement("div");
  const term = document.createElement("dt");
  const value = document.createElement("dd");
  const text = document.createElement("span");
  const unitText = document.createElement("small");
  term.textContent = label;
  text.textContent = format.UNKNOWN;
  unitText.textContent = unit;
  box.id = `tile-${key}`;
  value.append(text, " ", unitText);
  box.append(term, value);
  by("tiles").append(box);
  return { text, show };
});
by("plots").append(...PLOTS.map((plot) => plot.figure));
const table = new TenantTable(() => ask());

/** Where the figures are: without what a browser may keep of a key in the address. */
function address() {
  const url = new URL("dashboard/figures", location.origin + location.pathname);
  const { filter, sort, order, page } = table.view;
  const wanted = { epoch: seen.epoch, since: seen.next, filter, sort, order, page };
  for (const [name, value] of Object.entries(wanted)) url.searchParams.set(name, value);
  return url;
}

async function ask() {
  clearTimeout(timer);
  asking?.abort();
  const mine = (asking = new AbortController());
  const patience = setTimeout(() => mine.abort(), TIMEOUT_MS);
  let next = ASK_MS;
  try {
    const response = await fetch(address(), { signal: mine.signal, cache: "no-store" });
    if (!response.ok) throw new Error(response.status === 401 ? "the key is refused; load the page again to log in" : `it answered ${response.status}`);
    const figures = await response.json();
    if (mine !== asking) return;
    take(figures);
  } catch (error) {
    if (mine !== asking) return;
    next = SLOW_ASK_MS;
    seen.failedMs ??= Date.now();
    const why = error.message.startsWith("the key") || error.message.startsWith("it ") ? error.message : "it does not answer";
    notice(`No figures from the gateway since ${format.time((seen.answeredMs || seen.failedMs) / 1000)}: ${why}. Trying again.`, true);
    mark("away", "not reached");
  } finally {
    clearTimeout(patience);
  }
  if (!document.hidden) timer = setTimeout(ask, next);
}

function take(figures) {
  if (figures.epoch !== seen.epoch && seen.epochs.has(figures.epoch)) seen.areMany = true;
  else if (figures.epoch !== seen.epoch && seen.epoch !== "") seen.restarts.push(figures.started_unix_s);
  seen.epochs.add(figures.epoch);
  const lastS = seen.points.length ? seen.points[seen.points.length - 1][0] : -Infinity;
  seen.points.push(...figures.points.filter((point) => point[0] > lastS));
  while (seen.points.length && seen.points[0][0] < figures.now_unix_s - figures.kept_s) seen.points.shift();
  seen.restarts = seen.restarts.filter((s) => s >= figures.now_unix_s - figures.kept_s);
  Object.assign(seen, { epoch: figures.epoch, next: figures.next, last: figures, answeredMs: Date.now(), failedMs: null });
  const restart = seen.restarts[seen.restarts.length - 1];
  if (seen.areMany) notice("Several gateways answer under this address, by turns, and each knows only its own figures: open one of them directly.", true);
  else if (figures.replica.store === "away") notice("The store can’t be reached: tenants and keys stay as they were last seen, and rows of usage wait. Why is in the log (store_away, ledger_away).");
  else if (figures.replica.limits_store === "away") notice("The limits store can’t be reached: limits hold for this replica alone, or all requests are refused, as storage.limits_away says. Why is in the log (limits_store_away).");
  else if (restart === undefined) notice("");
  else notice(`The gateway restarted at ${format.time(restart)}; what it counts began anew.`);
  show(figures);
}

function show(figures) {
  const { replica } = figures;
  mark(replica.status, STATES[replica.status] ?? replica.status);
  const up = format.duration(figures.now_unix_s - figures.started_unix_s);
  const stores = [["store", replica.store], ["limits store", replica.limits_store]].filter(([, state]) => state === "away");
  const away = stores.map(([name]) => ` · ${name} away`).join("");
  put(by("what"), `${figures.version} · ${figures.engine} · ${figures.models.join(", ")} · this replica, up ${up}${away}`);
  const last = seen.points[seen.points.length - 1] ?? [];
  const now = Object.fromEntries(figures.columns.map((column, index) => [column, last[index] ?? null]));
  for (const { text, show: shown } of tiles) put(text, shown(now, figures));
  const spanS = Math.min(figures.kept_s, Math.max(LEAST_SPAN_S, figures.now_unix_s - (seen.points[0]?.[0] ?? figures.now_unix_s)));
  const given = { points: seen.points, columns: figures.columns, endS: figures.now_unix_s, spanS, intervalS: figures.interval_s, restarts: seen.restarts, limit: figures.seats };
  for (const plot of PLOTS) plot.update(given);
  table.update(figures.tenants);
  age();
}

function mark(state, text) {
  by("status").dataset.state = state;
  put(by("status"), text);
}

function notice(text, bad = false) {
  by("notice").hidden = text === "";
  by("notice").classList.toggle("bad", bad);
  put(by("notice"), text);
}

function age() {
  if (seen.last === null) return;
  const pointS = seen.points.length ? seen.points[seen.points.length - 1][0] : seen.last.now_unix_s;
  const oldS = Math.max(0, seen.last.now_unix_s - pointS + (Date.now() - seen.answeredMs) / 1000);
  put(by("age"), `· figures ${format.duration(oldS)} old`);
  document.body.classList.toggle("old", oldS > OLD_S);
}

function theme() {
  const order = ["system", "light", "dark"];
  const chosen = order[(order.indexOf(document.documentElement.dataset.theme ?? "system") + 1) % 3];
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  try {
    localStorage.setItem("k3gw-theme", chosen);
  } catch {} // no storage: it holds for this page
  put(by("theme"), `Theme: ${chosen}`);
}

put(by("theme"), `Theme: ${document.documentElement.dataset.theme ?? "system"}`);
by("theme").addEventListener("click", theme);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : ask()));
setInterval(age, 1000);
ask();
