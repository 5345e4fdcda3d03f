"use strict";
// The map of both spaces: pointing at a text in one shows it in the other. Everything is set as text, never as markup.
(function () {
  const root = document.documentElement;
  window.addEventListener("error", function (event) { root.dataset.error = event.message; });
  const place = document.getElementById("map");
  if (place) draw(place, JSON.parse(document.getElementById("map-data").textContent));
  root.dataset.report = "ready";

  function draw(place, data) {
    const size = 500, edge = 14, names = ["teacher", "student"];
    const caption = document.getElementById("map-text");
    const panels = names.map(function (name) {
      const points = scaled(data[name], size, edge);
      const box = document.createElement("div");
      box.className = "space";
      const title = document.createElement("span");
      title.textContent = name + "’s space";
      const svg = node("svg", { viewBox: "0 0 " + size + " " + size, tabindex: 0, role: "img" });
      svg.setAttribute("aria-label", name + "’s space: " + points.length + " " + data.items + "; arrow keys go through them");
      const dots = points.map(function (point, row) {
        const dot = node("circle", { cx: point[0], cy: point[1], r: 4.5, fill: data.colours[row] });
        svg.appendChild(dot);
        return dot;
      });
      box.append(title, svg);
      place.appendChild(box);
      return { svg: svg, dots: dots, points: points };
    });
    let chosen = -1;
    function choose(row) {
      if (row === chosen || row < 0) return;
      panels.forEach(function (panel) {
        if (chosen >= 0) { panel.dots[chosen].classList.remove("chosen"); panel.dots[chosen].setAttribute("r", 4.5); }
        const dot = panel.dots[row];
        dot.classList.add("chosen");
        dot.setAttribute("r", 8);
        panel.svg.appendChild(dot);
      });
      chosen = row;
      caption.textContent = (data.groups ? data.groups[row] + ": " : "") + data.texts[row];
    }
    panels.forEach(function (panel) {
      panel.svg.addEventListener("pointermove", function (event) {
        const box = panel.svg.getBoundingClientRect();
        const x = (event.clientX - box.left) * size / box.width, y = (event.clientY - box.top) * size / box.height;
        choose(nearest(panel.points, x, y));
      });
      panel.svg.addEventListener("keydown", function (event) {
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        if (!step) return;
        event.preventDefault();
        choose((chosen + step + panel.points.length) % panel.points.length);
      });
    });
    choose(data.texts.length ? 0 : -1);
  }

  function scaled(points, size, edge) {
    const xs = points.map(function (p) { return p[0]; }), ys = points.map(function (p) { return p[1]; });
    const left = Math.min.apply(null, xs), low = Math.min.apply(null, ys);
    const width = Math.max.apply(null, xs) - left, height = Math.max.apply(null, ys) - low;
    const unit = (size - 2 * edge) / (Math.max(width, height) || 1);
    return points.map(function (p) {
      return [size / 2 + (p[0] - left - width / 2) * unit, size / 2 - (p[1] - low - height / 2) * unit];
    });
  }

  function nearest(points, x, y) {
    let best = -1, least = Infinity;
    points.forEach(function (p, row) {
      const far = (p[0] - x) * (p[0] - x) + (p[1] - y) * (p[1] - y);
      if (far < least) { least = far; best = row; }
    });
    return best;
  }

  function node(name, attributes) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.keys(attributes).forEach(function (key) { made.setAttribute(key, attributes[key]); });
    return made;
  }
})();
