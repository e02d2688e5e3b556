// Draws the chart of the page's data on a canvas: only what is in view, so that any number of blocks can be zoomed.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("chart");
  const tip = document.getElementById("tip");
  const choice = document.getElementById("step");
  const pen = canvas.getContext("2d");
  const AXIS = 26, TOP = 22, SHARE = 64, LEAST_SPAN = 50;
  const SHEET = 860; // CSS pixels; a page of A4 or Letter shows them a fifth smaller
  const FONT = "px " + getComputedStyle(document.body).fontFamily;
  const NUMBERS = 11 + FONT, WORDS = 12 + FONT;

  // A line is one lane of a row; its blocks are offsets[line] … offsets[line + 1] - 1, in the order of time.
  const starts = new Float64Array(data.length.length), ends = new Float64Array(data.length.length);
  for (let line = 0; line < data.lines.length; line++) {
    let at = 0;
    for (let i = data.offsets[line]; i < data.offsets[line + 1]; i++) {
      starts[i] = at += data.wait[i];
      ends[i] = at += data.length[i];
    }
  }
  const value = (column, i) => column.values[column.codes ? column.codes[i] : 0];
  const whole = {
    from: Math.min(...data.steps.map((s) => s.start)),
    to: Math.max(...data.steps.map((s) => s.end), 1),
  };
  let marked = -1; // the row that a link of a table leads to
  const first = data.steps[data.first];
  const view = { ...(data.steps.length > 1 ? { from: first.start, to: first.end } : whole) };

  pen.font = WORDS;
  const gutter = Math.min(Math.max(...data.rows.map((row) => pen.measureText(row.name).width)) + 14, 260);
  const tops = [];
  let bottom = TOP;
  for (const row of data.rows) {
    tops.push(bottom);
    bottom += data.lane * (row.lanes === 1 ? 1 : 0.6 * row.lanes);
  }
  const lines = data.lines.map(([row, lane]) => {
    const height = ((tops[row + 1] ?? bottom) - tops[row] - data.gap) / data.rows[row].lanes;
    return { row, y: tops[row] + data.gap / 2 + lane * height, h: height - (data.rows[row].lanes > 1 ? 0.5 : 0) };
  });

  let sheet = 0; // the width on paper while the page is printed, else 0
  const width = () => sheet || canvas.clientWidth;
  const plotWidth = () => Math.max(width() - gutter - (data.bubble ? SHARE : 0), 1);
  const x = (time) => gutter + ((time - view.from) / (view.to - view.from)) * plotWidth();
  const time = (px) => view.from + ((px - gutter) / plotWidth()) * (view.to - view.from);

  const unitOf = (ns) => [["s", 1e9], ["ms", 1e6], ["µs", 1e3]].find(([, factor]) => ns >= 2 * factor) ?? ["ns", 1];
  function duration(ns) {
    const [unit, factor] = unitOf(ns);
    return `${+(ns / factor).toPrecision(9)} ${unit}`;
  }

  // The first block of a line that ends after `time`.
  function firstAfter(line, time) {
    let low = data.offsets[line], high = data.offsets[line + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  function drawAxis(ink) {
    const span = view.to - view.from;
    const rough = span / Math.max(plotWidth() / 110, 2);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => power * factor >= rough);
    const [unit, factor] = unitOf(view.to);
    pen.font = NUMBERS;
    pen.textAlign = "center";
    for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
      pen.fillStyle = ink.grid;
      pen.fillRect(x(at), TOP, 1, bottom - TOP + 5);
      pen.fillStyle = ink.quiet;
      pen.fillText(`${+(at / factor).toPrecision(9)} ${unit}`, x(at), bottom + 18);
    }
  }

  // The longest label of each colour, and the lengths of its blocks, sorted.
  const longest = new Map(), lengths = new Map();
  for (let i = 0; i < ends.length; i++) {
    const fill = value(data.fill, i), label = value(data.label, i) ?? "";
    if (!label) continue;
    if (label.length > (longest.get(fill) ?? "").length) longest.set(fill, label);
    if (!lengths.has(fill)) lengths.set(fill, []);
    lengths.get(fill).push(ends[i] - starts[i]);
  }
  for (const [fill, all] of lengths) lengths.set(fill, Float64Array.from(all).sort());

  // From which width on blocks of a colour have their labels, as `_gap_near` in svg.py: where the longest has room, or in
  // the nearest gap between their widths, so that blocks of about one width have all their labels, or none.
  function leastLabelled(fill) {
    const room = pen.measureText(longest.get(fill)).width + 2;
    const scale = plotWidth() / (view.to - view.from);
    const all = lengths.get(fill);
    let low = 0, high = all.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (all[middle] * scale > 0.9 * room) high = middle; else low = middle + 1;
    }
    let best = room, nearest = room;
    for (let i = low, below = low ? all[low - 1] * scale : 0; below < 1.6 * room; i++) {
      const above = i < all.length ? all[i] * scale : Infinity;
      const distance = Math.max((below - room) / 0.6, (room - above) / 0.1, 0);
      if (above >= 1.1 * below && distance < nearest) [nearest, best] = [distance, 0.999 * above]; // widths are rounded
      below = above;
    }
    return best;
  }

  function drawLine(line) {
    const { y, h } = lines[line];
    pen.font = NUMBERS;
    pen.textAlign = "center";
    const least = new Map();
    let drawnTo = -1;
    for (let i = firstAfter(line, view.from); i < data.offsets[line + 1] && starts[i] < view.to; i++) {
      const left = x(starts[i]), right = x(ends[i]);
      if (right < drawnTo + 0.25) continue; // all within a pixel that has its colour
      const width = right - left;
      pen.fillStyle = value(data.fill, i);
      pen.fillRect(left, y, Math.max(width - Math.min(0.15 * width, 1), 0.5), h);
      const mark = value(data.mark, i);
      if (mark) {
        pen.fillStyle = mark;
        pen.fillRect(left, y + (5 * h) / 6, Math.max(width - Math.min(0.15 * width, 1), 0.5), h / 6);
      }
      drawnTo = right;
      // A block that is cut by the edge has its number in the part that is seen.
      const seen = Math.min(right, gutter + plotWidth()) - Math.max(left, gutter);
      const label = value(data.label, i), fill = value(data.fill, i);
      if (!label || seen <= 8 || h < 10) continue;
      if (!least.has(fill)) least.set(fill, leastLabelled(fill));
      if (seen >= least.get(fill)) {
        pen.fillStyle = data.text;
        pen.fillText(label, Math.max(left, gutter) + seen / 2, y + h / 2 + 4);
      }
    }
  }

  function drawRows(ink) {
    const middle = (view.from + view.to) / 2;
    const distance = (step) => Math.max(step.start - middle, middle - step.end, 0);
    const step = data.steps.reduce((best, other) => (distance(other) < distance(best) ? other : best));
    pen.font = WORDS;
    data.rows.forEach((row, index) => {
      if (index % data.every) return;
      const y = (tops[index] + (tops[index + 1] ?? bottom)) / 2 + 4;
      pen.fillStyle = ink.text;
      pen.textAlign = "right";
      pen.font = index === marked || row.mark ? `bold ${WORDS}` : WORDS;
      if (row.mark) {
        pen.fillStyle = ink.edge;
        pen.fillRect(gutter - 5, tops[index] + data.gap / 2, 4, (tops[index + 1] ?? bottom) - tops[index] - data.gap);
        pen.fillStyle = ink.text;
      }
      pen.fillText(row.name, gutter - 8, y, gutter - 8);
      const share = step.shares[index];
      if (share !== null) pen.fillText(`${(100 * share).toFixed(1)}%`, width() - 4, y);
    });
    pen.fillStyle = ink.quiet;
    pen.font = NUMBERS;
    if (data.bubble) pen.fillText("bubble", width() - 4, TOP - 8);
    pen.textAlign = "center";
    for (const { name, start, end } of data.steps) {
      const left = Math.max(x(start), gutter), right = Math.min(x(end), gutter + plotWidth());
      if (right - left > pen.measureText(name).width) pen.fillText(name, (left + right) / 2, TOP - 8);
      if (x(start) >= gutter && x(start) <= gutter + plotWidth()) pen.fillRect(x(start), TOP - 18, 1, bottom - TOP + 18);
    }
  }

  function draw() {
    const ratio = Math.min(sheet ? 3 : window.devicePixelRatio || 1, 32000 / (bottom + AXIS)); // browsers draw no taller canvas
    canvas.style.height = `${bottom + AXIS}px`;
    canvas.width = Math.round(width() * ratio);
    canvas.height = Math.round((bottom + AXIS) * ratio);
    canvas.dataset.from = view.from;
    canvas.dataset.to = view.to;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(document.documentElement);
    const ink = Object.fromEntries(["paper", "text", "quiet", "idle", "grid", "mark", "edge", "other"].map((n) => [n, style.getPropertyValue(`--${n}`)]));
    drawAxis(ink);
    pen.save();
    pen.beginPath();
    pen.rect(gutter, TOP, plotWidth(), bottom - TOP);
    pen.clip();
    data.rows.forEach((_, row) => {
      pen.fillStyle = data.rows[row].mark ? ink.mark : data.rows[row].other ? ink.other : ink.idle;
      pen.fillRect(gutter, tops[row] + data.gap / 2, plotWidth(), (tops[row + 1] ?? bottom) - tops[row] - data.gap);
    });
    if (data.pause) {
      for (const step of data.steps) {
        const from = Math.max(x(step.worked), gutter);
        pen.fillStyle = ink.mark;
        pen.fillRect(from, TOP, x(step.end) - from, bottom - TOP);
      }
    }
    lines.forEach((_, line) => drawLine(line));
    pen.restore();
    if (marked >= 0) {
      pen.strokeStyle = ink.text;
      pen.strokeRect(gutter + 0.5, tops[marked] + 0.5, plotWidth() - 1, (tops[marked + 1] ?? bottom) - tops[marked] - 1);
    }
    drawRows(ink);
  }

  let waiting = false;
  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }

  function show(from, to) {
    const span = Math.min(Math.max(to - from, LEAST_SPAN), whole.to - whole.from);
    const start = Math.min(Math.max(from, whole.from), whole.to - span);
    Object.assign(view, { from: start, to: start + span });
    tip.style.visibility = "hidden";
    redraw();
  }
  function zoom(factor, px = gutter + plotWidth() / 2) {
    const centre = time(px);
    show(centre - (centre - view.from) * factor, centre + (view.to - centre) * factor);
  }
  const move = (share) => show(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));

  function blockAt(px, py) {
    if (px < gutter || px > gutter + plotWidth()) return -1;
    const line = lines.findIndex(({ y, h }) => py >= y && py <= y + h);
    if (line < 0) return -1;
    const i = firstAfter(line, time(px));
    return i < data.offsets[line + 1] && starts[i] <= time(px) ? i : -1;
  }
  function explain(event) {
    const i = blockAt(event.offsetX, event.offsetY);
    tip.style.visibility = i < 0 ? "hidden" : "visible";
    if (i < 0) return;
    const facts = Object.entries(data.facts).map(([name, column]) => [name, value(column, i)]);
    tip.textContent = [
      `${value(data.name, i)} · ${duration(ends[i] - starts[i])}`,
      `starts at ${duration(starts[i])}`,
      ...facts.filter(([, fact]) => fact !== null && fact !== "").map(([name, fact]) => `${name.replaceAll("_", " ")}: ${fact}`),
    ].join("\n");
    tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8)}px`;
  }

  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(Math.sign(event.deltaY) * 0.2), event.offsetX);
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((event.deltaX || event.deltaY) / 1000);
    else return; // the page scrolls
    event.preventDefault();
  }, { passive: false });

  const fingers = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, event.offsetX);
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("moving");
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = [...fingers.values()];
    if (!fingers.has(event.pointerId)) return explain(event);
    fingers.set(event.pointerId, event.offsetX);
    const after = [...fingers.values()];
    if (after.length === 1) return move((before[0] - after[0]) / plotWidth());
    const apart = (pair) => Math.max(Math.abs(pair[0] - pair[1]), 8);
    zoom(apart(before) / apart(after), (after[0] + after[1]) / 2);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, (event) => {
      fingers.delete(event.pointerId);
      canvas.classList.toggle("moving", fingers.size > 0);
    });
  }
  canvas.addEventListener("pointerleave", () => { tip.style.visibility = "hidden"; });
  canvas.addEventListener("dblclick", () => show(whole.from, whole.to));

  const keys = {
    w: () => zoom(0.7), s: () => zoom(1 / 0.7), a: () => move(-0.15), d: () => move(0.15),
    "+": () => zoom(0.7), "-": () => zoom(1 / 0.7), ArrowLeft: () => move(-0.15), ArrowRight: () => move(0.15),
    0: () => show(whole.from, whole.to),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target === choice || !(event.key in keys)) return;
    keys[event.key]();
    event.preventDefault();
  });

  document.querySelectorAll("a.place").forEach((link) => link.addEventListener("click", (event) => {
    event.preventDefault();
    marked = Number(link.dataset.row ?? -1);
    const step = data.steps[link.dataset.step ?? choice.selectedIndex] ?? data.steps[0];
    choice.value = step.name;
    show(step.start, step.end);
    const top = canvas.getBoundingClientRect().top + scrollY + (tops[marked] ?? 0);
    scrollTo({ top: top - innerHeight / 3 });
    canvas.focus({ preventScroll: true });
  }));
  // Paper is white and narrow: drawn as wide as the window, the chart would be too small to read.
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((folded) => { folded.open = true; });
    sheet = SHEET;
    document.documentElement.classList.add("sheet"); // the light colours
    draw();
  });
  addEventListener("afterprint", () => {
    sheet = 0;
    document.documentElement.classList.remove("sheet");
    draw();
  });

  const all = data.steps.length > 1 ? [{ name: "all steps", start: whole.from, end: whole.to }] : [];
  [...data.steps, ...all].forEach(({ name, start, end }) => {
    const option = new Option(name);
    option.addEventListener("show", () => show(start, end));
    choice.add(option);
  });
  choice.selectedIndex = data.first;
  choice.addEventListener("change", () => choice.selectedOptions[0].dispatchEvent(new Event("show")));
  document.getElementById("in").addEventListener("click", () => zoom(0.5));
  document.getElementById("out").addEventListener("click", () => zoom(2));
  new ResizeObserver(() => {
    if (!sheet && !matchMedia("print").matches) redraw();
  }).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  draw();
})();
