// One plot: lines over the last minutes, axes with units, a readout under the pointer or by the arrow keys.
// A line is drawn only between points that are next to each other in time and known.

import * as format from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 170;
const LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 22;
const TICKS_S = [30, 60, 120, 180, 300];

function element(name, attributes = {}, text = undefined) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text !== undefined) made.textContent = text;
  return made;
}

/** Where the axis has its lines: about four, at round values, from 0 on. */
export function ticks(most, whole) {
  const step = Math.max(most, 1e-9) / 4;
  const power = 10 ** Math.floor(Math.log10(step));
  let nice = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((value) => value >= step * 0.999);
  if (whole) nice = Math.max(1, Math.ceil(nice));
  const found = [];
  for (let index = 0; index === 0 || found[found.length - 1] < most; index++) found.push(index * nice);
  return found;
}

/** The runs of points that a line may join, as [[index, …], …]. */
export function runs(points, column, longestGapS) {
  const found = [];
  let before = null;
  points.forEach((point, index) => {
    const known = point[column] !== null && point[column] !== undefined;
    if (known) {
      if (before === null || point[0] - before > longestGapS) found.push([]);
      found[found.length - 1].push(index);
    }
    before = known ? point[0] : null;
  });
  return found;
}

export class Plot {
  /** `lines`: [{column, label, colour}]; `most`: the axis' fixed upper end; `whole`: only whole numbers on it. */
  constructor({ title, unit, lines, show = format.number, most = null, whole = false, limit = null }) {
    Object.assign(this, { title, unit, lines, show, most, whole, limit });
    this.points = [];
    this.read = null;
    this.figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    const heading = document.createElement("h3");
    heading.textContent = title;
    const unitText = document.createElement("span");
    unitText.textContent = unit;
    unitText.className = "unit";
    caption.append(heading, unitText);
    this.legend = document.createElement("ul");
    this.legend.className = "legend";
    this.values = lines.map((line) => {
      const entry = document.createElement("li");
      const swatch = document.createElement("span");
      swatch.className = `swatch ${line.colour}`;
      const value = document.createElement("span");
      value.className = "value";
      entry.append(swatch, `${line.label} `, value);
      this.legend.append(entry);
      return value;
    });
    this.svg = element("svg", { role: "img", tabindex: 0, height: HEIGHT });
    this.readout = document.createElement("p");
    this.readout.className = "readout";
    this.readout.setAttribute("aria-live", "polite");
    this.figure.append(caption, this.legend, this.svg, this.readout);
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.#readAt(null));
    this.svg.addEventListener("blur", () => this.#readAt(null));
    this.svg.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(this.figure);
  }

  /** `points`: rows of figures, the time first; `columns`: their names; `restarts`: times at which the gateway began anew. */
  update({ points, columns, endS, spanS, intervalS, restarts, limit }) {
    if (this.read !== null) {
      const moved = points.findIndex((point) => point[0] === this.readS);
      this.read = moved < 0 ? null : moved;
    }
    Object.assign(this, { points, endS, spanS, intervalS, restarts, limitValue: limit });
    this.indexes = this.lines.map((line) => columns.indexOf(line.column));
    this.draw();
  }

  draw() {
    const width = Math.floor(this.figure.clientWidth - 24);
    if (this.indexes === undefined || width < 80) return;
    const inner = { width: width - LEFT - RIGHT, height: HEIGHT - TOP - BOTTOM };
    const all = this.points.flatMap((point) => this.indexes.map((index) => point[index] ?? 0));
    const wanted = this.most ?? 1.05 * Math.max(0, ...all, this.limitIsNear(all) ? this.limitValue : 0);
    const marks = this.most === 1 ? [0, 0.25, 0.5, 0.75, 1] : ticks(wanted || 1, this.whole);
    const top = marks[marks.length - 1];
    this.x = (s) => LEFT + inner.width * (1 - (this.endS - s) / this.spanS);
    this.y = (value) => TOP + inner.height * (1 - value / top);
    this.svg.setAttribute("width", width);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.replaceChildren(...this.#axes(marks, width), ...this.#marks(inner), ...this.#lines());
    this.cross = element("g", { class: "cross" });
    this.svg.append(this.cross);
    this.#describe();
    this.#readAt(this.read);
  }

  limitIsNear(all) {
    return this.limit !== null && this.limitValue > 0 && Math.max(...all) >= 0.5 * this.limitValue;
  }

  #axes(marks, width) {
    const made = [];
    for (const mark of marks) {
      const y = this.y(mark);
      made.push(element("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }));
      made.push(element("text", { class: "tick", x: LEFT - 6, y: y + 4, "text-anchor": "end" }, this.show(mark)));
    }
    const tickS = TICKS_S.find((step) => this.spanS / step <= 5) ?? TICKS_S[TICKS_S.length - 1];
    for (let s = Math.ceil((this.endS - this.spanS) / tickS) * tickS; s <= this.endS; s += tickS) {
      const x = this.x(s);
      if (x < LEFT + 14 || x > width - RIGHT - 14) continue;
      made.push(element("line", { class: "grid", x1: x, x2: x, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }));
      made.push(element("text", { class: "tick", x, y: HEIGHT - 5, "text-anchor": "middle" }, format.time(s, tickS < 60)));
    }
    return made;
  }

  #marks(inner) {
    const made = [];
    for (const s of this.restarts) {
      if (s < this.endS - this.spanS) continue;
      const line = element("line", { class: "restart", x1: this.x(s), x2: this.x(s), y1: TOP, y2: TOP + inner.height });
      line.append(element("title", {}, `The gateway restarted at ${format.time(s)}`));
      made.push(line);
    }
    if (this.limit !== null && this.limitValue > 0 && this.y(this.limitValue) >= TOP - 1) {
      const y = this.y(this.limitValue);
      made.push(element("line", { class: "limit", x1: LEFT, x2: LEFT + inner.width, y1: y, y2: y }));
      made.push(element("text", { class: "tick", x: LEFT + inner.width, y: y - 4, "text-anchor": "end" }, this.limit));
    }
    return made;
  }

  #lines() {
    const made = [];
    this.lines.forEach((line, number) => {
      const column = this.indexes[number];
      let path = "";
      for (const run of runs(this.points, column, 2.5 * this.intervalS)) {
        const places = run.map((index) => [this.x(this.points[index][0]), this.y(this.points[index][column])]);
        if (places.length === 1) made.push(element("circle", { class: `dot ${line.colour}`, cx: places[0][0], cy: places[0][1], r: 1.5 }));
        else path += places.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
      }
      made.push(element("path", { class: `line ${line.colour}`, d: path }));
    });
    return made;
  }

  #describe() {
    const last = this.points[this.points.length - 1];
    const said = this.lines.map((line, number) => {
      const value = last?.[this.indexes[number]];
      const text = this.show(value);
      if (this.values[number].textContent !== text) this.values[number].textContent = text;
      return `${line.label} ${text}`;
    });
    this.svg.setAttribute("aria-label", `${this.title}, ${this.unit}: now ${said.join(", ")}`);
  }

