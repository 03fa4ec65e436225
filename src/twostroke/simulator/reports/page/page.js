"use strict";
// Draws the charts of a report with uPlot, from the JSON in the page. Nothing is fetched.
(() => {
  const data = JSON.parse(document.getElementById("chart-data").textContent);
  const root = document.documentElement;
  const PRINT_WIDTH = 640;
  const plots = new Map(); // element -> uPlot

  const colour = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();

  function short(value) {
    const size = Math.abs(value);
    const scaled = (factor, suffix) => Number((value / factor).toPrecision(4)) + suffix;
    return size >= 1e6 ? scaled(1e6, "M") : size >= 1e4 ? scaled(1e3, "k") : scaled(1, "");
  }

  // One table [x, y, low, high] for each line, joined over a common x.
  function columns(chart) {
    return uPlot.join(chart.lines.map((line) => {
      if (line.column === undefined)
        return line.low ? [line.x, line.y, line.low, line.high] : [line.x, line.y];
      const timeline = data.timelines[line.timeline];
      return [timeline.time, timeline[line.column]];
    }));
  }

  function describeLines(chart) {
    const series = [{}], bands = [], indices = [];
    for (const line of chart.lines) {
      const stroke = colour(line.colour);
      indices.push(series.length);
      series.push({
        label: line.name, stroke, width: 1.75, dash: line.dashed ? [6, 4] : undefined,
        points: { show: Boolean(chart.points), size: 6, fill: stroke },
        paths: chart.step ? uPlot.paths.stepped({ align: 1 }) : undefined,
      });
      if (!line.low) continue;
      const edge = { stroke: "transparent", width: 0, points: { show: false } };
      bands.push({ series: [series.length + 1, series.length], fill: stroke + "26" });
      series.push({ ...edge }, { ...edge });
    }
    return { series, bands, indices };
  }

  function describeAxis(label, size) {
    return {
      label, size, stroke: colour("muted"), labelSize: 20, labelGap: 0,
      font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif",
      grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 },
      values: (_, splits) => splits.map((value) => (value == null ? "" : short(value))),
    };
  }

  function linearFromZero(_, low, high) {
    return high > 0 ? uPlot.rangeNum(Math.min(0, low), high, 0.05, true) : [0, 1];
  }

  function fromZeroOrBelow(_, low, high) {
    return [Math.min(0, low), high > low ? high : low + 1];
  }

  function makeLegend(chart, plot, indices) {
    const legend = document.createElement("div");
    legend.className = "legend";
    const moment = document.createElement("output");
    const values = chart.lines.map((line, number) => {
      const key = document.createElement("button");
      key.type = "button";
      key.setAttribute("aria-pressed", "true");
      key.append(swatch(line), line.name, document.createElement("output"));
      key.addEventListener("click", () => {
        const shown = !plot.series[indices[number]].show;
        const count = line.low ? 3 : 1;
        for (let i = 0; i < count; i++) plot.setSeries(indices[number] + i, { show: shown });
        key.setAttribute("aria-pressed", String(shown));
      });
      legend.append(key);
      return key.lastChild;
    });
    legend.append(moment);
    plot.hooks.setCursor = [() => {
      const index = plot.cursor.idx;
      moment.textContent = index == null
        ? "" : `at ${short(plot.data[0][index])} ${chart.x_label.split(",")[0]}`;
      values.forEach((value, number) => {
        const column = plot.data[indices[number]];
        let last = index;
        while (last > 0 && column[last] === undefined) last--; // another line has this x alone
        value.textContent = index != null && column[last] != null ? short(column[last]) : "";
      });
    }];
    return legend;
  }

  function swatch(line) {
    const namespace = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(namespace, "svg");
    const stroke = document.createElementNS(namespace, "path");
    svg.setAttribute("viewBox", "0 0 20 8");
    svg.setAttribute("aria-hidden", "true");
    stroke.setAttribute("d", "M0 4H20");
    stroke.setAttribute("stroke", colour(line.colour));
    stroke.setAttribute("stroke-width", "3");
    if (line.dashed) stroke.setAttribute("stroke-dasharray", "6 3");
    svg.append(stroke);
    return svg;
  }

  function draw(element, width) {
    const chart = data.charts[Number(element.id.slice("chart-".length))];
    const { series, bands, indices } = describeLines(chart);
    plots.get(element)?.destroy();
    element.replaceChildren();
    const plot = new uPlot({
      width, height: 240, series, bands, legend: { show: false },
      cursor: {
        drag: { x: true, y: false }, points: { size: 7 },
        ...(chart.group ? { sync: { key: chart.group, scales: ["x", null] } } : {}),
      },
      scales: {
        x: { time: false, range: fromZeroOrBelow },
        y: chart.log ? { distr: 3, log: 10 } : { range: linearFromZero },
      },
      axes: [
        describeAxis(chart.x_label, 36),
        { ...describeAxis(chart.y_label, 48), space: chart.log ? 20 : 40 },
      ],
    }, columns(chart), element);
    element.setAttribute("role", "group");
    element.setAttribute("aria-label", `${chart.title}: ${chart.y_label} over ${chart.x_label}`);
    element.prepend(makeLegend(chart, plot, indices));
    plots.set(element, plot);
  }

  const elements = [...document.querySelectorAll(".chart")];

  // All that are visible; one in a closed section has no width.
  function drawAll(maxWidth) {
    for (const element of elements) {
      const width = Math.floor(Math.min(element.clientWidth, maxWidth));
      if (width) draw(element, width);
    }
  }

  // Draws a chart when its section is opened, and again when its width changes.
  const sizes = new ResizeObserver((entries) => requestAnimationFrame(() => {
    for (const { target } of entries) {
      const width = Math.floor(target.clientWidth), plot = plots.get(target);
      if (!width || (plot && plot.width === width)) continue;
      if (plot) plot.setSize({ width, height: plot.height });
      else draw(target, width);
    }
  }));
  elements.forEach((element) => sizes.observe(element));

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(Infinity));
  addEventListener("beforeprint", () => {
    root.classList.add("printing");
    drawAll(PRINT_WIDTH);
  });
  addEventListener("afterprint", () => {
    root.classList.remove("printing");
    drawAll(Infinity);
  });
})();
