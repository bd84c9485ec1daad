// Charts: curves, bars, and 2-D plots.
import { html, useEffect, useRef, useState } from "./vendor/preact.js";

export const COLOURS = ["#2a66d3", "#d9633a", "#2a9d72", "#a04bc0", "#b58900", "#2b93a6", "#b03060", "#6b7280"];
const DARK = ["#7aa7f7", "#ee8d68", "#56c596", "#c98be3", "#d9b53f", "#63c3d3", "#e0719a", "#9aa3af"];
export const isDark = () => document.documentElement.dataset.theme === "dark";
export const colour = (k) => (isDark() ? DARK : COLOURS)[k % COLOURS.length];
const plain = (text) => text;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function useRedraw() {
  const [n, set] = useState(0);
  useEffect(() => {
    const redraw = () => set((k) => k + 1);
    addEventListener("themechange", redraw);
    return () => removeEventListener("themechange", redraw);
  }, []);
  return n;
}

function useWidth(element) {
  const [width, set] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => set(Math.floor(entry.contentRect.width)));
    observer.observe(element.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

/** x: numbers; series: [{name, y, k?, dash?}]; mark: the x of a vertical line. */
export function Chart({ x, series, title, xlabel = "", log = false, height = 220, mark, format = plain }) {
  const element = useRef();
  const width = useWidth(element);
  const redraw = useRedraw();
  useEffect(() => {
    if (!width || !x.length) return undefined;
    const all = series.flatMap((s) => s.y).filter((v) => v > 0);
    const isLog = log && all.length && Math.max(...all) > 8 * Math.min(...all); // a smaller range would leave most of a decade empty
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 }, font: "12px system-ui" };
    const markLine = {
      hooks: {
        draw: (u) => {
          if (mark === undefined) return;
          const at = u.valToPos(mark, "x", true);
          u.ctx.save();
          u.ctx.strokeStyle = css("--ink");
          u.ctx.setLineDash([4, 4]);
          u.ctx.beginPath();
          u.ctx.moveTo(at, u.bbox.top);
          u.ctx.lineTo(at, u.bbox.top + u.bbox.height);
          u.ctx.stroke();
          u.ctx.restore();
        },
      },
    };
    const plot = new uPlot(
      {
        width, height, pxAlign: 0, plugins: [markLine], legend: { show: series.length > 1 || series[0]?.name !== "" }, cursor: { y: false },
        scales: { x: { time: false }, y: { distr: isLog ? 3 : 1 } },
        axes: [{ ...axis, label: xlabel, labelSize: xlabel ? 20 : 0, labelFont: "12px system-ui" }, { ...axis, size: 56 }],
        series: [{ label: xlabel || "x" }, ...series.map((s, k) => ({
          label: s.name, stroke: s.colour || colour(s.k ?? k), width: s.width ?? 1.75, dash: s.dash, spanGaps: true, pxAlign: 0,
          points: { show: s.y.filter((v) => v !== null).length < 12 }, value: (_, v) => (v === null ? "–" : Number(v.toPrecision(4)).toString()),
        }))],
      },
      [x, ...series.map((s) => (isLog ? s.y.map((v) => (v > 0 ? v : null)) : s.y))],
      element.current,
    );
    return () => plot.destroy();
  }, [x, series, width, log, height, mark, redraw]);
  return html`<figure class="chart" role="img" aria-label=${title}>
    <figcaption aria-hidden="true">${format(title)}</figcaption><div ref=${element}></div></figure>`;
}

/** items: [{name, value, note?}] */
export function Bars({ items, title, unit = "", format = plain }) {
  const max = Math.max(1e-12, ...items.map((i) => Math.abs(i.value ?? 0)));
  return html`<figure class="bars" role="img" aria-label="${title}: ${items.map((i) => `${i.name} ${i.value}`).join(", ")}">
    <figcaption aria-hidden="true">${format(title)}</figcaption>
    <div class="barlist ${items.length > 14 ? "many" : ""}">${items.map((i) => html`<div class="barrow">
      <span class="barname">${format(i.name)}</span>
      <span class="barline"><span class=${i.value < 0 ? "minus" : ""} style=${{ width: `${(100 * Math.abs(i.value ?? 0)) / max}%` }}></span></span>
      <span class="barvalue">${i.value === null ? "–" : Number(i.value.toPrecision(3))} ${unit}</span></div>`)}</div></figure>`;
}

