"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const names = Object.keys(figures);
  const paper = document.querySelector(".paper");
  // What is shown as it stands: a name from telemetry is no colour, and numbers need no look.
  const plain = new Set(["x", "y", "z", "text", "hovertext", "name", "ticktext", "tickvals"]);

  // The palette is the style sheet's: on paper always the light one.
  const painter = (source) => {
    const style = getComputedStyle(source);
    const paint = (value) => {
      if (typeof value === "string" && value.startsWith("$")) {
        return style.getPropertyValue("--" + value.slice(1)).trim();
      }
      if (Array.isArray(value)) return value.map(paint);
      if (value && typeof value === "object") {
        return Object.fromEntries(
          Object.entries(value).map(([key, inner]) => [key, plain.has(key) ? inner : paint(inner)]));
      }
      return value;
    };
    return paint;
  };

  const axis = { color: "$muted", gridcolor: "$grid", zerolinecolor: "$rule", linecolor: "$rule", automargin: true };
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: 'system-ui, "DejaVu Sans", sans-serif', size: 13, color: "$ink" },
    margin: { l: 56, r: 32, t: 8, b: 44 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", itemclick: "toggle" },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: "$muted", activecolor: "$ink", orientation: "v" },
    hoverlabel: { bgcolor: "$ground", bordercolor: "$rule", font: { color: "$ink" }, align: "left", namelength: -1 },
  };
  const config = {
    responsive: true, displaylogo: false,
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  };

  // On a phone the legend is a column, which comes on top of the axes, and dates have room for few ticks.
  const phone = matchMedia("(max-width: 600px)");
  const legendRow = 19;
  const fitted = ({ data, layout }, width) => {
    if (width || !phone.matches) return layout;
    const named = [...data, ...(layout.shapes || []).filter((shape) => shape.showlegend)];
    const rows = layout.showlegend ? named.filter((one) => one.showlegend !== false).length : 0;
    const most = data[0].type === "heatmap" ? 2 : 3;
    const axes = Object.entries(layout).filter(([, inner]) => inner && inner.type === "date");
    const few = axes.map(([key, inner]) => [key, { ...inner, nticks: most, tickangle: 0 }]);
    return { ...layout, ...Object.fromEntries(few), height: layout.height + legendRow * rows };
  };

  const drawn = new Set();
  const draw = (id, paint, width) => {
    const figure = figures[id];
    const place = document.getElementById(id);
    const layout = { ...base, ...fitted(figure, width) };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis/.test(key)) layout[key] = { ...axis, ...layout[key] };
    }
    place.style.height = layout.height + "px";
    if (width) layout.width = place.closest(".pair") ? width / 2 - 30 : width;
    Plotly.react(place, paint(figure.data), paint(layout), config);
    drawn.add(id);
    document.documentElement.dataset.drawn = String(drawn.size);
  };
  const drawAll = (source, width) => {
    const paint = painter(source);
    for (const id of names) draw(id, paint, width);
  };

  // What is on the screen at once, the rest one by one: a page of thirty pictures opens as one of three.
  document.documentElement.dataset.drawn = "0";
  const waiting = new Set(names);
  const drawNow = (id) => {
    if (waiting.delete(id)) draw(id, painter(document.documentElement));
  };
  for (const id of names) document.getElementById(id).style.height = fitted(figures[id]).height + "px";
  const places = names.map((id) => [id, document.getElementById(id).getBoundingClientRect()]);
  for (const [id, { top, bottom }] of places) {
    if (bottom > 0 && top < innerHeight) drawNow(id);
  }
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        seen.unobserve(entry.target);
        drawNow(entry.target.id);
      }
    }
  }, { rootMargin: "200px" });
  for (const id of waiting) seen.observe(document.getElementById(id));
  const next = () => {
    const [id] = waiting;
    if (id === undefined) return;
    drawNow(id);
    setTimeout(next);
  };
  requestAnimationFrame(() => setTimeout(next, 50));

  for (const one of [matchMedia("(prefers-color-scheme: dark)"), phone]) {
    one.addEventListener("change", () => { waiting.clear(); drawAll(document.documentElement); });
  }
  addEventListener("beforeprint", () => { waiting.clear(); drawAll(paper, 680); });
  addEventListener("afterprint", () => {
    drawAll(document.documentElement);
    for (const id of names) Plotly.Plots.resize(id);
  });

  // The arrow keys go through the values of a picture, up and down through its curves, as the mouse would.
  const spots = new WeakMap();
  const hovered = (trace) => trace.visible !== "legendonly" && trace.hoverinfo !== "skip" && trace.x && trace.x.length;
  document.addEventListener("keydown", (event) => {
    const place = event.target;
    if (!place.classList || !place.classList.contains("plot") || !drawn.has(place.id)) return;
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (event.key === "Escape") Plotly.Fx.unhover(place);
    if (!step) return;
    event.preventDefault();
    const curves = place.data.map((_, index) => index).filter((index) => hovered(place.data[index]));
    if (!curves.length) return;
    const spot = spots.get(place) || { curve: 0, point: -1 };
    spot.curve = (spot.curve + step[0] + curves.length) % curves.length;
    const trace = place.data[curves[spot.curve]];
    const columns = trace.type === "heatmap" ? trace.z[0].length : trace.x.length;
    const count = trace.type === "heatmap" ? columns * trace.z.length : columns;
    const cell = (at) => [Math.floor(at / columns), at % columns];
    const empty = (at) => trace.type === "heatmap" && trace.z[cell(at)[0]][cell(at)[1]] === null;
    let at = Math.min(count - 1, Math.max(0, spot.point + step[1]));
    while (empty(at) && at + step[1] >= 0 && at + step[1] < count && step[1]) at += step[1];
    spot.point = at;
    spots.set(place, spot);
    if (trace.type === "heatmap") {
      const [row, column] = cell(at);
      const { xaxis, yaxis } = place._fullLayout;
      const middle = (xaxis.d2p(trace.x[column]) + xaxis.d2p(trace.x[column + 1])) / 2;
      Plotly.Fx.hover(place, { xpx: middle, ypx: yaxis.d2p(trace.y[row]) });
    } else {
      Plotly.Fx.hover(place, [{ curveNumber: curves[spot.curve], pointNumber: at }]);
    }
  });
  document.addEventListener("focusout", (event) => {
    if (drawn.has(event.target.id)) Plotly.Fx.unhover(event.target);
  });
})();
