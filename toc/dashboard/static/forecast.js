// Draws the charts of the page Forecast from the figures in data-chart. The table below has the same figures.
"use strict";

const COLORS = { due: "--text", done: "--good", can: "--warn", "what-if": "--bad", late: "--bad" };
const TYPE_COLORS = ["--link", "--kind1", "--kind2", "--kind3"];

// A custom property may be light-dark(...): only an element has its computed color.
function colorOf(name) {
  const probe = document.createElement("span");
  probe.className = "probe";
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

function seriesOf(line, isStepped) {
  const name = COLORS[line.kind] || TYPE_COLORS[Number(line.kind.slice(4))];
  const isDashed = line.kind === "can" || line.kind === "what-if";
  return {
    label: line.label, stroke: colorOf(name), width: line.kind === "due" ? 2 : 1.5, spanGaps: false,
    dash: isDashed ? [6, 4] : undefined, points: { show: false },
    fill: line.kind === "due" ? colorOf("--fill") : undefined,
    paths: isStepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
  };
}

function drawChart(place, time, edges, { unit, lines }) {
  const day = edges.length > 2 && edges[2] - edges[1] >= 86400;
  const language = document.documentElement.lang;
  const format = day ? new Intl.DateTimeFormat(language, { month: "short", day: "numeric" })
    : new Intl.DateTimeFormat("sv-SE", { hour: "2-digit", minute: "2-digit" });
  const full = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "short" });
  const axis = { stroke: colorOf("--quiet"), grid: { stroke: colorOf("--line"), width: 1 } };
  const number = new Intl.NumberFormat(language, { notation: "compact" });
  // Each line goes on to the end of the last step.
  const data = [edges, ...lines.map(({ values }) => [...values, values[values.length - 1]])];
  new uPlot({
    width: Math.max(280, place.clientWidth), height: 260,
    series: [
      { label: time, value: (_, at) => at == null ? "-" : full.format(new Date(at * 1000)) },
      ...lines.map((line) => seriesOf(line, lines[0].kind === "due")),
    ],
    axes: [
      { ...axis, values: (_, times) => times.map((at) => format.format(new Date(at * 1000))) },
      { ...axis, values: (_, values) => values.map((value) => number.format(value)), size: 60, label: unit, labelSize: 22 },
    ],
    scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.05)] } },
  }, data, place);
}

function drawCharts() {
  const card = document.querySelector("[data-chart]");
  if (!card || typeof uPlot === "undefined") return;
  const { time, edges, charts } = JSON.parse(card.dataset.chart);
  const place = card.querySelector(".plots");
  place.replaceChildren();
  for (const chart of charts) drawChart(place, time, edges, chart);
}

document.addEventListener("htmx:after:swap", drawCharts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
window.addEventListener("resize", drawCharts);
drawCharts();
