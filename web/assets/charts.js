// Charts in SVG. One unit is one pixel of the container, so that the text has the same size at any width.

export const svg = (tag, attributes, text) => {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) {
    node.setAttribute(name, value);
  }
  if (text !== undefined) {
    node.textContent = text;
  }
  return node;
};

// canvas returns an empty drawing as wide as a container. It needs no label if a text beside it says the same.
export function canvas(container, height, label) {
  const width = Math.max(container.clientWidth, 200);
  const name = label ? { role: 'img', 'aria-label': label } : { 'aria-hidden': true };
  const drawing = svg('svg', { viewBox: `0 0 ${width} ${height}`, height, ...name });
  return { drawing, width };
}

// niceCeiling returns the smallest of 1, 2, 5, 10, 20, … that is n or more.
export function niceCeiling(n) {
  const power = 10 ** Math.floor(Math.log10(Math.max(n, 1)));
  return [1, 2, 5, 10].map((m) => m * power).find((m) => m >= n);
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
