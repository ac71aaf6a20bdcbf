// Draws each element with data-chart, and again when its data, its width or the theme changes.
// The data: {times: [s], series: [{name, values, steps}], marks: [{at: s, text}], scale: "linear" | "seconds"}.
"use strict";

const CHART_HEIGHT = 220;
const DASHES = [[], [8, 4], [2, 4]]; // no line is told from another by its colour alone
const drawn = new WeakMap();

function formatSeconds(value) {
  if (value === null || value === undefined) return "-";
  return value < 1 ? `${Number((value * 1000).toPrecision(2))} ms` : `${Number(value.toPrecision(3))} s`;
}

function formatCount(value) {
  if (value === null || value === undefined) return "-";
  return value.toLocaleString(document.documentElement.lang, { maximumFractionDigits: 2 });
}

function colourOf(figure, name) {
  const sample = figure.querySelector(name);
  return getComputedStyle(sample || figure).color;
}

function drawMarks(plot, marks, colour) {
  const { ctx, bbox } = plot;
  const rem = devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour;
  ctx.setLineDash([3 * rem, 3 * rem]);
  ctx.lineWidth = rem;
  ctx.textAlign = "left";
  ctx.font = `${11 * rem}px system-ui, sans-serif`;
  marks.forEach((mark, place) => {
    const x = plot.valToPos(mark.at, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) return;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const width = ctx.measureText(mark.text).width;
    const left = x + width + 4 * rem > bbox.left + bbox.width ? x - width - 4 * rem : x + 4 * rem;
    ctx.fillText(mark.text, left, bbox.top + (12 + 13 * (place % 3)) * rem);
  });
  ctx.restore();
}

// With room above the lines, for the words of marks.
function powersAround(_, low, high) {
  return [10 ** Math.floor(Math.log10(low)), 10 ** (Math.ceil(Math.log10(high)) + 0.7)];
}

function drawChart(element) {
  const known = drawn.get(element);
  const width = element.clientWidth;
  const theme = getComputedStyle(element).color;
  if (!width) return;
  if (known && known.text === element.dataset.chart && known.width === width && known.theme === theme) return;
  const chart = JSON.parse(element.dataset.chart);
  const figure = element.closest("figure");
  const isSeconds = chart.scale === "seconds";
  const format = isSeconds ? formatSeconds : formatCount;
  const clock = new Intl.DateTimeFormat("sv-SE", { hour: "2-digit", minute: "2-digit" });
  const quiet = colourOf(figure, "figcaption");
  const line = { stroke: quiet, grid: { stroke: quiet, width: 0.25 }, ticks: { stroke: quiet, width: 0.25 } };
  // Of a logarithmic scale only the powers of ten have a line.
  const powers = { ...line.grid, filter: (_, values) => values.map((value) => (Number.isInteger(Math.log10(value)) ? value : null)) };
  const hasValues = chart.series.some((each) => each.values.some((value) => value !== null));
  const readout = document.createElement("p");
  readout.className = "readout quiet";
  if (known && known.plot) known.plot.destroy();
  element.replaceChildren();
  const record = { text: element.dataset.chart, width, theme, plot: null };
  drawn.set(element, record);
  if (!hasValues) return;
  record.plot = new uPlot({
    width,
    height: CHART_HEIGHT,
    legend: { show: false },
    cursor: { drag: { x: false, y: false } },
    scales: { y: isSeconds ? { distr: 3, range: powersAround } : { range: (_, low, high) => [0, high > 0 ? high * 1.4 : 1] } },
    axes: [
      { ...line, values: (_, times) => times.map((time) => clock.format(time * 1000)) },
      { ...line, grid: isSeconds ? powers : line.grid, size: 64, values: (_, values) => values.map((value) => (value === null ? "" : format(value))) },
    ],
    series: [
      {},
      ...chart.series.map((each, place) => ({
        label: each.name,
        stroke: colourOf(figure, `.series.s${place + 1}`),
        dash: DASHES[place % DASHES.length],
        width: 2,
        points: { show: false },
        paths: each.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
      })),
    ],
    hooks: {
      draw: [(plot) => drawMarks(plot, chart.marks, quiet)],
      setCursor: [(plot) => {
        const at = plot.cursor.idx;
        const shown = at === null || at === undefined ? "" : [
          clock.format(chart.times[at] * 1000),
          ...chart.series.map((each) => `${each.name}: ${format(each.values[at])}`),
        ].join(" · ");
        readout.textContent = shown;
      }],
    },
  }, [chart.times, ...chart.series.map((each) => each.values)], element);
  element.append(readout);
}

function drawCharts() {
  document.querySelectorAll("[data-chart]").forEach(drawChart);
}

document.addEventListener("htmx:after:swap", drawCharts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
addEventListener("resize", drawCharts);
drawCharts();
