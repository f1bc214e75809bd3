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
