// Charts in SVG. One unit is one pixel of the container, so that the text has the same size at any width.

const svg = (tag, attributes, text) => {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, value);
  }
  if (text !== undefined) {
    node.textContent = text;
  }
  return node;
};

function canvas(container, height, label) {
  const width = Math.max(container.clientWidth, 200);
  const drawing = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': label });
  return { drawing, width };
}

// niceCeiling returns the smallest of 1, 2, 5, 10, 20, … that is n or more.
function niceCeiling(n) {
  const power = 10 ** Math.floor(Math.log10(Math.max(n, 1)));
  return [1, 2, 5, 10].map((m) => m * power).find((m) => m >= n);
}

// drawDepth draws one line over time for each name in series. A sample is {at, follows, …} with a value for each of
// the series; null means unknown. at and span are in milliseconds. A line joins a sample to the one before it if
// follows is true. follows is false if samples are missing between the two.
export function drawDepth(container, samples, series, span, label) {
  const [left, bottom, height] = [44, 20, 256];
  const { drawing, width } = canvas(container, height, label);
  const top = niceCeiling(Math.max(1, ...samples.flatMap((s) => series.map((name) => s[name] ?? 0))));
  const end = samples.at(-1)?.at ?? 0;
  const x = (at) => left + (width - left) * (1 - (end - at) / span);
  const y = (n) => 8 + (height - bottom - 8) * (1 - n / top);
  for (const n of [0, top / 2, top]) {
    drawing.append(svg('line', { class: 'grid', x1: left, x2: width, y1: y(n), y2: y(n) }));
    drawing.append(svg('text', { x: left - 8, y: y(n) + 4, 'text-anchor': 'end' }, n.toLocaleString('en-IE')));
  }
  drawing.append(svg('text', { x: left, y: height - 4 }, `${span / 60_000} min ago`));
  drawing.append(svg('text', { x: width, y: height - 4, 'text-anchor': 'end' }, 'now'));
  for (const name of series) {
    const known = (s) => s[name] !== null && end - s.at <= span;
    const joined = (a, b) => known(a) && b.follows;
    const path = samples.map((s, i) => known(s) && `${i > 0 && joined(samples[i - 1], s) ? 'L' : 'M'}${x(s.at).toFixed(1)} ${y(s[name]).toFixed(1)}`);
    drawing.append(svg('path', { class: `line ${name}`, d: path.filter(Boolean).join('') }));
  }
  container.replaceChildren(drawing);
}

// drawHistogram draws a bar for each of rows, {label, worker, reconciler}.
export function drawHistogram(container, rows, label) {
  const [left, right, step] = [72, 52, 18];
  const { drawing, width } = canvas(container, rows.length * step + 4, label);
  const most = Math.max(1, ...rows.map((row) => row.worker + row.reconciler));
  const length = (n) => (n > 0 ? Math.max(2, ((width - left - right) * n) / most) : 0);
  rows.forEach((row, i) => {
    const y = i * step + 2;
    const [worker, reconciler] = [length(row.worker), length(row.reconciler)];
    drawing.append(svg('text', { x: left - 8, y: y + 12, 'text-anchor': 'end' }, row.label));
    drawing.append(svg('line', { class: 'grid', x1: left, x2: left, y1: y - 2, y2: y + step - 2 }));
    drawing.append(svg('rect', { class: 'worker', x: left, y: y + 2, width: worker, height: step - 6 }));
    drawing.append(svg('rect', { class: 'reconciler', x: left + worker, y: y + 2, width: reconciler, height: step - 6 }));
    const count = row.worker + row.reconciler;
    if (count > 0) {
      drawing.append(svg('text', { x: left + worker + reconciler + 6, y: y + 12 }, count.toLocaleString('en-IE')));
    }
  });
  container.replaceChildren(drawing);
}
