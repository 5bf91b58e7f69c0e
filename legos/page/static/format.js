// Numbers, times and names as people read them.

export const LABELS = { missing: "moved or removed" }; // of the states that have another name here

export function percent(share) {
  return `${number(Math.round(share * 1000) / 10)} %`;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value < 0) return `−${number(-value, digits)}`;
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

export function signed(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  return (value > 0 ? "+" : value < 0 ? "−" : "") + number(Math.abs(value), digits);
}

export function count(value) {
  if (value === null || value === undefined) return "–";
  const scales = [[1e9, "G"], [1e6, "M"], [1e4, "k"]];
  for (const [scale, unit] of scales) {
    if (value >= scale) return `${number(value / (unit === "k" ? 1e3 : scale))} ${unit}`;
  }
  return number(value);
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 48 * 3600) return `${number(seconds / 3600, 2)} h`;
  return `${number(seconds / 86400, 2)} days`;
}

export function ago(time) {
  if (!time) return "";
  const seconds = Date.now() / 1000 - time;
  return seconds < 5 ? "now" : `${duration(seconds)} ago`;
}

export const plural = (amount, word) => `${count(amount)} ${word}${amount === 1 ? "" : "s"}`;

export const last = (name) => String(name ?? "").split("/").pop().split(":").pop();

export const metric = (name) =>
  name.replace(/^eval\//, "").replaceAll("_", " ").replaceAll("/", " · ");
