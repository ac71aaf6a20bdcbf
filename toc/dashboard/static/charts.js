// Draws each element with data-chart, and again when its data, its width or the theme changes.
// The data: {times: [s], series: [{name, values}], marks: [{at: s, text}], steps, scale: "linear" | "seconds"}.
// The figure has a sample of each line, in the same order, with its colour and its dashes.
"use strict";

const CHART_HEIGHT = 220;
const FEW_VALUES = 3; // as in the first minutes: a line of so few is hard to see, so its points are drawn
const DAY_S = 86_400;
const DASHES = { solid: [], dashed: [8, 4], dotted: [2, 4] };
const drawn = new WeakMap();

function formatSeconds(value) {
  if (value === null || value === undefined) return "-";
  return value < 1 ? `${Number((value * 1000).toPrecision(2))} ms` : `${Number(value.toPrecision(3))} s`;
}

function formatCount(value) {
  if (value === null || value === undefined) return "-";
  return value.toLocaleString(document.documentElement.lang, { maximumFractionDigits: 2 });
}

// Of a long time each value is that of a day.
function makeClocks(times) {
  const format = (options, language = "sv-SE") => {
    const made = new Intl.DateTimeFormat(language, options);
    return (at) => made.format(at * 1000);
  };
  const minute = format({ hour: "2-digit", minute: "2-digit" });
  if (times.at(-1) - times[0] <= DAY_S) return { axis: minute, readout: minute };
  const day = format({ month: "short", day: "numeric" }, document.documentElement.lang);
  return { axis: day, readout: format({ dateStyle: "short", timeStyle: "short" }) };
}

function formatAxis(value) {
  return value.toLocaleString(document.documentElement.lang, { notation: "compact" });
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
  const clocks = makeClocks(chart.times);
  const samples = figure.querySelectorAll(".series");
  // The last step goes on to the last time.
  const lines = chart.series.map(({ values }) => (values.length < chart.times.length ? [...values, values.at(-1)] : values));
  const quiet = getComputedStyle(figure.querySelector("figcaption")).color;
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
    scales: { y: isSeconds ? { distr: 3, range: powersAround } : { range: (_, low, high) => [0, high > 0 ? high * (chart.marks.length ? 1.4 : 1.05) : 1] } },
    axes: [
      { ...line, size: 32, values: (_, times) => times.map(clocks.axis) },
      { ...line, grid: isSeconds ? powers : line.grid, size: 64, values: (_, values) => values.map((value) => (value === null ? "" : (isSeconds ? format : formatAxis)(value))) },
    ],
    series: [
      {},
      ...chart.series.map((each, place) => ({
        label: each.name,
        stroke: getComputedStyle(samples[place]).color,
        dash: DASHES[getComputedStyle(samples[place], "::before").borderTopStyle],
        width: 2,
        points: { show: lines[place].filter((value) => value !== null).length <= FEW_VALUES },
        paths: chart.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
      })),
    ],
    hooks: {
      draw: [(plot) => drawMarks(plot, chart.marks, quiet)],
      setCursor: [(plot) => {
        const at = plot.cursor.idx;
        const shown = at === null || at === undefined ? "" : [
          clocks.readout(chart.times[at]),
          ...chart.series.map((each, place) => `${each.name}: ${format(lines[place][at])}`),
        ].join(" · ");
        readout.textContent = shown;
      }],
    },
  }, [chart.times, ...lines], element);
  element.append(readout);
}

function drawCharts() {
  document.querySelectorAll("[data-chart]").forEach(drawChart);
}

document.addEventListener("htmx:after:swap", drawCharts);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
addEventListener("resize", drawCharts);
drawCharts();
