// Figures as text. What is not known is a dash, never a zero.

export const UNKNOWN = "–";
const GAP = "\u00a0"; // no line ends between a number and its unit

function digits(value, most) {
  return value.toLocaleString("en", { maximumFractionDigits: most, minimumFractionDigits: 0 });
}

/** Three figures that matter, and k, M or G for large numbers. */
export function number(value) {
  if (value === null || value === undefined) return UNKNOWN;
  for (const [scale, letter] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= scale) {
      const scaled = value / (letter === "k" ? 1e3 : scale);
      return digits(scaled, scaled < 10 ? 2 : scaled < 100 ? 1 : 0) + letter;
    }
  }
  return digits(value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

/** All digits. */
export function count(value) {
  return value === null || value === undefined ? UNKNOWN : digits(value, 0);
}

export function percent(value) {
  return value === null || value === undefined ? UNKNOWN : `${digits(100 * value, value < 0.1 ? 1 : 0)}${GAP}%`;
}

export function seconds(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (value < 1) return `${digits(1000 * value, value < 0.01 ? 2 : value < 0.1 ? 1 : 0)}${GAP}ms`;
  return value < 120 ? `${digits(value, value < 10 ? 2 : 1)}${GAP}s` : `${digits(value / 60, 1)}${GAP}min`;
}

/** What is used, and of what. */
export function pair(taken, limit) {
  return `${taken}${GAP}/${GAP}${limit}`;
}

export function duration(value) {
  const whole = Math.max(0, Math.floor(value));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export function time(unixS, withSeconds = true) {
  const parts = { hour: "2-digit", minute: "2-digit", hour12: false };
  return new Date(1000 * unixS).toLocaleTimeString("en-GB", withSeconds ? { ...parts, second: "2-digit" } : parts);
}

/** Of a budget in 10⁻⁹ dollars. */
export function usd(nano) {
  return `$${(nano / 1e9).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}
