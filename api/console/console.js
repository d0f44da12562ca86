// @ts-check
// The operator's page. It holds nothing: all that it shows comes from /v1. Names of
// clients are whatever clients have sent; they get into the page as text only.

import { count, el, picture, SECOND, setText, short, svg, time, visible } from "./elements.js";
import { draw, legend, named, standing } from "./limits.js";

/** @param {string} id @returns {any} */
const byId = (id) => document.getElementById(id);

// ---- requests ----

class Problem extends Error {
  /** @param {number} status @param {string} detail */
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

let token = sessionStorage.getItem("token") ?? "";

/** @param {string} path @param {RequestInit} [options] */
async function ask(path, options = {}) {
  /** @type {Record<string, string>} */
  const headers = {};
  if (token) headers.Authorization = `Bearer ${token}`;
  if (options.body) headers["Content-Type"] = "application/json";
  const response = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
  const text = await response.text();
  /** @type {any} */
  let body = null;
  try {
    body = text ? JSON.parse(text) : null;
  } catch {
    throw new Problem(response.status, `weir answered ${response.status}, and no JSON`);
  }
  if (response.status === 401) {
    forgetToken();
    askForToken();
  }
  if (!response.ok) throw new Problem(response.status, body?.detail ?? `weir answered ${response.status}`);
  return response.status === 202 ? { note: "in this instance alone, until the store answers" } : body;
}

/** What is to be asked for with the next request. @type {{path: string, answered: (body: any) => void, failed: (error: unknown) => void}[]} */
let waiting = [];

/** Asks for what is at a path, with all else that is asked for at this moment: one request costs weir less. @param {string} path @param {AbortSignal} signal @returns {Promise<any>} */
function get(path, signal) {
  return new Promise((answered, failed) => {
    signal.addEventListener("abort", () => failed(signal.reason));
    if (waiting.push({ path, answered, failed }) === 1) setTimeout(getAll, 0);
  });
}

async function getAll() {
  const all = waiting.splice(0, 16);
  if (waiting.length) setTimeout(getAll, 0);
  try {
    const { answers } = await ask(`/v1/look?${new URLSearchParams(all.map((a) => ["get", a.path]))}`, { signal: AbortSignal.timeout(5 * SECOND) });
    all.forEach(({ answered, failed }, i) => {
      const { status, body } = answers[i];
      if (status === 200) answered(body);
      else failed(new Problem(status, body.detail));
    });
  } catch (error) {
    for (const { failed } of all) failed(error);
  }
}

/** @param {unknown} error */
function sentence(error) {
  if (error instanceof Problem) {
    if (error.status === 403) return `Not allowed: ${error.message}.`;
    return `${error.message}.`;
  }
  return "weir can't be reached. This page tries again each second.";
}

function forgetToken() {
  token = "";
  sessionStorage.removeItem("token");
  byId("forget").hidden = true;
}

function askForToken() {
  const dialog = byId("token-dialog");
  if (!dialog.open) dialog.showModal();
}

// ---- parts: each asks every so often, once at a time, while the page is seen ----
// All at the same moments, each at some of them: what comes together is one request.

/** Whether a multiple of so many milliseconds has passed since then. @param {number} every @param {number} then */
const isTime = (every, then) => Math.floor(performance.now() / every) !== Math.floor(then / every);

/** @param {number} every @param {(signal: AbortSignal) => Promise<void>} refresh */
function part(every, refresh) {
  let controller = new AbortController();
  let last = -Infinity;
  let running = false;
  const state = { trouble: "" };
  const run = async () => {
    if (document.hidden || byId("token-dialog").open || running || !isTime(every, last)) return;
    running = true;
    last = performance.now();
    controller = new AbortController();
    const late = setTimeout(() => controller.abort(), 5 * SECOND);
    try {
      await refresh(controller.signal);
      state.trouble = "";
    } catch (error) {
      if (last > -Infinity) state.trouble = sentence(error); // else it was given up, to be asked anew
    } finally {
      clearTimeout(late);
      running = false;
    }
  };
  parts.push({ state, run });
  return {
    /** Asks anew at once. */
    again() {
      controller.abort();
      last = -Infinity;
      setTimeout(run, 0);
    },
  };
}

/** @type {{state: {trouble: string}, run: () => void}[]} */
const parts = [];

function tick() {
  for (const p of parts) p.run();
  const said = [...new Set(parts.map((p) => p.state.trouble).filter(Boolean))].join(" ");
  const e = byId("trouble");
  setText(e, visible(said));
  e.hidden = !said;
}

// ---- what is looked at: it is in the address of the page ----

function looked() {
  const q = new URLSearchParams(location.hash.slice(1));
  return { policy: q.get("policy") ?? "", client: q.get("client") ?? "" };
}

/** @param {string} policy @param {string} client */
const address = (policy, client) => `#${new URLSearchParams({ policy, client })}`;

/** @param {string} policy */
const policyPath = (policy) => `/v1/policies/${encodeURIComponent(policy)}`;

/** @param {string} policy @param {string} client */
const clientPath = (policy, client) => `${policyPath(policy)}/clients/${encodeURIComponent(client)}`;

/** Whether a name leads elsewhere in a path, however it is written. @param {string} name */
const isDots = (name) => /^\.\.?$/.test(name);

/** In quotes, a key leads nowhere else. @param {string} policy @param {string} key */
const overridePath = (policy, key) => `${policyPath(policy)}/overrides/${encodeURIComponent(isDots(key) ? `"${key}"` : key)}`;

// ---- the client ----

/** @type {any} */
let shown = null; // the state that is shown

/** @param {any} state */
function verdict(state) {
  const e = state.exception;
  const until = e?.until ? ` until ${new Date(e.until).toLocaleTimeString()} (${time(Math.max(0, (Date.parse(e.until) - Date.parse(state.now)) / SECOND))} left)` : "";
  if (e?.kind === "exempt") return `Always admitted, and not counted${until}.`;
  if (e?.kind === "blocked") return state.allowed ? `Admitted only because the policy is in shadow mode; it is blocked${until}.` : `Blocked${until}.`;
  const denying = state.limits.filter((/** @type {any} */ l) => !l.allowed);
  if (denying.length) {
    const names = denying.map(named).join(" and ");
    const wait = Math.max(...denying.map((/** @type {any} */ l) => l.retry_after));
    const again = wait > 0 ? `admitted again in ${time(wait)}` : "admitted again when a place is free";
    if (state.allowed && state.shadow) return `Admitted only because the policy is in shadow mode; ${names} would deny.`;
    return state.allowed ? `Admitted, but denied by ${names}; ${again}.` : `Denied by ${names}; ${again}.`;
  }
  const least = state.limits.filter((/** @type {any} */ l) => !l.route).sort((/** @type {any} */ a, /** @type {any} */ b) => a.remaining / a.limit - b.remaining / b.limit)[0];
  return least ? `Admitted; ${count(least.remaining)} of ${count(least.limit)} remain by ${least.name}.` : "Admitted.";
}

/** @param {any} state */
function because(state) {
  const all = [];
  const e = state.exception;
  if (e) all.push(`${e.override ? "An override" : "An exception of the policy"} for ${short(meaning(e.client))} holds: ${e.kind}.`);
  const times = (/** @type {string} */ by) => mostOften[by]?.get(address(state.policy, state.client)) ?? mostOften[by]?.get(address(state.policy, state.counted_as));
  const often = [["denied", "denied"], ["allowed", "admitted"]].filter(([by]) => times(by));
  if (often.length) all.push(`In the last minute: ${often.map(([by, word]) => `${count(times(by) ?? 0)} times ${word}`).join(", ")}.`);
  else if (!e && state.limits.every((/** @type {any} */ l) => l.remaining === l.limit)) all.push("Nothing of it is counted now. Is this how its name is written?");
  if (state.client !== state.client.trim()) all.push("Its name begins or ends with a space.");
  // With ~ begins a hash in the store's keys, which tells nobody whom it is of.
  if (state.counted_as !== state.client && !state.counted_as.startsWith("~")) all.push(`Counted as ${visible(state.counted_as)}.`);
  if (state.degraded) all.push("The store doesn't answer: this is what this instance knows.");
  return all.join(" ");
}

/** The state as it is a while later, if nobody asks: then it need not be asked for. @param {any} state @param {number} later */
function aged(state, later) {
  const now = Date.parse(state.now) + later;
  const after = (/** @type {number} */ seconds) => Math.max(0, seconds - later / SECOND);
  const live = (/** @type {any[]|undefined} */ all) => all?.filter((e) => Date.parse(e.until) > now);
  return {
    ...state, now: new Date(now).toISOString(),
    limits: state.limits.map((/** @type {any} */ l) => ({
      ...l, retry_after: after(l.retry_after), reset_after: after(l.reset_after), entries: live(l.entries), leases: live(l.leases),
      bucket: l.bucket && { ...l.bucket, level: Math.max(0, l.bucket.level - (l.bucket.drains_per_second * later) / SECOND) },
    })),
  };
}

/** Whether nothing was counted between two states, nor anything changed. @param {any} before @param {any} after */
function still(before, after) {
  const parts = (/** @type {any} */ l) => (l.slots ?? l.entries ?? l.leases ?? []).filter((/** @type {any} */ p) => p.count !== 0)
    .map((/** @type {any} */ p) => [p.start, p.first, p.last, p.until, p.count, p.cost].join());
  return before?.policy === after.policy && before.client === after.client && before.limits.length === after.limits.length &&
    JSON.stringify(before.exception) === JSON.stringify(after.exception) && after.limits.every((/** @type {any} */ l, /** @type {number} */ i) => {
    const was = before.limits[i];
    const had = new Set(parts(was));
    return l.limit === was.limit && parts(l).every((/** @type {string} */ p) => had.has(p)) && (l.bucket?.level ?? 0) <= (was.bucket?.level ?? 0);
  });
}

let answered = -Infinity; // when the state was
let isStill = false;

const stateOf = part(SECOND, async (signal) => {
  const { policy, client } = looked();
  if (!policy || !client) {
    shown = null;
    byId("state").hidden = true;
    byId("hint").hidden = false;
    return;
  }
  const later = performance.now() - answered;
  const due = shown?.limits.some((/** @type {any} */ l) => l.retry_after > 0 && l.retry_after * SECOND <= later);
  if (isTime((isStill ? 3 : 2) * SECOND, answered) || due) { // drawn each second all the same
    try {
      if (isDots(client)) throw new Problem(0, `no browser can ask for a client that is called ${client}; curl --path-as-is can`);
      const state = await get(`${clientPath(policy, client)}/state`, signal);
      if (signal.aborted) return;
      isStill = still(shown, state);
      shown = state;
      answered = performance.now();
    } catch (error) {
      if (!signal.aborted) byId("state").hidden = true;
      throw error;
    }
  }
  drawState(aged(shown, performance.now() - answered));
});

function lookAgain() {
  answered = -Infinity;
  stateOf.again();
}

/** @param {any} state */
function drawState(state) {
  byId("state").hidden = false;
  byId("hint").hidden = true;
  const v = byId("verdict");
  setText(v, verdict(state));
  v.className = state.allowed ? "allowed" : "denied";
  setText(byId("because"), because(state));
  byId("limits").replaceChildren(...state.limits.map((/** @type {any} */ l) =>
    el("div", { class: l.allowed ? "limit" : "limit denied" },
      el("p", {}, standing(l)), draw(l, Date.parse(state.now)), el("p", { class: "note" }, legend(l)))));
  byId("end").hidden = !state.exception?.override;
  byId("raise").hidden = !state.limits.length;
}

/** For whom a key holds, in words. @param {string} key */
function meaning(key) {
  if (/^"[^]+"$/.test(key)) return key.slice(1, -1);
  if (key.endsWith("*")) return `every client that begins with “${key.slice(0, -1)}”`;
  return isRange(key) ? `every address in ${key}` : key;
}

/** @param {string} key */
const isRange = (key) => /^[0-9a-f.:]+\/[0-9]+$/i.test(key);

/** The client that a key means alone; "" if it means more. @param {string} key */
const clientOf = (key) => (/^"[^]+"$/.test(key) ? key.slice(1, -1) : key.endsWith("*") || isRange(key) ? "" : key);

/** @param {HTMLButtonElement} button */
function changeShown(button) {
  const { policy, client } = looked();
  if (!shown || shown.client !== client || shown.policy !== policy) return;
  const what = button.dataset.do ?? "";
  void change(button, what, button.dataset.for ?? "", policy, client, what === "end" ? shown.exception?.client : shown.key);
}

/** What of an answer isn't as most would expect. @param {any} o */
const noted = (o) => (o?.note ? ` Note: ${visible(o.note)}.` : "");

let turns = 0; // of the dialog

/** Asks whether to, and changes what holds for a client, or for a key. @param {HTMLButtonElement} button @param {string} what @param {string} lasts @param {string} policy @param {string} client @param {string} key */
async function change(button, what, lasts, policy, client, key) {
  const done = byId("done");
  setText(done, "");
  const name = short(client);
  const whom = what === "end" ? meaning(key) : client;
  const span = /** @type {Record<string, string>} */ ({ "10m": "10 min", "1h": "1 h", "24h": "1 day" })[lasts];
  const titles = /** @type {Record<string, string>} */ ({
    reset: `Reset ${name}`, block: `Block ${name} for ${span}`, exempt: `Exempt ${name} for ${span}`, raise: `Give ${name} other limits for ${span}`, end: `End the override of ${short(whom)}`,
  });
  const texts = /** @type {Record<string, string>} */ ({
    reset: `What ${visible(client)} has used in policy ${policy} is forgotten, on every instance: it begins anew.`,
    block: `Every request of ${visible(client)} by policy ${policy} is denied, on every instance within a second.`,
    exempt: `Every request of ${visible(client)} by policy ${policy} is admitted and not counted, on every instance within a second.`,
    raise: `They hold for ${visible(client)} in policy ${policy}, on every instance within a second.`,
    end: `What policy ${policy} says of ${visible(whom)} holds again, on every instance within a second.`,
  });
  setText(byId("confirm-title"), `${titles[what]}?`);
  setText(byId("confirm-text"), texts[what]);
  setText(byId("confirm-do"), titles[what]);
  byId("confirm-reason").hidden = what === "reset" || what === "end";
  byId("reason").value = "";
  const inputs = what === "raise" ? shown.limits.filter((/** @type {any} */ l) => !l.route).map((/** @type {any} */ l) => el("input", { type: "number", min: 1, value: l.limit, name: l.name, required: "" })) : [];
  byId("confirm-limits").replaceChildren(...inputs.map((/** @type {any} */ i) => el("label", {}, i.name, i)));
  const dialog = byId("confirm");
  dialog.returnValue = "cancel";
  dialog.showModal();
  inputs[0]?.select(); // what is typed takes its place
  const turn = ++turns;
  do { // the event of a dialog before may come now
    await new Promise((closed) => dialog.addEventListener("close", closed, { once: true }));
  } while (turn === turns && dialog.open);
  if (turn !== turns) return;
  button.focus();
  if (dialog.returnValue !== "do") return;
  setText(done, "…");
  const reason = byId("reason").value;
  let note = "";
  try {
    if (what === "reset") note = noted(await ask(clientPath(policy, client), { method: "DELETE" }));
    else if (what === "end") await ask(overridePath(policy, key), { method: "DELETE" });
    else {
      /** @type {Record<string, any>} */
      const body = { for: lasts, reason };
      if (what === "block") body.blocked = true;
      if (what === "exempt") body.exempt = true;
      if (what === "raise") body.limits = Object.fromEntries(inputs.map((/** @type {any} */ i) => [i.name, Number(i.value)]));
      note = noted(await ask(overridePath(policy, key), { method: "PUT", body: JSON.stringify(body) }));
    }
    setText(done, `${titles[what]}: done.${note}`);
  } catch (error) {
    setText(done, `${titles[what]}: ${visible(sentence(error))}`);
    done.scrollIntoView({ block: "nearest" });
  }
  listed = "";
  lookAgain();
  overridesOf.again();
}

// ---- who is decided most ----

/** @param {any} fleet */
function ofFleet(fleet) {
  if (!fleet) return "this instance alone, as the store doesn't tell of the others.";
  const missing = fleet.missing ? ` (${count(fleet.missing)} more can't be read)` : "";
  return `${fleet.instances === 1 ? "one instance" : `${count(fleet.instances)} instances`}${missing}: ${count(fleet.allowed)} checks admitted and ${count(fleet.denied)} denied a second.`;
}

/** How often clients were decided, by the lists and the addresses of clients. @type {Record<string, Map<string, number>>} */
const mostOften = {};

const topsOf = /** @type {[string, number][]} */ ([["denied", 3], ["allowed", 6]]).map(([by, every]) =>
  part(every * SECOND, async (signal) => { // what is told of other instances may be older
    const { policy } = looked();
    if (!policy) return;
    const path = `${policyPath(policy)}/top?by=${by}&n=10`;
    /** @type {any} */
    let top;
    try {
      top = await get(`${path}&scope=fleet`, signal);
    } catch (error) {
      if (!(error instanceof Problem && error.status === 503)) throw error;
      top = await get(path, signal);
    }
    if (signal.aborted) return;
    setText(byId("now-title"), `Now, by policy ${policy}`); // not before the lists are its own
    setText(byId("fleet"), ofFleet(top.fleet));
    mostOften[by] = new Map(top.clients.map((/** @type {any} */ c) => [address(policy, c.client), c.count]));
    const list = byId(`top-${by}`);
    const items = top.clients.map((/** @type {any} */ c) =>
      el("li", {}, el("a", { href: address(policy, c.client), title: visible(c.client) }, short(c.client)), ` ${count(c.count)}`));
    const focused = document.activeElement?.getAttribute("href");
    list.replaceChildren(...(items.length ? items : [el("li", {}, "nobody")]));
    if (focused) list.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
  }));

// ---- policies ----

/** @type {string[]} */
let policies = [];
/** @type {Map<string, any>} */
const histories = new Map();
let round = 0;

const policiesOf = part(12 * SECOND, async (signal) => {
  const history = async (/** @type {string} */ name) => { histories.set(name, await get(`${policyPath(name)}/history`, signal)); };
  const due = policies.filter((name) => name === looked().policy || round % 5 === 0); // the others less often: their curves move by a fifth then
  const [all] = await Promise.all([get("/v1/policies", signal), ...due.map((name) => history(name).catch(() => {}))]); // it may be gone
  const names = all.policies.map((/** @type {any} */ p) => p.name);
  if (names.join() !== policies.join()) {
    policies = names;
    byId("policy").replaceChildren(...names.map((/** @type {string} */ n) => el("option", { value: n }, n)));
    showLooked();
  }
  await Promise.all(policies.filter((name) => !histories.has(name)).map(history));
  round++;
  drawPolicies();
});

function drawPolicies() {
  const kinds = ["allowed", "denied", "degraded"];
  const of = (/** @type {string} */ name) => {
    const d = histories.get(name)?.decisions ?? {};
    const denied = (d.denied ?? []).map((/** @type {number} */ n, /** @type {number} */ i) => n + d.shadow_denied[i] + d.contended[i] + d.error[i]);
    return /** @type {Record<string, number[]>} */ ({ allowed: d.allowed ?? [], denied, degraded: d.degraded ?? [] });
  };
  const lines = new Map(policies.map((name) => [name, of(name)]));
  const highest = (/** @type {Record<string, number[]>} */ l) => Math.max(1, ...kinds.flatMap((k) => l[k]));
  const all = Math.max(1, ...[...lines.values()].map(highest));
  byId("policies").replaceChildren(...policies.map((name) => {
    const l = /** @type {Record<string, number[]>} */ (lines.get(name));
    const most = byId("same").checked ? all : highest(l);
    const now = kinds.map((k) => l[k].at(-1) ?? 0);
    return el("div", { class: "policy" },
      el("h3", {}, el("a", { href: address(name, "") }, name), ` ${count(now[0])} admitted, ${count(now[1])} denied a second; highest ${count(highest(l))}`),
      picture(300, 100, `${name}: ${now[0]} admitted and ${now[1]} denied in the last second`,
        ...kinds.map((k) => svg("polyline", { class: `line ${k}`, points: l[k].map((n, i) => `${i},${98 - (n / most) * 96}`).join(" ") }))));
  }));
}

// ---- overrides ----

let inForce = ""; // what the status says of overrides: it tells whether the list has changed
let listed = ""; // the policy and inForce that the list is of

const overridesOf = part(SECOND, async (signal) => {
  const { policy } = looked();
  const now = `${policy} ${inForce}`;
  if (!policy || !inForce || listed === now) return;
  const place = byId("overrides");
  const say = (/** @type {string} */ text) => place.replaceChildren(el("p", { class: "note" }, text));
  /** @type {any[]} */
  let list = [];
  try {
    list = (await get(`${policyPath(policy)}/overrides`, signal)).overrides;
    if (!list.length) say("None.");
  } catch (error) {
    if (!(error instanceof Problem && error.status === 403)) throw error;
    say("This token may only make checks: it sees and changes no overrides.");
  }
  if (signal.aborted) return;
  setText(byId("overrides-title"), `Overrides of policy ${policy}`); // not before the list is its own
  listed = now;
  if (!list.length) return;
  place.replaceChildren(el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...["For", "What", "Until", "Reason", "By"].map((h) => el("th", { scope: "col" }, h)), el("td"))),
    el("tbody", {}, ...list.map((/** @type {any} */ o) => {
      const client = clientOf(o.client);
      const end = el("button", { type: "button", "aria-label": `End the override of ${visible(meaning(o.client))}` }, "End");
      end.addEventListener("click", () => void change(/** @type {HTMLButtonElement} */ (end), "end", "", policy, client, o.client));
      return el("tr", {},
        el("td", { title: visible(meaning(o.client)) }, client ? el("a", { href: address(policy, client) }, short(client)) : short(meaning(o.client))),
        el("td", {}, o.blocked ? "blocked" : o.exempt ? "exempt" : Object.entries(o.limits).map(([n, v]) => `${n}: ${count(Number(v))}`).join(", "), noted(o)),
        el("td", {}, new Date(o.until).toLocaleString()), el("td", {}, visible(o.reason)), el("td", {}, visible(o.by)), el("td", {}, end));
    })))));
});

