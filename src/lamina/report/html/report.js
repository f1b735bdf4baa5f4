"use strict";

const { config, frames } = JSON.parse(document.getElementById("figures").textContent);
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

/* The first figures at once, up to some pixels, then one at a time, so that a long page answers while it draws. */
const AT_ONCE = 6000;

function next() {
  if (!waiting.length) return;
  drawOne(waiting.shift());
  setTimeout(next);
}

/* Paper is narrower than most screens, and figures do not follow by themselves. */
const PAPER = 690;

function toPaper() {
  while (waiting.length) drawOne(waiting.shift());
  for (const place of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(place, { width: PAPER });
}

function toScreen() {
  for (const place of document.querySelectorAll(".js-plotly-plot")) Plotly.relayout(place, { width: null, autosize: true });
}

function draw() {
  for (const part of document.querySelectorAll("[data-setting]")) part.hidden = part.dataset.setting !== setting.value;
  const said = [setting, phase].filter(Boolean).map((it) => it.selectedOptions[0].text);
  for (const place of document.querySelectorAll(".shows")) place.textContent = said.join(" · ");
  const idle = !waiting.length;
  waiting = [...document.querySelectorAll(".figure")].map((place) => place.id.replace("figure-", ""));
  for (let room = AT_ONCE; waiting.length && room > 0;) {
    const name = waiting.shift();
    drawOne(name);
    room -= chosen(frames[name]).layout?.height ?? 0;
  }
  if (idle) setTimeout(next);
}

function sort(table, heading) {
  const column = heading.cellIndex;
  const up = heading.getAttribute("aria-sort") !== "ascending";
  const rows = [...table.tBodies[0].rows].map((row) => {
    const cell = row.cells[column], key = cell.dataset.key;
    const value = key === undefined ? cell.textContent : key === "" ? null : Number(key);
    return { row, value };
  });
  const order = (a, b) => typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  rows.sort((a, b) => {
    if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
    return up ? order(a.value, b.value) : order(b.value, a.value);
  });
  for (const other of heading.parentNode.cells) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  table.tBodies[0].append(...rows.map(({ row }) => row));
}

function filter(table, words, count) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = [...table.tBodies[0].rows];
  for (const row of rows) {
    const text = [...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase();
    row.hidden = !wanted.every((word) => text.includes(word));
  }
  const shown = rows.filter((row) => !row.hidden).length;
  const all = `${rows.length} row${rows.length === 1 ? "" : "s"}`;
  count.textContent = shown === rows.length ? all : `${shown} of ${all}`;
}

for (const heading of document.querySelectorAll(".sortable thead th")) {
  heading.querySelector("button").addEventListener("click", () => sort(heading.closest("table"), heading));
}
for (const input of document.querySelectorAll("[data-filters]")) {
  const table = document.getElementById(input.dataset.filters);
  const count = document.querySelector(`[data-counts="${input.dataset.filters}"]`);
  input.addEventListener("input", () => filter(table, input.value, count));
  filter(table, input.value, count);
}
setting?.addEventListener("change", draw);
phase?.addEventListener("change", draw);
addEventListener("beforeprint", toPaper);
addEventListener("afterprint", toScreen);
scheme.addEventListener("change", draw);
draw();
