// @ts-check
// How a limit stands for a client: a picture of what is counted, and in words.

import { count, picture, SECOND, svg, time } from "./elements.js";

/** The name of a limit, and of whose requests it counts. @param {any} l */
export function named(l) {
  return l.route ? `${l.name} of ${l.route}` : l.name;
}

/** @param {any} l */
const isConcurrency = (l) => l.algorithm === "concurrency";

/** @param {any} l @param {number} now */
export function draw(l, now) {
  if (l.slots) return drawSlots(l, now);
  if (l.bucket) return drawLevel(l);
  if (isConcurrency(l)) return drawLeases(l, now);
  return drawEntries(l, now);
}

/** @param {any} l @param {number} now */
function drawSlots(l, now) {
  const starts = l.slots.map((/** @type {any} */ s) => Date.parse(s.start));
  const width = starts.length > 1 ? starts[1] - starts[0] : l.window * SECOND;
  const share = (width / SECOND / l.window) * l.limit;
  const from = now - l.window * SECOND; // where the window begins
  const first = from - width; // what is drawn begins
  const end = starts.length > 1 ? now + width - ((now - starts[0]) % width) : starts[0] + width;
  const x = (/** @type {number} */ t) => (starts.length > 1 ? ((t - first) / (end - first)) * 600 : ((t - starts[0]) / width) * 600);
  const most = Math.max(...l.slots.map((/** @type {any} */ s) => s.count), share, 1);
  let used = 0;
  const bars = l.slots.flatMap((/** @type {any} */ s, /** @type {number} */ i) => {
    if (!s.count || starts[i] + width <= from) return [];
    used += s.count * s.weight;
    const h = (s.count / most) * 96;
    const counted = h * s.weight;
    const bar = (/** @type {number} */ y, /** @type {number} */ height, /** @type {string} */ name) =>
      svg("rect", { x: x(starts[i]), y, width: Math.max(x(starts[i] + width) - x(starts[i]) - 2, 1), height, class: name },
        svg("title", {}, `${count(s.count)} from ${new Date(starts[i]).toLocaleTimeString()}`));
    return [bar(100 - counted, counted, "bar"), ...(s.weight < 1 ? [bar(100 - h, h - counted, "rest")] : [])];
  });
  const line = 100 - (share / most) * 96;
  return picture(600, 100, `${count(Math.round(used))} of ${count(l.limit)} in use, in ${l.slots.length} slots`,
    hatch(), ...bars,
    ...(starts.length > 1 ? [svg("line", { x1: x(from), x2: x(from), y1: 0, y2: 100, class: "edge" })] : []),
    svg("line", { x1: 0, x2: 600, y1: line, y2: line, class: "most" }));
}

function hatch() {
  return svg("defs", {}, svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: "hatch" })));
}

/** @param {any} l */
function drawLevel(l) {
  const b = l.bucket;
  const most = Math.max(b.level, b.capacity, 1);
  const at = (b.capacity / most) * 598;
  return picture(600, 40, `${count(b.level)} of ${count(b.capacity)} in use, draining ${count(b.drains_per_second)} a second`,
    svg("rect", { x: 0, y: 4, width: (b.level / most) * 598, height: 32, class: "bar" }),
    svg("line", { x1: at, x2: at, y1: 0, y2: 40, class: "most" }));
}

/** @param {any} l @param {number} now */
function drawEntries(l, now) {
  const entries = l.entries ?? [];
  const from = now - l.window * SECOND;
  const most = Math.max(...entries.map((/** @type {any} */ e) => e.cost), 1);
  const used = entries.reduce((/** @type {number} */ sum, /** @type {any} */ e) => sum + e.cost, 0);
  return picture(600, 60, `${count(used)} of ${count(l.limit)} in use, in ${entries.length} entries`,
    svg("rect", { x: 0.5, y: 0.5, width: 599, height: 59, class: "frame" }),
    ...entries.map((/** @type {any} */ e) => {
      const x = ((Date.parse(e.first) - from) / (l.window * SECOND)) * 600;
      const end = ((Date.parse(e.last) - from) / (l.window * SECOND)) * 600;
      const h = 10 + (e.cost / most) * 46;
      return svg("rect", { x: Math.max(0, Math.min(x, 598)), y: 58 - h, width: Math.max(end - x, 1.5), height: h, class: "bar" });
    }));
}

/** @param {any} l @param {number} now */
function drawLeases(l, now) {
  const places = (l.leases ?? []).flatMap((/** @type {any} */ e) => Array(e.cost).fill(e));
  const h = 60 / Math.max(places.length, 1);
  return picture(600, 60, `${places.length} places taken of ${count(l.limit)}`,
    svg("rect", { x: 0.5, y: 0.5, width: 599, height: 59, class: "frame" }),
    ...places.map((/** @type {any} */ e, /** @type {number} */ i) =>
      svg("rect", { x: 0, y: i * h + h * 0.1, width: Math.max(2, ((Date.parse(e.until) - now) / (l.window * SECOND)) * 598), height: h * 0.8, class: "bar" })));
}

/** What a picture shows, in words for those who see it. @param {any} l */
export function legend(l) {
  const ago = `${time(l.window)} ago`;
  if (l.slots?.length > 1) return `From ${ago} until now. Solid: counts now; hatched: has left the window; dashed: an even share of the limit.`;
  if (l.slots) return "Used in this window; dashed: the limit.";
  if (l.bucket) return `Used, of ${count(l.bucket.capacity)} that fit at once (dashed); ${count(l.bucket.drains_per_second)} come free a second.`;
  if (isConcurrency(l)) return "A bar for each place that is taken, as long as its lease still lasts.";
  return `From ${ago} until now, a bar for each request that counts.`;
}

/** @param {any} l */
export function standing(l) {
  const free = l.reset_after > 0 ? `; all of it is free in ${time(l.reset_after)} if nobody asks` : "";
  return `${named(l)} (${l.algorithm.replaceAll("_", " ")}), ${count(l.limit)} ${isConcurrency(l) ? "at once" : `in ${time(l.window)}`}: ${l.allowed ? `${count(l.remaining)} remain` : "this limit denies"}${free}`;
}
