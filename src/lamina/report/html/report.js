"use strict";

const { config, frames } = JSON.parse(document.getElementById("figures").textContent);
const setting = document.getElementById("setting");
const scheme = matchMedia("screen and (prefers-color-scheme: dark)");

/* Figures name their colours; the style sheet says what the names mean in light, dark and print. */
function paint(node, style) {
  if (Array.isArray(node)) return node.map((item) => paint(item, style));
  if (node === null || typeof node !== "object") return node;
  return Object.fromEntries(Object.entries(node).map(([key, value]) => {
    const named = /color$/.test(key) && typeof value === "string";
    return [key, named ? style.getPropertyValue("--" + value).trim() || value : paint(value, style)];
  }));
}

function draw() {
  const style = getComputedStyle(document.documentElement);
  for (const [name, choices] of Object.entries(frames)) {
    const frame = choices.length > 1 ? choices[setting.value] : choices[0];
    const place = document.getElementById("figure-" + name);
    if (!place.data) place.replaceChildren();
    if (frame) Plotly.react(place, { ...paint(frame, style), config });
    else { Plotly.purge(place); place.textContent = "Nothing to draw in this setting."; }
  }
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
scheme.addEventListener("change", draw);
draw();
