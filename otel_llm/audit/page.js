"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const paper = document.querySelector(".paper");

  // The palette is the style sheet's: on paper always the light one.
  const painter = (source) => {
    const style = getComputedStyle(source);
    const paint = (value) => {
      if (typeof value === "string" && value.startsWith("$")) {
        return style.getPropertyValue("--" + value.slice(1)).trim();
      }
      if (Array.isArray(value)) return value.map(paint);
      if (value && typeof value === "object") {
        return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, paint(inner)]));
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
    hoverlabel: { bgcolor: "$ground", bordercolor: "$rule", font: { color: "$ink" }, align: "left" },
  };
  const config = {
    responsive: true, displaylogo: false,
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  };

  const draw = (source, width) => {
    const paint = painter(source);
    for (const [id, figure] of Object.entries(figures)) {
      const layout = { ...base, ...figure.layout };
      for (const key of Object.keys(layout)) {
        if (/^[xy]axis/.test(key)) layout[key] = { ...axis, ...layout[key] };
      }
      if (width) layout.width = width;
      Plotly.react(document.getElementById(id), paint(figure.data), paint(layout), config);
    }
  };

  draw(document.documentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(document.documentElement));
  addEventListener("beforeprint", () => draw(paper, 680));
  addEventListener("afterprint", () => draw(document.documentElement));
  document.documentElement.dataset.drawn = String(Object.keys(figures).length);
})();
