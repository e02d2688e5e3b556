// Draws the heat map of the page's data on a canvas. A pixel shows the largest value of the ranks and steps below it.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("heat"), pen = canvas.getContext("2d");
  const tip = document.getElementById("tip"), state = document.getElementById("state");
  const choice = document.getElementById("quantity"), ordering = document.getElementById("order");
  const GUTTER = 92, TOP = 20, MISSING = 65535, LEAST_ROWS = 4, MOST_PITCH = 32;
  const SHEET = 860; // CSS pixels; a page of A4 or Letter shows them a fifth smaller
  // Dark blue to yellow (cividis, Nuñez and others 2018): it can be read without telling red from green.
  const STOPS = [[0, 32, 76], [33, 61, 108], [85, 91, 108], [123, 122, 119], [165, 156, 116], [211, 193, 100], [255, 233, 69]];

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const numbers = (text) => new Int32Array(bytes(text).buffer);
  const rank = numbers(data.rank), replica = numbers(data.replica), stage = numbers(data.stage), host = numbers(data.host);
  const columns = data.columns.length;
  for (const q of data.quantities) q.values = new Uint16Array(bytes(q.values).buffer);

  const colour = (share) => {
    const at = share * (STOPS.length - 1), low = Math.min(Math.floor(at), STOPS.length - 2);
    return STOPS[low].map((value, i) => Math.round(value + (STOPS[low + 1][i] - value) * (at - low)));
  };
  const palette = new Uint32Array(256); // as the bytes of a pixel: little-endian ABGR
  for (let i = 0; i < 256; i++) {
    const [r, g, b] = colour(i / 255);
    palette[i] = 0xff000000 | (b << 16) | (g << 8) | r;
  }

  const orders = {
    replica: Int32Array.from({ length: data.rows }, (_, i) => i),
    stage: Int32Array.from({ length: data.rows }, (_, i) => i).sort((a, b) => stage[a] - stage[b] || a - b),
  };
  let rows = orders.replica, shown = data.quantities[0], marked = null, drawn = false;
  const view = { from: 0, to: data.rows };

  let sheet = null; // the size on paper while the page is printed
  const size = () => sheet ?? { width: canvas.clientWidth, height: canvas.clientHeight };
  const plot = () => ({ width: Math.max(size().width - GUTTER, 1), height: Math.max(size().height - TOP, 1) });
  const paint = (code) => palette[Math.round((255 * code) / Math.max(shown.last - shown.first, 1))];
  // A value is a whole number of its last digit.
  const number = (q, value) => +(value / 10 ** q.decimals).toFixed(Math.max(q.decimals, 0));
  const text = (q, code) => (code === MISSING ? "–" : `${number(q, q.first + code)}${q.unit && " " + q.unit}`);

  function draw() {
    drawn = false;
    const dense = sheet ? 3 : window.devicePixelRatio || 1, { width, height } = plot();
    canvas.width = size().width * dense;
    canvas.height = size().height * dense;
    const wide = Math.max(Math.floor(width * dense), 1), high = Math.max(Math.floor(height * dense), 1);
    const image = pen.createImageData(wide, high), pixels = new Uint32Array(image.data.buffer);
    const values = shown.values, per = (view.to - view.from) / high, worst = new Int32Array(columns);
    let before = -1, until = -1;
    for (let y = 0; y < high; y++) {
      const first = Math.floor(view.from + y * per);
      const last = Math.max(Math.ceil(view.from + (y + 1) * per), first + 1);
      if (first === before && last === until) {
        pixels.copyWithin(y * wide, (y - 1) * wide, y * wide);
        continue;
      }
      before = first; until = last;
      worst.fill(-1);
      for (let row = first; row < Math.min(last, data.rows); row++) {
        const at = rows[row] * columns;
        for (let c = 0; c < columns; c++) {
          const value = values[at + c];
          if (value !== MISSING && value > worst[c]) worst[c] = value;
        }
      }
      const line = y * wide;
      if (columns <= wide) {
        for (let c = 0; c < columns; c++) {
          const from = Math.round((c * wide) / columns), to = Math.round(((c + 1) * wide) / columns);
          const gap = columns * 4 < wide && c + 1 < columns ? 1 : 0;
          pixels.fill(worst[c] < 0 ? 0 : paint(worst[c]), line + from, line + to - gap);
        }
      } else {
        for (let x = 0; x < wide; x++) {
          let value = -1;
          for (let c = Math.floor((x * columns) / wide); c < ((x + 1) * columns) / wide; c++) value = Math.max(value, worst[c]);
          pixels[line + x] = value < 0 ? 0 : paint(value);
        }
      }
    }
    // Through a canvas of its own: what is put into one that is printed does not come onto the paper.
    const map = document.createElement("canvas");
    map.width = wide;
    map.height = high;
    map.getContext("2d").putImageData(image, 0, 0);
    pen.drawImage(map, GUTTER * dense, TOP * dense);
    label(dense, width, height);
    const count = Math.round(view.to - view.from) * data.fold;
    state.textContent = `${count.toLocaleString("en")} of ${(data.rows * data.fold).toLocaleString("en")} ranks in view`
      + (per > 1 ? `, ${Math.ceil(per * data.fold)} to a pixel` : "");
  }

  function label(dense, width, height) {
    const style = getComputedStyle(document.body);
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    pen.font = "11px " + style.fontFamily;
    pen.fillStyle = style.color;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const pitch = height / (view.to - view.from);
    // A rank's row has its number; where rows are too low, the rows of a replica or stage have one at their middle.
    const ofRow = pitch >= 12 ? rank : ordering.value === "stage" ? stage : replica;
    const word = ofRow === rank ? "rank" : ofRow === stage ? "stage" : "replica";
    const groups = [];
    for (let row = 0; row < data.rows; row++) {
      const value = ofRow[rows[row]], last = groups[groups.length - 1];
      if (last && last.value === value) last.to = row + 1; else groups.push({ value, from: row, to: row + 1 });
    }
    const every = Math.max(Math.ceil((16 * groups.length) / (data.rows * pitch)), 1);
    for (let n = 0; n < groups.length; n += every) {
      const y = TOP + ((groups[n].from + groups[n].to) / 2 - view.from) * pitch;
      if (y > TOP + 4 && y < TOP + height - 4) pen.fillText(`${word} ${groups[n].value}`, GUTTER - 6, y);
    }
    pen.textAlign = "center";
    const step = Math.max(Math.ceil((columns * 60) / width), 1);
    for (let c = 0; c < columns; c += step) pen.fillText(`step ${data.columns[c]}`, GUTTER + ((c + 0.5) * width) / columns, TOP / 2);
    if (marked) {
      const top = TOP + (marked.from - view.from) * pitch, bottom = TOP + (marked.to - view.from) * pitch;
      if (bottom > TOP && top < TOP + height) {
        pen.strokeStyle = "#ff4d4d";
        pen.lineWidth = 2;
        pen.strokeRect(GUTTER - 1, Math.max(top, TOP) - 1, width + 1, Math.min(bottom, TOP + height) - Math.max(top, TOP) + 2);
      }
    }
  }

  function redraw() {
    if (!drawn) { drawn = true; requestAnimationFrame(draw); }
  }
  function show(from, to) {
    const span = Math.min(Math.max(to - from, Math.min(LEAST_ROWS, data.rows)), data.rows);
    view.from = Math.min(Math.max((from + to - span) / 2, 0), data.rows - span);
    view.to = view.from + span;
    redraw();
  }
  function zoom(factor, share = 0.5) {
    const span = view.to - view.from, at = view.from + share * span;
    show(at - share * span * factor, at + (1 - share) * span * factor);
  }
  const move = (by) => { const span = view.to - view.from; show(view.from + by * span, view.to + by * span); };

  function choose() {
    shown = data.quantities[choice.selectedIndex];
    document.getElementById("named").textContent = shown.name;
    document.getElementById("low").textContent = text(shown, 0);
    document.getElementById("high").textContent = text(shown, shown.last - shown.first);
    redraw();
  }
  for (const q of data.quantities) choice.add(new Option(q.name));
  canvas.style.maxHeight = `${TOP + Math.max(MOST_PITCH * data.rows, 80)}px`;
  choice.addEventListener("change", choose);
  ordering.addEventListener("change", () => { rows = orders[ordering.value]; marked = null; show(0, data.rows); });
  document.getElementById("in").addEventListener("click", () => zoom(0.5));
  document.getElementById("out").addEventListener("click", () => zoom(2));
  document.getElementById("all").addEventListener("click", () => { marked = null; show(0, data.rows); });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.min(Math.max((event.offsetY - TOP) / plot().height, 0), 1));
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoom(0.125, Math.min(Math.max((event.offsetY - TOP) / plot().height, 0), 1)));
  canvas.addEventListener("keydown", (event) => {
    const acts = { w: () => zoom(0.5), s: () => zoom(2), ArrowUp: () => move(-0.2), ArrowDown: () => move(0.2), 0: () => show(0, data.rows) };
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
  });
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") return;
    held = { y: event.offsetY, from: view.from, to: view.to };
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("moving");
  });
  canvas.addEventListener("pointerup", () => { held = null; canvas.classList.remove("moving"); });
  canvas.addEventListener("pointerleave", () => { tip.style.visibility = "hidden"; });
  canvas.addEventListener("pointermove", (event) => {
    const { width, height } = plot(), span = view.to - view.from;
    if (held) {
      const by = ((held.y - event.offsetY) / height) * span;
      show(held.from + by, held.to + by);
      return;
    }
    const row = Math.floor(view.from + ((event.offsetY - TOP) / height) * span);
    const column = Math.floor(((event.offsetX - GUTTER) / width) * columns);
    if (row < 0 || row >= data.rows || column < 0 || column >= columns) { tip.style.visibility = "hidden"; return; }
    const of = rows[row], named = data.fold > 1 ? `ranks from ${rank[of]} (${data.fold})` : `rank ${rank[of]}`;
    const facts = data.quantities.map((q) => `${q.name}: ${text(q, q.values[of * columns + column])}`);
    tip.textContent = [`${named} · stage ${stage[of]} · replica ${replica[of]}`, `${data.hosts[host[of]]} · step ${data.columns[column]}`, ...facts].join("\n");
    tip.style.visibility = "visible";
    tip.style.left = `${Math.max(Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8), 4)}px`;
    tip.style.top = `${Math.max(Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8), 4)}px`;
  });
  function pointOut(from, to) {
    ordering.value = "replica";
    rows = orders.replica;
    marked = { from, to };
    const spare = Math.max((to - from) * 0.5, 12);
    show(from - spare, to + spare);
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a.place");
    if (link?.dataset.from) pointOut(+link.dataset.from, +link.dataset.to);
  });
  new ResizeObserver(() => { if (!sheet) redraw(); }).observe(canvas);
  // Paper is white and narrow, as for the chart of a report.
  addEventListener("beforeprint", () => {
    sheet = { width: SHEET, height: Math.min(canvas.clientHeight, SHEET / 2.5) };
    document.documentElement.classList.add("sheet"); // the light colours
    draw();
  });
  addEventListener("afterprint", () => {
    sheet = null;
    document.documentElement.classList.remove("sheet");
    draw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  for (const canvas of document.querySelectorAll(".scale")) {
    const scale = canvas.getContext("2d"), bar = scale.createImageData(256, 1), pixels = new Uint32Array(bar.data.buffer);
    pixels.set(palette);
    scale.putImageData(bar, 0, 0);
  }
  choose();
})();
