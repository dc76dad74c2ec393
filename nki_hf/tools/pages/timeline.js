// The timeline: lanes of engines and DMA queues, waits, the critical path, iterations, launch and memory, on one canvas per
// kernel. All of them share one zoom. A column of pixels takes the colours of everything in it by the time each takes, so that
// nothing vanishes for being short, and an idle lane stays empty.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const colour = name => getComputedStyle(root).getPropertyValue(name).trim();
  const FULL = 255, COLUMNS = 9, LEAST = 0.16, STEP_PIXELS = 7;
  const WAITS = { semaphore: "--w-semaphore", dma: "--w-dma", port: "--w-port", memory: "--w-memory", table: "--w-table" };
  const WAIT_WORDS = {
    semaphore: "another engine's result", dma: "a DMA", port: "a shared port", memory: "on-chip memory to be free",
    table: "an activation table", engine: "its own engine", start: "nothing",
  };
  const number = (value, digits = 1) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const us = ns => ns >= 1e6 ? `${number(ns / 1e6, 2)} ms` : ns >= 1000 ? `${number(ns / 1e3, ns < 1e4 ? 2 : 1)} µs` : `${number(ns, 0)} ns`;

  const span = (from, to) => { // two ends with so many digits that they differ by more than their rounding
    const [size, unit] = to >= 1e6 ? [1e6, "ms"] : to >= 1000 ? [1e3, "µs"] : [1, "ns"];
    const digits = Math.min(6, Math.max(size > 1 ? 1 : 0, 2 - Math.floor(Math.log10(Math.max(to - from, 1e-3) / size))));
    return `${number(from / size, digits)} to ${number(to / size, digits)} ${unit}`;
  };

  async function unpacked(timeline) {
    const bytes = Uint8Array.from(atob(timeline.columns), letter => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const all = new Int32Array(await new Response(stream).arrayBuffer());
    const n = all.length / COLUMNS, column = i => all.subarray(i * n, (i + 1) * n);
    const summed = values => { for (let i = 1; i < values.length; i++) values[i] += values[i - 1]; return values; };
    return {
      lane: summed(column(0)), kind: column(1), start: summed(column(2)), length: column(3), reason: column(4), behind: column(5),
      path: column(6), iteration: summed(column(7)), use: column(8), count: n,
    };
  }

  class View {
    constructor(holder, timeline, columns) {
      Object.assign(this, { holder, timeline, columns });
      this.canvas = holder.querySelector("canvas");
      this.tip = holder.querySelector(".tip");
      this.pad = holder.querySelector(".pad"); // lies on the lanes, without the names before them: what the zoom counts from
      this.lanes = timeline.lanes.map(() => ({ from: 0, to: 0 }));
      const { lane, start, length, count } = columns;
      this.latest = new Float64Array(count); // of the entries of a lane up to this one, the latest end
      for (let i = 0; i < count; i++) {
        const row = this.lanes[lane[i]], first = i === 0 || lane[i - 1] !== lane[i];
        if (first) row.from = i;
        row.to = i + 1;
        const end = start[i] + length[i];
        this.latest[i] = first ? end : Math.max(this.latest[i - 1], end);
      }
      this.path = [];
      if (timeline.exact) for (let i = 0; i < count; i++) if (columns.path[i]) this.path.push(i);
      this.path.sort((a, b) => start[a] - start[b]);
      this.iterations = timeline.exact ? this.spans() : [];
      this.marked = null;
    }

    spans() {
      const { lane, start, length, iteration, count } = this.columns, found = new Map();
      for (let i = 0; i < count; i++) {
        const core = this.timeline.lanes[lane[i]].core, key = core * 1e7 + iteration[i];
        const span = found.get(key) || { core, number: iteration[i], from: Infinity, to: 0 };
        span.from = Math.min(span.from, start[i]); span.to = Math.max(span.to, start[i] + length[i]);
        found.set(key, span);
      }
      const all = [...found.values()].sort((a, b) => a.from - b.from);
      return all.length > this.timeline.cores ? all : [];
    }

    resize() {
      this.width = this.holder.clientWidth;
      const narrow = this.width < 560;
      this.gutter = narrow ? 66 : 104;
      this.rows = [];
      let y = 24;
      const many = this.timeline.cores > 1;
      const row = (kind, height, label, more) => { this.rows.push({ kind, y, height, label, ...more }); y += height; };
      for (let core = 0; core < Math.max(this.timeline.cores, 1); core++) {
        if (many) row("head", 16, `core ${core}`, {});
        if (this.iterations.length) row("iterations", 19, "iterations", { core });
        this.timeline.lanes.forEach((lane, index) => { if (lane.core === core) row("lane", 33, lane.name, { index }); });
        this.timeline.memory.forEach(item => {
          if (item.core === core) row("memory", 46, item.space.toUpperCase(), { item });
        });
      }
      if (!this.rows.length) row("empty", 40, "", {}); // no instruction: the launch alone
      this.height = y + 4;
      const ratio = devicePixelRatio || 1;
      this.canvas.width = Math.round(this.width * ratio); this.canvas.height = Math.round(this.height * ratio);
      this.canvas.style.height = `${this.height}px`;
      this.pad.style.left = `${this.gutter}px`;
      this.ratio = ratio;
    }

    // ---- drawing

    draw(from, to) { // in ns
      const tick = this.timeline.tick;
      this.from = from / tick; this.to = to / tick;
      this.scale = (this.width - this.gutter) / (this.to - this.from);
      const pen = this.pen = this.canvas.getContext("2d");
      pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      pen.clearRect(0, 0, this.width, this.height);
      this.inks = {
        ink: colour("--ink"), quiet: colour("--quiet"), line: colour("--line"), soft: colour("--soft"), card: colour("--card"),
        path: colour("--path"), accent: colour("--accent"), words: this.timeline.words.map((_, i) => rgb(colour(`--k${i}`))),
        waits: this.timeline.reasons.map(name => WAITS[name] ? rgb(colour(WAITS[name])) : null),
      };
      pen.font = "12px system-ui,sans-serif"; pen.textBaseline = "middle";
      this.axis(from, to);
      const shown = document.getElementById("show-path").checked;
      for (const row of this.rows) {
        pen.fillStyle = this.inks[row.kind === "head" ? "ink" : "quiet"]; pen.textAlign = "left";
        pen.fillText(row.label, 0, row.y + (row.kind === "lane" ? 14 : row.height / 2), this.gutter - 8);
      }
      pen.save();
      pen.beginPath(); pen.rect(this.gutter, 0, this.width - this.gutter, this.height); pen.clip();
      this.launch();
      for (const row of this.rows) {
        if (row.kind === "lane") this.lane(row, shown);
        if (row.kind === "iterations") this.iterationRow(row);
        if (row.kind === "memory") this.memory(row);
      }
      if (shown) this.pathLine();
      for (const row of this.rows) if (row.kind === "lane") this.names(row);
      this.ending();
      pen.restore();
    }

    x(time) { return this.gutter + (time - this.from) * this.scale; }

    axis(from, to) {
      const pen = this.pen, wanted = Math.max(3, Math.floor((this.width - this.gutter) / 100));
      const rough = (to - from) / wanted, power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= rough);
      pen.textAlign = "center";
      for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
        const x = this.x(time / this.timeline.tick);
        pen.fillStyle = this.inks.line; pen.fillRect(Math.round(x), 17, 1, this.height - 17);
        pen.fillStyle = this.inks.quiet;
        const text = step >= 1000 ? `${number(time / 1e3, 0)}` : number(time / 1e3, step >= 100 ? 1 : step >= 10 ? 2 : 3);
        if (x > this.gutter + 14 && x < this.width - 18) pen.fillText(text, x, 9);
      }
      pen.textAlign = "left"; pen.fillStyle = this.inks.quiet; pen.fillText("µs", 0, 9);
    }

    launch() {
      const pen = this.pen, to = this.x(this.timeline.launch);
      if (to <= this.gutter) return;
      pen.fillStyle = this.inks.soft; pen.fillRect(this.x(0), 19, to - this.x(0), this.height);
      pen.save(); pen.beginPath(); pen.rect(this.x(0), 19, to - this.x(0), this.height); pen.clip();
      pen.strokeStyle = this.inks.line; pen.lineWidth = 1;
      for (let x = this.x(0) - this.height; x < to; x += 9) {
        if (x + this.height < this.gutter) continue;
        pen.beginPath(); pen.moveTo(x, this.height); pen.lineTo(x + this.height, 0); pen.stroke();
      }
      pen.restore();
      if (to - this.gutter > 46) {
        pen.fillStyle = this.inks.quiet; pen.textAlign = "center";
        pen.fillText("launch", (Math.max(this.gutter, this.x(0)) + to) / 2, 34);
      }
    }

    ending() {
      const x = this.x(this.timeline.total);
      this.pen.fillStyle = this.inks.quiet; this.pen.fillRect(Math.round(x) - 1, 17, 1, this.height);
    }

    firstOf(row) { // the first entry of a lane that ends after the left edge
      let low = row.from, high = row.to;
      while (low < high) { const mid = (low + high) >> 1; if (this.latest[mid] > this.from) high = mid; else low = mid + 1; }
      return low;
    }

    lane(row, shown) {
      const { start, length, kind, use, reason, path, count } = this.columns, pen = this.pen, span = this.lanes[row.index];
      const columns = Math.ceil((this.width - this.gutter) * this.ratio), scale = this.scale * this.ratio;
      const bars = new Shades(columns), gaps = new Shades(columns), along = new Shades(columns);
      const grey = rgb(this.inks.line), ink = rgb(this.inks.path), labels = [];
      row.labels = labels;
      for (let i = this.firstOf(span); i < span.to && start[i] < this.to; i++) {
        const [, word, file, line] = this.timeline.kinds[kind[i]];
        const dim = this.marked && (this.marked.line !== line || this.marked.file !== file);
        const a = (start[i] - this.from) * scale, b = (start[i] + length[i] - this.from) * scale;
        bars.add(a, b, dim ? grey : this.inks.words[word], use[i] / FULL);
        if (b - a > 34 * this.ratio && this.timeline.exact) labels.push(i);
        const wait = this.inks.waits[reason[i]];
        if (wait && i > span.from && this.timeline.exact) gaps.add((this.latest[i - 1] - this.from) * scale, a, wait, 1);
        if (path[i]) along.add(a, b, ink, use[i] / FULL);
      }
      bars.paint(pen, this.gutter, row.y + 4, 20, this.ratio);
      if (document.getElementById("show-waits").checked) {
        pen.globalAlpha = this.timeline.lanes[row.index].engine === "dma" ? 0.4 : 1; // a queue that has nothing to move is no loss
        gaps.paint(pen, this.gutter, row.y + 25.5, 3.5, this.ratio);
        pen.globalAlpha = 1;
      }
      if (shown) along.paint(pen, this.gutter, row.y + 0.5, 2.5, this.ratio);
    }

    names(row) { // after the path's line, which would strike them through
      const { start, length, kind } = this.columns, pen = this.pen;
      pen.textAlign = "left"; pen.font = "11px system-ui,sans-serif";
      for (const i of row.labels) {
        const left = Math.max(this.x(start[i]), this.gutter), right = this.x(start[i] + length[i]);
        pen.fillStyle = this.inks.card; pen.fillRect(Math.round(this.x(start[i])), row.y + 4, 1, 20);
        const [name, word] = this.timeline.kinds[kind[i]];
        if (right - left < 34) continue;
        pen.save(); pen.beginPath(); pen.rect(left, row.y, right - left - 3, 27); pen.clip();
        pen.fillStyle = `rgb(${this.inks.words[word]})`; pen.fillRect(left + 2, row.y + 7, pen.measureText(name).width + 4, 14);
        pen.fillStyle = dark(this.inks.words[word]) ? "#fff" : "#111"; pen.fillText(name, left + 4, row.y + 14.5); pen.restore();
      }
      pen.font = "12px system-ui,sans-serif";
    }

    iterationRow(row) {
      const pen = this.pen, mine = this.iterations.filter(span => span.core === row.core), every = mine.length;
      const wide = (this.timeline.total * this.scale) / Math.max(every, 1);
      pen.textAlign = "center"; pen.font = "10.5px system-ui,sans-serif";
      if (wide < 3) {
        const a = Math.max(this.x(mine[0].from), this.gutter), b = Math.min(this.x(Math.max(...mine.map(s => s.to))), this.width);
        pen.fillStyle = this.inks.soft; pen.fillRect(a, row.y + 2, b - a, 14);
        pen.fillStyle = this.inks.quiet; pen.fillText(`${number(every, 0)} iterations`, (a + b) / 2, row.y + 9.5);
      } else {
        for (const span of mine) {
          const a = this.x(span.from), b = this.x(span.to);
          if (b < this.gutter || a > this.width) continue;
          const third = row.y + 2 + (span.number % 3) * 5;
          pen.fillStyle = this.inks.accent; pen.globalAlpha = span.number % 2 ? 0.8 : 0.4;
          pen.fillRect(a, third, Math.max(b - a - 0.5, 0.5), 4); pen.globalAlpha = 1;
        }
      }
      pen.font = "12px system-ui,sans-serif";
    }

    memory(row) {
      const { time, low, high, capacity } = row.item, pen = this.pen, n = time.length, left = this.gutter;
      const top = Math.max(capacity, ...high), y = level => row.y + row.height - 4 - (level / top) * (row.height - 10);
      const bottom = y(0), end = Math.min(this.width, this.x(this.timeline.total));
      const outline = (values, alpha) => {
        pen.beginPath(); pen.moveTo(left, bottom);
        let first = 0;
        while (first + 1 < n && this.x(time[first + 1]) <= left) first++;
        pen.lineTo(Math.max(left, this.x(time[first])), bottom);
        for (let i = first; i < n && this.x(time[i]) < this.width; i++) {
          const a = Math.max(left, this.x(time[i])), b = i + 1 < n ? Math.min(this.x(time[i + 1]), end) : end;
          let level = values[i];
          if (b - a < 0.5 && values === high) { // several in one column: the most of them
            let j = i + 1;
            while (j < n && this.x(time[j]) < a + 0.5) level = Math.max(level, high[j++]);
            i = j - 1;
          }
          pen.lineTo(a, y(level)); pen.lineTo(Math.max(a, i + 1 < n ? Math.min(this.x(time[i + 1]), end) : end), y(level));
        }
        pen.lineTo(end, bottom); pen.closePath();
        pen.globalAlpha = alpha; pen.fillStyle = this.inks.accent; pen.fill(); pen.globalAlpha = 1;
      };
      outline(high, 0.35);
      if (low !== high) outline(low, 0.25);
      pen.fillStyle = this.inks.quiet; pen.fillRect(left, Math.round(y(capacity)), this.width, 1);
      pen.fillRect(left, Math.round(bottom), this.width, 1);
      pen.textAlign = "right"; pen.font = "11px system-ui,sans-serif";
      const text = `most ${number(Math.max(...high) / 1024, 1)} of ${number(capacity / 1024, 0)} KiB a partition`;
      const size = pen.measureText(text).width;
      pen.fillStyle = this.inks.card; pen.globalAlpha = 0.8; pen.fillRect(this.width - size - 8, row.y + 8, size + 8, 14); pen.globalAlpha = 1;
      pen.fillStyle = this.inks.ink; pen.fillText(text, this.width - 4, row.y + 15.5);
      pen.font = "12px system-ui,sans-serif";
    }

    pathLine() {
      const { start, lane } = this.columns, pen = this.pen;
      let low = 0, high = this.path.length;
      while (low < high) { const mid = (low + high) >> 1; if (start[this.path[mid]] < this.from) low = mid + 1; else high = mid; }
      const first = Math.max(0, low - 1);
      let last = first;
      const most = (this.width - this.gutter) / STEP_PIXELS; // more of them would be a solid block
      while (last < this.path.length && start[this.path[last]] <= this.to) { if (++last - first > most) return; }
      const places = new Map(this.rows.filter(row => row.kind === "lane").map(row => [row.index, row.y + 14]));
      pen.beginPath();
      for (let k = first; k < last; k++) {
        const i = this.path[k], y = places.get(lane[i]), a = this.x(start[i]);
        const b = k + 1 < this.path.length ? this.x(start[this.path[k + 1]]) : this.x(this.timeline.total);
        if (k === first) pen.moveTo(a, y); else pen.lineTo(a, y);
        pen.lineTo(b, y);
      }
      pen.lineJoin = "round";
      pen.strokeStyle = this.inks.card; pen.lineWidth = 4; pen.globalAlpha = 0.55; pen.stroke();
      pen.strokeStyle = this.inks.path; pen.lineWidth = 1.6; pen.globalAlpha = 1; pen.stroke();
    }

    // ---- what is under the pointer

    at(px, py) {
      const row = this.rows.find(item => py >= item.y && py < item.y + item.height);
      if (!row || px < this.gutter) return null;
      const time = this.from + (px - this.gutter) / this.scale, reach = 1.5 / this.scale;
      if (row.kind === "memory") return { row, time };
      if (row.kind === "iterations") {
        const spans = this.iterations.filter(span => span.core === row.core && span.from <= time && time <= span.to);
        return spans.length ? { row, spans } : null;
      }
      if (row.kind !== "lane") return null;
      const { start, length } = this.columns, span = this.lanes[row.index];
      const saved = this.from; this.from = time - reach;
      const first = this.firstOf(span); this.from = saved;
      const found = [];
      for (let i = first; i < span.to && start[i] <= time + reach; i++) {
        if (start[i] + length[i] >= time - reach) found.push(i);
      }
      if (found.length) return { row, found, time };
      return first < span.to && first > span.from ? { row, waits: first, time } : null;
    }

    name(i) {
      const [name, , file, line] = this.timeline.kinds[this.columns.kind[i]];
      return line ? `${name}, ${file.split("/").pop()}:${line}` : name;
    }

    words(hit) {
      const { start, length, reason, behind, path, iteration, use, kind } = this.columns, tick = this.timeline.tick, lines = [];
      if (hit.row.kind === "memory") {
        const { time, high, capacity } = hit.row.item;
        let i = time.findIndex(t => t > hit.time); i = i < 0 ? time.length - 1 : Math.max(0, i - 1);
        return [`${hit.row.label} at ${us(hit.time * tick)}`, `${number(high[i], 0)} of ${number(capacity, 0)} B a partition`];
      }
      if (hit.spans) return hit.spans.slice(0, 3).map(s => `iteration ${s.number + 1}: ${span(s.from * tick, s.to * tick)}`);
      const i = hit.found ? hit.found[0] : hit.waits;
      if (hit.waits !== undefined) {
        const why = this.timeline.reasons[reason[i]];
        const gap = start[i] - this.latest[i - 1];
        lines.push(`${hit.row.label} idle for ${us(gap * tick)}`);
        lines.push(`next: ${this.name(i)}`);
        if (why !== "start") lines.push(`it waits for ${WAIT_WORDS[why]}`);
        if (behind[i]) lines.push(`from ${this.name(i - behind[i])}`);
        return lines;
      }
      if (!this.timeline.exact) {
        return [hit.row.label, ...hit.found.map(j => `${this.name(j)}: ${number(100 * use[j] / FULL, 0)} % of the time`)];
      }
      if (hit.found.length > 2) {
        const counts = new Map();
        for (const j of hit.found) counts.set(this.name(j), (counts.get(this.name(j)) || 0) + 1);
        lines.push(`${number(hit.found.length, 0)} instructions here; zoom in for each`);
        [...counts].sort((a, b) => b[1] - a[1]).slice(0, 4).forEach(([name, n]) => lines.push(`${n} × ${name}`));
        return lines;
      }
      lines.push(this.name(i));
      lines.push(`${us(start[i] * tick)} + ${us(length[i] * tick)}`);
      const why = this.timeline.reasons[reason[i]];
      const gap = i > this.lanes[this.columns.lane[i]].from ? start[i] - this.latest[i - 1] : 0;
      if (gap > 0 && why !== "start") lines.push(`waited ${us(gap * tick)} for ${WAIT_WORDS[why]}`);
      if (behind[i]) lines.push(`after ${this.name(i - behind[i])}`);
      if (this.iterations.length) lines.push(`iteration ${iteration[i] + 1}`);
      if (path[i]) lines.push("on the critical path");
      return lines;
    }

    show(event) {
      this.pointer = event && { x: event.clientX, y: event.clientY };
      if (!event) { this.tip.hidden = true; return null; }
      const box = this.canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
      const hit = this.at(px, py);
      this.tip.hidden = !hit;
      if (!hit) return null;
      const lines = this.words(hit);
      this.tip.replaceChildren(...lines.map((text, n) => {
        const line = document.createElement(n ? "div" : "b"); line.textContent = text; return line;
      }));
      const wide = this.tip.offsetWidth, high = this.tip.offsetHeight;
      this.tip.style.left = `${Math.max(0, Math.min(px + 14, this.width - wide))}px`;
      this.tip.style.top = `${py + 18 + high > this.height ? Math.max(py - high - 10, 0) : py + 18}px`;
      return hit;
    }
  }

  // The colours of a row of pixel columns: each is the mean of what lies in it, by the time that it takes.
  class Shades {
    constructor(count) {
      this.count = count;
      this.sum = new Float32Array(count * 4);
    }

    add(a, b, [red, green, blue], use) {
      if (b <= 0 || a >= this.count) return;
      const first = Math.max(0, Math.floor(a)), last = Math.min(this.count - 1, Math.floor(b)), sum = this.sum;
      for (let x = first; x <= last; x++) {
        const part = (Math.min(b, x + 1) - Math.max(a, x)) * use;
        if (part <= 0 && b - a > 0) continue;
        const weight = Math.max(part, 1e-4), at = 4 * x;
        sum[at] += red * weight; sum[at + 1] += green * weight; sum[at + 2] += blue * weight; sum[at + 3] += weight;
      }
    }

    paint(pen, left, top, height, ratio) {
      const sum = this.sum;
      let begin = 0, style = "";
      for (let x = 0; x <= this.count; x++) {
        let now = "";
        if (x < this.count && sum[4 * x + 3] > 0) {
          const at = 4 * x, weight = sum[at + 3], alpha = Math.min(1, Math.max(LEAST, weight));
          now = `rgba(${Math.round(sum[at] / weight)},${Math.round(sum[at + 1] / weight)},${Math.round(sum[at + 2] / weight)},${alpha.toFixed(2)})`;
        }
        if (now === style) continue;
        if (style) { pen.fillStyle = style; pen.fillRect(left + begin / ratio, top, (x - begin) / ratio, height); }
        begin = x; style = now;
      }
    }
  }

  function rgb(text) {
    const hex = text.replace("#", ""), long = hex.length === 3 ? [...hex].map(c => c + c).join("") : hex;
    return [0, 2, 4].map(n => parseInt(long.slice(n, n + 2), 16));
  }
  const dark = ([red, green, blue]) => red * 0.3 + green * 0.59 + blue * 0.11 < 140;

  // ---- one zoom for all

  async function start() {
    const holders = [...document.querySelectorAll(".timeline")];
    if (typeof DecompressionStream === "undefined") {
      holders.forEach(holder => { holder.querySelector(".failed").hidden = false; });
      return;
    }
    const views = await Promise.all(holders.map(async (holder, n) => new View(holder, data.timelines[n], await unpacked(data.timelines[n]))));
    const most = Math.max(...views.map(view => view.timeline.total * view.timeline.tick));
    let shownFrom = 0, shownTo = most, queued = false, inner = 1;
    const range = document.getElementById("range");
    const draw = () => {
      queued = false;
      views.forEach(view => {
        view.draw(shownFrom, shownTo);
        if (view.pointer) view.show({ clientX: view.pointer.x, clientY: view.pointer.y }); // what lies there now
      });
      range.textContent = span(shownFrom, shownTo);
      root.dataset.drawn = "yes";
    };
    const later = () => { if (!queued) { queued = true; requestAnimationFrame(draw); } };
    const zoom = d3.zoom()
      .filter(event => event.type === "wheel" ? event.ctrlKey || event.metaKey || event.shiftKey : !event.button)
      .on("zoom", event => {
        const t = event.transform;
        shownFrom = Math.max(0, -t.x / t.k / inner * most); shownTo = Math.min(most, (inner - t.x) / t.k / inner * most);
        views.forEach(view => { view.pad.__zoom = t; });
        later();
      });
    const resize = () => {
      views.forEach(view => view.resize());
      inner = Math.max(60, views[0].width - views[0].gutter);
      const least = Math.max(20, ...views.map(view => 20 * view.timeline.tick));
      zoom.extent([[0, 0], [inner, 1]]).translateExtent([[0, -Infinity], [inner, Infinity]]).scaleExtent([1, Math.max(1, most / least)]);
      views.forEach(view => d3.select(view.pad).call(zoom));
      goTo(shownFrom, shownTo);
    };
    const goTo = (from, to) => {
      const k = most / Math.max(to - from, 1e-9);
      d3.select(views[0].pad).call(zoom.transform, d3.zoomIdentity.translate(-from / most * inner * k, 0).scale(k));
    };
    const by = factor => {
      const middle = (shownFrom + shownTo) / 2, half = Math.min((shownTo - shownFrom) * factor, most) / 2;
      const from = Math.max(0, Math.min(middle - half, most - 2 * half));
      goTo(from, from + 2 * half);
    };
    const move = share => {
      const wide = shownTo - shownFrom, from = Math.max(0, Math.min(shownFrom + share * wide, most - wide));
      goTo(from, from + wide);
    };
    const actions = {
      all: () => goTo(0, most), closer: () => by(0.5), wider: () => by(2), left: () => move(-0.5), right: () => move(0.5),
      one: () => {
        const view = views[0], all = view.iterations, span = all[Math.floor(all.length / 2)];
        if (span) goTo(span.from * view.timeline.tick, span.to * view.timeline.tick);
      },
    };
    document.querySelectorAll("[data-do]").forEach(button => {
      if (button.dataset.do === "one" && !views[0].iterations.length) button.hidden = true;
      button.addEventListener("click", () => actions[button.dataset.do]());
    });
    const keys = { ArrowLeft: "left", ArrowRight: "right", "+": "closer", "=": "closer", "-": "wider", 0: "all", a: "left", d: "right", w: "closer", s: "wider" };
    views.forEach(view => {
      view.pad.addEventListener("pointermove", event => view.show(event));
      view.pad.addEventListener("pointerleave", () => view.show(null));
      view.pad.addEventListener("click", event => {
        const hit = view.show(event);
        if (hit && hit.found && view.timeline.exact) reveal(view, view.timeline.kinds[view.columns.kind[hit.found[0]]]);
      });
      view.pad.addEventListener("keydown", event => {
        const name = !event.ctrlKey && !event.metaKey && keys[event.key];
        if (name) { event.preventDefault(); actions[name](); }
      });
      view.pad.addEventListener("wheel", event => {
        if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && !event.shiftKey) { event.preventDefault(); move(event.deltaX / inner); }
      }, { passive: false });
    });
    document.querySelectorAll(".switch").forEach(box => box.addEventListener("change", later));
    addEventListener("themechange", later);
    let width = 0;
    new ResizeObserver(() => {
      if (holders[0].clientWidth !== width) { width = holders[0].clientWidth; resize(); }
    }).observe(holders[0]);

    // ---- the source and the lanes point at each other
    const lines = [...document.querySelectorAll(".source [data-line]")];
    function reveal(view, [, , file, line]) {
      const row = lines.find(item => item.dataset.line === `${file}:${line}`);
      if (!row) return;
      const folded = row.closest("details");
      if (folded) folded.open = true;
      row.scrollIntoView({ block: "center", behavior: "smooth" });
      row.classList.add("told"); setTimeout(() => row.classList.remove("told"), 1800);
    }
    lines.forEach(row => row.addEventListener("click", () => {
      const on = !row.classList.contains("marked");
      lines.forEach(item => item.classList.remove("marked"));
      const cut = row.dataset.line.lastIndexOf(":");
      const marked = on ? { file: row.dataset.line.slice(0, cut), line: Number(row.dataset.line.slice(cut + 1)) } : null;
      row.classList.toggle("marked", on);
      views.forEach(view => { view.marked = marked; });
      later();
    }));
  }
  start();
})();
