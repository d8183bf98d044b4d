// The table of tenants: one page of rows, ordered and filtered by the gateway. Names are data: they go in as text only.

import * as format from "./format.js";

const BUDGETS = {
  tokens_per_day: ["tokens today", format.number],
  tokens_per_month: ["tokens this month", format.number],
  nano_usd_per_day: ["today", format.usd],
  nano_usd_per_month: ["this month", format.usd],
};

const used = ([taken, limit], show = format.number) =>
  limit === null ? { text: show(taken) } : { text: `${show(taken)} / ${show(limit)}`, share: taken / limit };

function inputTokens(row) {
  const cell = used(row.input_tokens_per_minute);
  const [taken, limit] = row.uncached_input_tokens_per_minute;
  if (limit === null) return cell;
  const uncached = `${format.pair(format.number(taken), format.number(limit))} uncached`;
  return { ...cell, note: uncached, share: Math.max(cell.share ?? 0, taken / limit) };
}

function budget(row) {
  const found = Object.entries(row.budget).sort(([, [a, b]], [, [c, d]]) => c / d - a / b);
  if (!found.length) return { text: "none" };
  const [name, [taken, limit]] = found[0];
  const [window, show] = BUDGETS[name];
  return { text: `${format.percent(row.budget_left)} left`, note: `${format.pair(show(taken), show(limit))} ${window}`, share: 1 - row.budget_left };
}

const share = (row) =>
  row.fair_share === null
    ? { text: format.percent(row.service_share) }
    : { text: format.percent(row.service_share), note: `fair\u00a0${format.percent(row.fair_share)}` };

/** Heading, what the gateway orders by (null: not at all), and a row's cell: {text, note, share of a limit}. */
const COLUMNS = [
  ["Tokens per s", "traffic", (row) => ({ text: `${format.number(row.output_tokens_per_s)} out`, note: `${format.number(row.input_tokens_per_s)} in` })],
  ["Share of service", "service", share],
  ["Weight", "weight", (row) => ({ text: format.number(row.weight) })],
  ["Running", "running", (row) => used([row.running, row.concurrent_requests], format.count)],
  ["Queued", "queued", (row) => ({ text: format.count(row.queued) })],
  ["Requests per min", null, (row) => used(row.requests_per_minute)],
  ["Input tokens per min", null, inputTokens],
  ["Output tokens per min", null, (row) => used(row.output_tokens_per_minute)],
  ["Budget", "budget_left", budget],
  ["Cache hits", "cache_hit", (row) => ({ text: format.percent(row.cache_hit_ratio) })],
  ["Requests", "requests", (row) => ({ text: format.count(row.requests) })],
  ["Refused", "refused", (row) => ({ text: format.count(row.refused) })],
];
const ASCENDING_FIRST = new Set(["name", "budget_left"]);

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export class TenantTable {
  /** `changed` is called when the reader wants other rows. */
  constructor(changed) {
    this.view = { filter: "", sort: "traffic", order: "desc", page: 0 };
    this.changed = changed;
    this.table = document.getElementById("tenants");
    this.rows = [];
    this.headings = [];
    const head = this.table.tHead.rows[0];
    for (const [title, sort] of [["Tenant", "name"], ...COLUMNS]) head.append(this.#heading(title, sort));
    const filter = document.getElementById("filter");
    filter.addEventListener("input", () => this.#look({ filter: filter.value, page: 0 }));
    document.getElementById("view").addEventListener("submit", (event) => event.preventDefault());
    document.getElementById("before").addEventListener("click", () => this.#look({ page: this.view.page - 1 }));
    document.getElementById("after").addEventListener("click", () => this.#look({ page: this.view.page + 1 }));
    this.#markOrder();
  }

  update(tenants) {
    this.view.page = tenants.page;
    const all = tenants.num_matching === tenants.num_tenants;
    put(document.getElementById("matching"), all ? `${format.count(tenants.num_tenants)} tenants` : `${format.count(tenants.num_matching)} of ${format.count(tenants.num_tenants)} tenants`);
    put(document.getElementById("page"), `page ${tenants.page + 1} of ${tenants.num_pages}`);
    document.getElementById("before").disabled = tenants.page === 0;
    document.getElementById("after").disabled = tenants.page + 1 >= tenants.num_pages;
    const body = this.table.tBodies[0];
    while (this.rows.length > tenants.rows.length) this.rows.pop().row.remove();
    while (this.rows.length < tenants.rows.length) this.rows.push(this.#row(body));
    tenants.rows.forEach((row, index) => this.#fill(this.rows[index], row));
  }

  #heading(title, sort) {
    const cell = document.createElement("th");
    cell.scope = "col";
    if (sort === null) {
      cell.textContent = title;
      return cell;
    }
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = title;
    button.addEventListener("click", () => {
      const first = ASCENDING_FIRST.has(sort) ? "asc" : "desc";
      const again = this.view.sort === sort;
      this.#look({ sort, order: again ? (this.view.order === "asc" ? "desc" : "asc") : first, page: 0 });
    });
    cell.append(button);
    this.headings.push([cell, sort]);
    return cell;
  }

  #look(wanted) {
    Object.assign(this.view, wanted);
    this.#markOrder();
    this.changed();
  }

  #markOrder() {
    let marked = false;
    for (const [cell, sort] of this.headings) {
      const mine = !marked && sort === this.view.sort;
      if (mine) cell.setAttribute("aria-sort", this.view.order === "asc" ? "ascending" : "descending");
      else cell.removeAttribute("aria-sort");
      marked ||= mine;
    }
  }

  #row(body) {
    const row = body.insertRow();
    const name = document.createElement("th");
    name.scope = "row";
    const label = document.createElement("span");
    const state = document.createElement("small");
    name.append(label, state);
    row.append(name);
    const cells = COLUMNS.map(() => {
      const cell = row.insertCell();
      const text = document.createElement("span");
      const note = document.createElement("small");
      const bar = document.createElement("span");
      const fill = document.createElement("span");
      bar.className = "bar";
      bar.setAttribute("aria-hidden", "true");
      bar.append(fill);
      cell.append(text, note, bar);
      return { text, note, bar, fill };
    });
    return { row, label, state, cells };
  }

  #fill({ label, state, cells }, row) {
    put(label, row.name);
    label.title = row.name;
    put(state, row.suspended ? "suspended" : "");
    COLUMNS.forEach(([, , show], index) => {
      const { text, note = "", share = null } = show(row);
      const cell = cells[index];
      put(cell.text, text);
      put(cell.note, note);
      cell.bar.hidden = share === null;
      if (share === null) return;
      cell.fill.style.width = `${Math.min(100, 100 * share).toFixed(1)}%`;
      cell.fill.className = share >= 1 ? "full" : share >= 0.8 ? "near" : "";
    });
  }
}
