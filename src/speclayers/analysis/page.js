"use strict";
// Text and lines of the charts are currentColor and CSS variables, so light, dark and print need no redrawing.
const page = JSON.parse(document.getElementById("data").textContent);
const places = [...document.querySelectorAll("[data-figure]")];
const pick = document.getElementById("pick");
const views = new Map(); // a promise for each place that is drawn or being drawn

function draw(place) {
  if (!views.has(place)) views.set(place, drawn(place));
  return views.get(place);
}

async function drawn(place) {
  const name = place.dataset.figure;
  const switches = document.querySelector(`[data-switches="${CSS.escape(name)}"]`);
  try {
    const { view } = await vegaEmbed(place, page.charts[name], {
      ...(switches && { bind: switches }), // beside the picture: no screen reader can reach inside; a form, as radio groups are one form's
      renderer: "svg",
      actions: false,
      ast: true, // expressions are interpreted, never compiled: the page's policy forbids eval
      tooltip: { theme: "page" },
    });
    view.addEventListener("click", (_, item) => pickSet(item?.datum?.set, modelOf(place)));
    await follow(place, view);
    return view;
  } catch (error) {
    place.textContent = `This chart could not be drawn: ${error.message}`;
    return null;
  }
}

// ---------------------------------------------------------------- drawing: what is near the window first, the rest when idle

const near = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => draw(entry.target)),
  { rootMargin: "600px" },
);
places.forEach((place) => near.observe(place));

let busy = false;
async function drawTheRest() {
  if (busy) return;
  busy = true;
  for (let place; (place = places.find((other) => !views.has(other) && other.checkVisibility())); ) {
    await draw(place);
    await new Promise((resume) => setTimeout(resume)); // let the reader scroll
  }
  busy = false;
}
drawTheRest();
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  places.filter((place) => place.checkVisibility()).forEach(draw);
});

// ---------------------------------------------------------------- one model, one set, in all charts and tables

const MANY = 4; // from so many models on, the first is shown alone

function modelOf(place) {
  return place.closest("[data-model]")?.dataset.model;
}

function picked(model) {
  const label = pick.elements.set?.value;
  if (!label) return [];
  const sets = page.sets[label];
  const found = model ? (sets[model] ?? []) : Object.entries(sets).flatMap(([name, own]) => own.map((set) => `${name} ${set}`));
  return found.length ? found : ["none"]; // an empty list would stand for all
}

async function follow(place, view) {
  if (page.charts[place.dataset.figure].params?.some((parameter) => parameter.name === "picked"))
    await view.signal("picked", picked(modelOf(place))).runAsync();
}

function pickSet(set, model) {
  const control = pick.elements.set;
  if (!set || !control) return;
  const label = Object.keys(page.sets).find((name) =>
    model ? page.sets[name][model]?.includes(set) : Object.entries(page.sets[name]).some(([own, sets]) => sets.some((one) => set === `${own} ${one}`)),
  );
  if (!label) return;
  control.value = control.value === label ? "" : label; // a second click lets go
  showPicked();
}

function showModel() {
  const model = pick.elements.model?.value;
  for (const part of document.querySelectorAll("[data-model]")) part.hidden = Boolean(model) && part.dataset.model !== model;
  // what is left without content goes, too
  for (const table of document.querySelectorAll(".table:not([data-model])"))
    table.hidden = [...table.querySelectorAll("tbody tr")].every((row) => row.hidden);
  for (const section of document.querySelectorAll("main > section")) {
    section.hidden = false;
    section.hidden = ![...section.querySelectorAll("figure, .table, section > p, dl")].some((part) => part.checkVisibility());
    document.querySelector(`nav [href="#${section.id}"]`).hidden = section.hidden;
  }
  drawTheRest();
}

function showPicked() {
  for (const row of document.querySelectorAll("tbody tr")) {
    const sets = picked(modelOf(row));
    row.classList.toggle("picked", [...row.cells].some((cell) => sets.includes(cell.textContent)));
  }
  for (const [place, view] of views) view.then((ready) => ready && follow(place, ready));
}

pick.hidden = false;
pick.addEventListener("submit", (event) => event.preventDefault());
pick.elements.set?.addEventListener("change", showPicked);
const models = pick.elements.model;
if (models) {
  models.addEventListener("change", showModel);
  if (models.options.length > MANY) {
    models.selectedIndex = 1;
    showModel();
  }
}

// ---------------------------------------------------------------- downloads

for (const group of document.querySelectorAll(".downloads")) group.hidden = false;
document.addEventListener("click", async (event) => {
  const format = event.target.dataset?.format;
  if (!format) return;
  const place = event.target.closest("figure").querySelector("[data-figure]");
  save(`${place.dataset.figure}.${format}`, format === "csv" ? csvOf(page.charts[place.dataset.figure]) : await pictureOf(place, format));
});

function save(name, address) {
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
}

// as it is shown, on white, with title and caption
async function pictureOf(place, format) {
  const name = place.dataset.figure;
  const view = await draw(place);
  let text = JSON.stringify(page.charts[name]);
  for (const [shown, printed] of Object.entries(page.inks)) text = text.replaceAll(shown, printed);
  const chart = { ...JSON.parse(text), ...page.frames[name] };
  for (const parameter of chart.params ?? []) parameter.value = view.signal(parameter.name);
  const made = await vegaEmbed(document.createElement("div"), chart, { renderer: "none", actions: false, ast: true });
  const address = await made.view.toImageURL(format, 2);
  made.finalize();
  return address;
}

// all rows behind a chart; rows of a part of another table's columns are its marks, and left out
function csvOf(chart) {
  const tables = Object.values(chart.datasets ?? {}).filter((rows) => rows.length);
  const columns = (rows) => Object.keys(rows[0]);
  const whole = tables.filter((rows) => !tables.some((other) => columns(other).length > columns(rows).length && columns(rows).every((name) => columns(other).includes(name))));
  const head = [...new Set(whole.flatMap(columns))].filter((name) => name !== "zero");
  const quoted = (value) => (/[",\n]/.test(value) ? `"${String(value).replaceAll('"', '""')}"` : (value ?? ""));
  const lines = whole.flat().map((row) => head.map((name) => quoted(row[name])).join(","));
  const text = [head.join(","), ...new Set(lines.filter((line) => line.replaceAll(",", "")))].join("\n");
  return URL.createObjectURL(new Blob([`${text}\n`], { type: "text/csv" }));
}
