// Runs before the first paint, so that a chosen theme does not flash the other one.
"use strict";
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("headrace.theme"); } catch { /* storage may be forbidden */ }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