/** The limits of x and of y; a single pair applies to both. */
const bothLimits = (limits) => (Array.isArray(limits[0]) ? limits : [limits, limits]);

/** Round numbers between two limits, about n of them. */
function ticks(low, high, n = 6) {
  const raw = (high - low) / n;
  const ten = 10 ** Math.floor(Math.log10(raw));
  const step = ten * [1, 2, 5, 10].find((k) => k * ten >= raw);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, k) => Number(((first + k) * step).toPrecision(10)));
}

/** Paint ticks and column names along the lower and the left edge. */
function paintAxes(c, size, X, Y, [[left, right], [low, high]], [xname, yname]) {
  c.font = "11px system-ui";
  c.fillStyle = c.strokeStyle = css("--soft");
  const write = (text, x, y) => {
    c.lineWidth = 3;
    c.strokeStyle = css("--panel");
    c.strokeText(text, x, y); // an outline, legible over points
    c.fillText(text, x, y);
    c.strokeStyle = css("--soft");
    c.lineWidth = 1;
  };
  c.beginPath();
  for (const v of ticks(left, right)) c.moveTo(X(v), size), c.lineTo(X(v), size - 5);
  for (const v of ticks(low, high)) c.moveTo(0, Y(v)), c.lineTo(5, Y(v));
  c.stroke();
  c.textAlign = "center";
  for (const v of ticks(left, right)) if (X(v) > 30 && X(v) < size - 16) write(String(v), X(v), size - 8);
  c.textAlign = "left";
  for (const v of ticks(low, high)) if (Y(v) > 22 && Y(v) < size - 22) write(String(v), 8, Y(v) + 4);
  write(yname, 8, 13);
  c.textAlign = "right";
  write(xname, size - 6, size - 22);
}

/** Paint a 2-D plot: dots, arrows and paths over a background image; axes: names of columns, which adds ticks. */
export function paint(canvas, scene) {
  const dpr = devicePixelRatio || 1;
  const size = canvas.clientWidth;
  if (!size) return;
  if (canvas.width !== Math.round(size * dpr)) canvas.width = canvas.height = Math.round(size * dpr);
  const c = canvas.getContext("2d");
  const [[left, right], [low, high]] = bothLimits(scene.limits);
  const X = (v) => ((v - left) / (right - left)) * size;
  const Y = (v) => size - ((v - low) / (high - low)) * size;
  c.setTransform(dpr, 0, 0, dpr, 0, 0);
  c.clearRect(0, 0, size, size);
  if (scene.background) {
    c.imageSmoothingEnabled = true;
    c.drawImage(scene.background, 0, 0, size, size);
  }
  c.strokeStyle = css("--line");
  c.lineWidth = 1;
  c.beginPath();
  c.moveTo(X(0), 0); c.lineTo(X(0), size); c.moveTo(0, Y(0)); c.lineTo(size, Y(0));
  c.stroke();
  for (const { from, by, colour: k = 7 } of scene.arrows || []) {
    c.strokeStyle = colour(k);
    c.globalAlpha = 0.75;
    c.beginPath();
    for (let i = 0; i < from.length; i += 2) {
      const [x, y, u, v] = [X(from[i]), Y(from[i + 1]), X(by[i]) - X(0), Y(by[i + 1]) - Y(0)];
      const length = Math.hypot(u, v);
      if (length < 0.5) continue;
      const [a, b] = [u / length, v / length];
      const head = Math.min(4, length / 2);
      c.moveTo(x, y);
      c.lineTo(x + u, y + v);
      c.lineTo(x + u - head * (a - b / 2), y + v - head * (b + a / 2));
      c.moveTo(x + u, y + v);
      c.lineTo(x + u - head * (a + b / 2), y + v - head * (b - a / 2));
    }
    c.stroke();
    c.globalAlpha = 1;
  }
  for (const { points, colour: k = 0, size: s = 1.6, alpha = 0.8 } of scene.dots || []) {
    c.fillStyle = colour(k);
    c.globalAlpha = alpha;
    if (s <= 2.5) for (let i = 0; i + 1 < points.length; i += 2) c.fillRect(X(points[i]) - s / 2, Y(points[i + 1]) - s / 2, s, s);
    else {
      c.beginPath();
      for (let i = 0; i + 1 < points.length; i += 2) {
        c.moveTo(X(points[i]) + s, Y(points[i + 1]));
        c.arc(X(points[i]), Y(points[i + 1]), s, 0, 7);
      }
      c.fill();
    }
    c.globalAlpha = 1;
  }
  for (const { points, colour: k = 1, width = 1.75, alpha = 1, ends = false } of scene.paths || []) {
    c.strokeStyle = c.fillStyle = colour(k);
    c.lineWidth = width;
    c.globalAlpha = alpha;
    c.beginPath();
    for (let i = 0; i + 1 < points.length; i += 2) i ? c.lineTo(X(points[i]), Y(points[i + 1])) : c.moveTo(X(points[0]), Y(points[1]));
    c.stroke();
    if (ends) {
      c.beginPath();
      c.arc(X(points[points.length - 2]), Y(points[points.length - 1]), 4, 0, 7);
      c.fill();
    }
    c.globalAlpha = 1;
    c.lineWidth = 1;
  }
  if (scene.axes) paintAxes(c, size, X, Y, bothLimits(scene.limits), scene.axes);
}

