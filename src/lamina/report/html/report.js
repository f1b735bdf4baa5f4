"use strict";

let config, frames;
const setting = document.getElementById("setting");
const phase = document.getElementById("phase");
const scheme = matchMedia("screen and (prefers-color-scheme: dark)");

/* Figures name their colours; the style sheet says what the names mean in light, dark and print. */
function paint(node, style) {
  const named = (name) => style.getPropertyValue("--" + name).trim() || name;
  if (Array.isArray(node)) return node.map((item) => paint(item, style));
  if (node === null || typeof node !== "object") return node;
  return Object.fromEntries(Object.entries(node).map(([key, value]) => {
    if (key === "colorscale") return [key, value.map(([at, name]) => [at, named(name)])];
    if (/color$/.test(key) && typeof value === "string") return [key, named(value)];
    return [key, paint(value, style)];
  }));
}

/* A figure has a frame for each setting or one for all; a frame may be one for each phase. */
function chosen(choices) {
  const frame = choices.length > 1 ? choices[setting.value] : choices[0];
  return typeof frame === "string" || frame.data ? frame : frame[phase?.value ?? "step"];
}

let waiting = [];

/* Figures and the library stand in the page compressed; the library may be in a file beside it. */
async function unpacked(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (it) => it.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

async function load() {
  ({ config, frames } = JSON.parse(await unpacked("figures")));
  if (!document.getElementById("plotly")) return;
  const script = document.createElement("script");
  script.textContent = await unpacked("plotly");
  document.head.append(script);
}

function drawOne(name) {
  const place = document.getElementById("figure-" + name);
  const frame = chosen(frames[name]);
  if (!place.data) place.replaceChildren();
  if (typeof frame !== "string") {
    Plotly.react(place, { ...paint(frame, getComputedStyle(document.documentElement)), config });
  } else {
    Plotly.purge(place);
    place.textContent = `Nothing to draw in this setting: ${frame}.`;
  }
}

/* What a reader sees is drawn first, then one figure at a time while the page is idle. */
const idle = window.requestIdleCallback ?? ((call) => setTimeout(call, 50));

function next() {
  if (!window.Plotly || !waiting.length) return;
  drawOne(waiting.shift());
  idle(next);
}

const seen = new IntersectionObserver((entries) => {
  for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
    const name = target.id.replace("figure-", "");
    if (window.Plotly && waiting.includes(name)) {
      waiting = waiting.filter((other) => other !== name);
      drawOne(name);
    }
  }
}, { rootMargin: "300px" });

/* Paper is narrower than most screens, and figures do not follow by themselves. */
const PAPER = 690;

function toPaper() {
  if (!window.Plotly) return;
  while (waiting.length) drawOne(waiting.shift());
  for (const place of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(place, { width: PAPER });
}

function toScreen() {
  for (const place of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(place, { width: null, autosize: true });
}

/* A choice that changes is drawn at once, up to some pixels. */
const AT_ONCE = 6000;

function draw(room) {
  for (const part of document.querySelectorAll("[data-setting]")) part.hidden = part.dataset.setting !== setting.value;
  const said = [setting, phase].filter(Boolean).map((it) => it.selectedOptions[0].text);
  for (const place of document.querySelectorAll(".shows")) place.textContent = said.join(" · ");
  const figures = [...document.querySelectorAll(".figure")];
  const running = waiting.length;
  waiting = figures.map((place) => place.id.replace("figure-", ""));
  if (!window.Plotly) return;
  while (waiting.length && room > 0) {
    const name = waiting.shift();
    drawOne(name);
    room -= chosen(frames[name]).layout?.height ?? 0;
  }
  for (const place of figures) {
    seen.unobserve(place);
    seen.observe(place);
  }
  if (!running) idle(next);
}

function sort(table, heading) {
  const up = heading.getAttribute("aria-sort") !== "ascending";
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  for (const body of table.tBodies) sortRows(body, heading.cellIndex, up);
  filter(table);
}

function sortRows(body, column, up) {
  const rows = [...body.rows].map((row) => {
    const cell = row.cells[column], key = cell.dataset.key;
    const value = key === undefined ? cell.textContent : key === "" ? null : Number(key);
    return { row, value };
  });
  const order = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  rows.sort((a, b) => {
    if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
    return up ? order(a.value, b.value) : order(b.value, a.value);
  });
  body.append(...rows.map(({ row }) => row));
}

/* Without words, a long table shows its first rows, with equal blocks folded; words are looked for in every row. */
function filter(table) {
  const wanted = document.querySelector(`[data-filters="${table.id}"]`).value.toLowerCase().split(/\s+/).filter(Boolean);
  const view = wanted.length ? "every" : document.querySelector(`[data-rows="${table.id}"]`)?.value ?? "every";
  const bodies = [...table.tBodies], last = bodies.at(-1);
  const body = view === "every" ? last : bodies[0];
  for (const other of bodies) other.hidden = other !== body;
  table.classList.toggle("unfolded", body === last);
  const most = Number(view) || Infinity;
  let shown = 0;
  for (const row of body.rows) {
    const text = wanted.length ? [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase() : "";
    row.hidden = shown >= most || !wanted.every((word) => text.includes(word));
    if (!row.hidden) shown += 1;
  }
  const count = last.rows.length, all = `${count} row${count === 1 ? "" : "s"}`;
  const lines = body === last ? shown : `${shown} line${shown === 1 ? "" : "s"}`;
  document.querySelector(`[data-counts="${table.id}"]`).textContent = shown === count ? all : `${lines} of ${all}`;
}

for (const heading of document.querySelectorAll(".sortable thead th")) {
  heading.querySelector("button").addEventListener("click", () => sort(heading.closest("table"), heading));
}
for (const input of document.querySelectorAll("[data-filters], [data-rows]")) {
  const table = document.getElementById(input.dataset.filters ?? input.dataset.rows);
  input.addEventListener("input", () => filter(table));
  filter(table);
}
setting?.addEventListener("change", () => draw(AT_ONCE));
phase?.addEventListener("change", () => draw(AT_ONCE));
addEventListener("beforeprint", toPaper);
addEventListener("afterprint", toScreen);
scheme.addEventListener("change", () => draw(AT_ONCE));
draw(0);
/* The page is shown before the library is read. */
function begin() {
  waiting = [];
  draw(0);
  if (!window.Plotly) refuse("The figures need plotly.min.js beside this page; the tables do not.");
}

function refuse(why) {
  for (const place of document.querySelectorAll(".figure")) place.textContent = why;
}

if (document.querySelector(".figure")) {
  const old = () => refuse("The figures need a browser of 2023 or later; the tables do not.");
  setTimeout(() => load().then(begin, old));
}
