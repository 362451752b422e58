"use strict";
// Text and lines of the charts are currentColor and CSS variables, so light, dark and print need no redrawing.
const charts = JSON.parse(document.getElementById("charts").textContent);
for (const place of document.querySelectorAll("[data-figure]")) {
  const figure = place.dataset.figure;
  const switches = document.querySelector(`[data-switches="${CSS.escape(figure)}"]`);
  vegaEmbed(place, charts[figure], {
    ...(switches && { bind: switches }), // beside the picture: no screen reader can reach inside; a form, as radio groups are one form's
    renderer: "svg",
    actions: false,
    ast: true, // expressions are interpreted, never compiled: the page's policy forbids eval
    tooltip: { theme: "page" },
  }).catch((error) => {
    place.textContent = `This chart could not be drawn: ${error.message}`;
  });
}
