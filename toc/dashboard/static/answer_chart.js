// Draws the answer of a query as lines: the columns of numbers over the column of times or numbers.
"use strict";

// In pixels: the labels of large numbers are long.
function widthOfLabels(chart, labels) {
  return Math.max(50, 20 + 7 * Math.max(0, ...(labels || []).map((label) => label.length)));
}

function drawAnswer() {
  const place = document.getElementById("chart");
  const table = document.getElementById("answer");
  if (!place || !table) return;
  const columns = [place.dataset.x, ...place.dataset.series.split(",")].map(Number);
  const isTime = place.dataset.time === "1";
  const points = [];
  for (const row of table.tBodies[0].rows) {
    const values = columns.map((at) => row.cells[at].dataset.value);
    if (values[0] === "") continue;
    points.push(values.map((value) => (value === "" ? null : Number(value))));
  }
  points.sort((one, other) => one[0] - other[0]);
  const text = getComputedStyle(document.body).color;
  const colors = ["#3b82c4", "#c4643b", "#3b9c5f", "#8a5fc4", "#b59a2a", "#c43b7d", "#2a9db5", "#7a7a7a"];
  const axis = { stroke: text, grid: { stroke: "rgba(128,128,128,0.25)" }, ticks: { stroke: "rgba(128,128,128,0.4)" } };
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
  const series = columns.slice(1).map((at, number) => ({
    label: names[at], stroke: colors[number % colors.length], width: 2, points: { show: points.length < 100 },
  }));
  const data = columns.map((_, number) => points.map((point) => point[number]));
  const options = {
    width: Math.max(280, place.clientWidth - 32), height: 280, ms: 1, scales: { x: { time: isTime } },
    axes: [axis, { ...axis, size: widthOfLabels }], series: [{ label: names[columns[0]] }, ...series],
  };
  const chart = new uPlot(options, data, place);
  new ResizeObserver(() => chart.setSize({ width: Math.max(280, place.clientWidth - 32), height: 280 })).observe(place);
}

drawAnswer();
