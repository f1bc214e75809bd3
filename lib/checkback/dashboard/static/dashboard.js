// The time beside the slider, while it is moved. Without this script the page works all the same.
"use strict";
const slider = document.getElementById("batch");
if (slider) {
  const labels = [...document.querySelectorAll("#times option")].map((option) => option.label);
  slider.addEventListener("input", () => {
    document.getElementById("when").value = slider.value === "0" ? "now" : `${labels[slider.value]} UTC`;
  });
  slider.addEventListener("change", () => {
    slider.form.elements.as_of.value = "";
    slider.form.requestSubmit();
  });
}
// The overview of now, refreshed: not while somebody types or moves the slider, nor where nobody looks.
const shown = document.querySelector("main[data-refresh]");
if (shown) {
  const fields = [...document.querySelectorAll("input")];
  setInterval(() => {
    const typed = fields.some((field) => field.value !== field.defaultValue || field === document.activeElement);
    if (!typed && !document.hidden) location.reload();
  }, 1000 * Number(shown.dataset.refresh));
}