// ---- the store, and the instance ----

const statusOf = part(6 * SECOND, async (signal) => {
  const s = await get("/v1/status", signal);
  byId("forget").hidden = !token;
  inForce = s.overrides ? `${s.overrides.in_force} ${s.overrides.revision}` : "";
  setText(byId("instance"), `${s.instance} ${s.version}, up ${time((Date.now() - Date.parse(s.started)) / SECOND)}${s.ready ? "" : s.draining ? ", going away" : ", not ready"}`);
  const files = `Policies loaded ${new Date(s.files.loaded).toLocaleString()}${s.files.right ? "." : "; a file has a mistake since, and what was read before stays in force: see the log."}`;
  const latency = s.store_p99 > 0 ? ` 99 of 100 operations on the store took at most ${count(s.store_p99 * 1000)} ms in the last minute.` : "";
  const old = s.overrides?.as_of > 5 ? ` Overrides were last read ${time(s.overrides.as_of)} ago.` : "";
  byId("store").replaceChildren(el("p", { class: s.files.right && !old ? "note" : "bad" }, files + latency + old), el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ...["Server", "State", "Items", "MiB", "Evictions"].map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", {}, ...s.servers.map((/** @type {any} */ v) => el("tr", {},
      el("td", {}, v.server), el("td", {}, v.up ? (v.breaker_open ? "up, not asked yet" : "up") : `down: ${v.error ?? ""}`),
      ...[v.items, v.bytes / 2 ** 20, v.evictions].map((n) => el("td", {}, v.items === undefined ? "" : count(n)))))))));
});

