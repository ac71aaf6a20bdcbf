// Shows times in the reader's zone, and refreshes the page every 5 seconds while its tab is visible.
"use strict";

const REFRESH_MS = 5000;

function showLocalTimes(root) {
  const format = new Intl.DateTimeFormat(document.documentElement.lang, {
    dateStyle: "medium", timeStyle: "medium",
  });
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.valueOf())) continue;
    time.title = at.toISOString().replace("T", " ").replace("Z", " UTC");
    time.textContent = format.format(at);
  }
}

// Buttons of scripts alone are hidden in the HTML.
function showCopyButtons(root) {
  for (const button of root.querySelectorAll("button[data-copy]")) {
    button.hidden = !navigator.clipboard;
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  button.textContent = button.dataset.copied;
});

function isBusy() {
  const focused = document.activeElement;
  const types = focused && focused.closest("input, select, textarea, dialog");
  const open = document.querySelector("main details[open]");  // a refresh would close it
  return Boolean(types) || Boolean(open) || !document.getSelection().isCollapsed;
}

setInterval(() => {
  const main = document.querySelector("main[data-refresh]");
  if (main && document.visibilityState === "visible" && !isBusy()) {
    main.dispatchEvent(new CustomEvent("refresh"));
  }
}, REFRESH_MS);

function prepare() {
  showLocalTimes(document);
  showCopyButtons(document);
}

document.addEventListener("htmx:after:swap", prepare);
prepare();
