// Shows times in the reader's zone, and refreshes the page every 5 seconds while its tab is visible.
"use strict";

const REFRESH_MS = 5000;

function showLocalTimes(root) {
  const format = new Intl.DateTimeFormat(document.documentElement.lang, {
    dateStyle: "medium", timeStyle: "medium",
  });
  const toMinute = new Intl.DateTimeFormat(document.documentElement.lang, {
    dateStyle: "medium", timeStyle: "short",
  });
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.valueOf())) continue;
    time.title = at.toISOString().replace("T", " ").replace("Z", " UTC");
    time.textContent = (time.className === "minute" ? toMinute : format).format(at);
  }
}

function isBusy() {
  const focused = document.activeElement;
  const types = focused && focused.closest("input, select, textarea, dialog");
  return Boolean(types) || !document.getSelection().isCollapsed;
}

setInterval(() => {
  const main = document.querySelector("main[data-refresh]");
  if (main && document.visibilityState === "visible" && !isBusy()) {
    main.dispatchEvent(new CustomEvent("refresh"));
  }
}, REFRESH_MS);

document.addEventListener("htmx:after:swap", () => showLocalTimes(document));
showLocalTimes(document);
