// Shows times in the reader's zone, and refreshes the page every 5 seconds while its tab is visible.
"use strict";

const REFRESH_MS = 5000;

function showLocalTimes(root) {
  // In this locale a time is 2026-11-27 06:51:19: as wide in each row, and the same in all languages.
  const format = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium" });
  const toMinute = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "short" });
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (Number.isNaN(at.valueOf())) continue;
    time.title = at.toISOString().replace("T", " ").replace("Z", " UTC");
    time.textContent = (time.className === "minute" ? toMinute : format).format(at);
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

function showZone() {
  const parts = new Intl.DateTimeFormat("en", { timeZoneName: "shortOffset" }).formatToParts(new Date());
  const offset = parts.find((part) => part.type === "timeZoneName").value.replace("GMT", "UTC");
  const zone = document.getElementById("zone");
  zone.textContent = offset;
  zone.title = Intl.DateTimeFormat().resolvedOptions().timeZone;
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

// The page then keeps what it shows (noSwap in base.html); the next refresh that succeeds hides the text again.
function tellAway() {
  document.getElementById("away").hidden = false;
}

function prepare() {
  showLocalTimes(document);
  showCopyButtons(document);
}

document.addEventListener("htmx:response:error", tellAway);
document.addEventListener("htmx:error", tellAway);
document.addEventListener("htmx:after:swap", prepare);
prepare();
showZone();
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