// ---- the page ----

function showLooked() {
  const { policy, client } = looked();
  if (!policy && policies.length) {
    location.replace(address(policies.includes("default") ? "default" : policies[0], client));
    return;
  }
  byId("policy").value = policy;
  if (document.activeElement !== byId("client")) byId("client").value = client;
  document.title = client ? `weir: ${short(client)}` : "weir";
}

addEventListener("hashchange", () => {
  setText(byId("done"), "");
  byId("state").hidden = true;
  showLooked();
  byId("client").value = looked().client;
  lookAgain();
  for (const p of [overridesOf, ...topsOf]) p.again();
});
byId("find").addEventListener("submit", (/** @type {Event} */ event) => {
  event.preventDefault();
  location.hash = address(byId("policy").value, byId("client").value);
});
byId("policy").addEventListener("change", () => { location.hash = address(byId("policy").value, byId("client").value); });
byId("same").addEventListener("change", drawPolicies);
byId("actions").addEventListener("click", (/** @type {Event} */ event) => {
  if (event.target instanceof HTMLButtonElement) changeShown(event.target);
});
byId("confirm-cancel").addEventListener("click", () => byId("confirm").close("cancel"));
byId("token-dialog").addEventListener("close", () => {
  token = byId("token").value.trim();
  byId("token").value = "";
  if (token) sessionStorage.setItem("token", token);
  listed = "";
  for (const p of [policiesOf, statusOf, overridesOf]) p.again();
  lookAgain();
});
byId("forget").addEventListener("click", () => { forgetToken(); askForToken(); });
setInterval(tick, SECOND / 4);
showLooked();