  #point(event) {
    if (!this.points.length) return;
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    let nearest = 0;
    this.points.forEach((point, index) => {
      if (Math.abs(this.x(point[0]) - x) < Math.abs(this.x(this.points[nearest][0]) - x)) nearest = index;
    });
    this.#readAt(Math.abs(this.x(this.points[nearest][0]) - x) < 12 ? nearest : null);
  }

  #key(event) {
    const last = this.points.length - 1;
    const at = this.read ?? last + (event.key === "ArrowLeft" ? 1 : 0);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    this.#readAt(Math.min(Math.max(to, 0), last));
  }

  #readAt(index) {
    this.read = index;
    if (this.cross === undefined) return;
    if (index === null || this.points[index] === undefined) {
      this.cross.replaceChildren();
      this.readout.textContent = "";
      return;
    }
    const point = this.points[index];
    this.readS = point[0];
    const x = this.x(point[0]);
    const made = [element("line", { x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM })];
    const said = this.lines.map((line, number) => {
      const value = point[this.indexes[number]];
      if (value !== null && value !== undefined) {
        made.push(element("circle", { class: `dot ${line.colour}`, cx: x, cy: this.y(value), r: 3 }));
      }
      return `${line.label} ${this.show(value)}`;
    });
    this.cross.replaceChildren(...made);
    const text = `${format.time(point[0])} · ${said.join(" · ")}`;
    if (this.readout.textContent !== text) this.readout.textContent = text; // it is read out when it is set
  }
}
