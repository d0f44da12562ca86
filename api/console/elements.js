// @ts-check
// Text and elements of the page. Text never becomes markup.

export const SECOND = 1000;
const SVG = "http://www.w3.org/2000/svg";

/** Shows what can't be seen, or turns text around, as an escape. @param {string} s */
export function visible(s) {
  return s.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\ufffd]/gu, (c) => `\\u{${(c.codePointAt(0) ?? 0).toString(16)}}`);
}

/** Cuts a long name in its middle. @param {string} s */
export function short(s) {
  const all = [...visible(s)];
  return all.length <= 60 ? all.join("") : `${all.slice(0, 40).join("")} … ${all.slice(-16).join("")}`;
}

/** @param {number} n */
export const count = (n) => n.toLocaleString("en", { maximumFractionDigits: 1 });

/** @param {number} seconds */
export function time(seconds) {
  if (seconds < 10) return `${Math.ceil(seconds * 10) / 10} s`;
  if (seconds < 120) return `${Math.ceil(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

/** @param {Element} e @param {Record<string, any>} attributes @param {(Node|string)[]} children */
function fill(e, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, String(value));
  e.append(...children);
  return e;
}

/** @param {string} tag @param {Record<string, any>} [attributes] @param {(Node|string)[]} children */
export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** @param {string} tag @param {Record<string, any>} [attributes] @param {(Node|string)[]} children */
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** A picture of so many units, with words for those who don't see it. @param {number} w @param {number} h @param {string} words @param {Node[]} children */
export const picture = (w, h, words, ...children) =>
  svg("svg", { viewBox: `0 0 ${w} ${h}`, preserveAspectRatio: "none", role: "img", "aria-label": words }, ...children);

/** Changes an element's text only if it differs, so that nobody's selection is lost. @param {Element} e @param {string} text */
export function setText(e, text) {
  if (e.textContent !== text) e.textContent = text;
}