export function Plot2D({ scene, title, click, children, format = plain }) {
  const canvas = useRef();
  const redraw = useRedraw();
  useEffect(() => {
    const repaint = () => canvas.current && paint(canvas.current, scene);
    repaint();
    const observer = new ResizeObserver(repaint);
    observer.observe(canvas.current);
    return () => observer.disconnect();
  }, [scene, redraw]);
  const clicked = (event) => {
    if (!click) return;
    const box = canvas.current.getBoundingClientRect();
    const [[left, right], [low, high]] = bothLimits(scene.limits);
    click([left + ((event.clientX - box.left) / box.width) * (right - left), high - ((event.clientY - box.top) / box.height) * (high - low)]);
  };
  return html`<figure class="plot2d"><figcaption>${format(title)}</figcaption>
    <canvas ref=${canvas} role="img" aria-label=${title || "2-D plot"} onClick=${clicked} class=${click ? "clickable" : ""}></canvas>${children}</figure>`;
}

/** Limits of x and y around nearly all points with a margin; similar ranges share one scale, as in demos/panels.py. */
export function limitsOf(points) {
  const halves = [0, 1].map((k) => {
    const values = Array.from(points).filter((v, i) => i % 2 === k && Number.isFinite(v)).sort((a, b) => a - b);
    const [low, high] = [0.002, 0.998].map((q) => values[Math.round(q * (values.length - 1))] ?? 0);
    return [(low + high) / 2, Math.max((high - low) / 2, 1e-6) * 1.2];
  });
  const [a, b] = halves.map(([, half]) => half);
  const widest = Math.max(a, b);
  return halves.map(([middle, half]) => (widest < 2 * Math.min(a, b) ? [middle - widest, middle + widest] : [middle - half, middle + half]));
}

/** The first two columns of points; a single column is plotted against 0. */
export function firstTwoColumns(points, columns) {
  if (columns === 2) return points;
  return Float32Array.from({ length: (points.length / columns) * 2 }, (_, i) => (i % 2 < columns ? points[(i >> 1) * columns + (i % 2)] : 0));
}

/** The names of the first two columns of a run. */
export const axesOf = (run) => [run.columns?.[0] ?? "", run.columns?.[1] ?? ""];
