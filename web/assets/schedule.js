// The picture of time on the operators' page: pending orders by deadline, and below them the tasks in Redis by due time.
// Both are on one axis, on which they drift towards the present.

import { canvas, niceCeiling, svg } from './charts.js';
import { duration, number, setText } from './dom.js';

export const maxCounted = 10_000; // the API counts at most this many timeouts of the last hour, the latest ones
const maxPending = 100_000; // the API counts at most this many pending orders

const orMore = (n, most) => `${number(n)}${n < most ? '' : ' or more'}`;

export const pendingText = (pending) => orMore(pending, maxPending);

const sum = (counts) => counts.reduce((a, b) => a + b, 0);

const barHeight = 76; // px, of the highest bar
const lanes = { orders: 100, tasks: 214 }; // the two rows of bars, and the y of their base lines
const height = 262;
const maxEdge = 300; // the API counts at most this many orders that are due before the first bucket, or after the last
const noise = 4; // tasks of a bucket that may be missing in one answer, because the lanes are not read at one instant

const motion = matchMedia('(prefers-reduced-motion: no-preference)');

// missingTasks returns for each bucket how many of its orders have no task. A task may be due earlier than its order,
// whose deadline may have moved, so tasks that are left over count for later buckets. So do the tasks of orders that were
// paid, which stay until they are due: more tasks may be missing than are seen. A task at the edge of a bucket may be in
// the next one, because the two servers have clocks of their own. No task counts as missing in the buckets that have
// begun, or in the last one, or if the tasks are estimated.
export function missingTasks(rows, tasks, begun) {
  const missing = rows.counts.map(() => 0);
  if (tasks === null || tasks.estimated) {
    return missing;
  }
  let spare = Math.max(0, sum(tasks.counts.slice(0, begun)) - sum(rows.counts.slice(0, begun)));
  for (let i = begun; i < rows.counts.length; i++) {
    const balance = tasks.counts[i] - rows.counts[i];
    const late = Math.min(Math.max(balance, 0), missing[i - 1]);
    missing[i - 1] -= late;
    spare += balance - late;
    missing[i] = Math.max(0, -spare);
    spare = Math.max(0, spare);
    if (rows.estimated && missing[i] < rows.counts[i] / 2) {
      missing[i] = 0;
    }
  }
  missing[missing.length - 1] = 0;
  return missing;
}

// Schedule draws the picture into a container, and says the same in a text.
export class Schedule {
  #container;
  #text;
  #seen = new Map(); // the missing tasks of the last answer, by bucket
  #cancelled = null; // orders that the last answer counted
  #shown = null; // what is drawn

  constructor(container, text) {
    this.#container = container;
    this.#text = text;
    window.addEventListener('resize', () => this.#shown && this.#draw());
  }

  // update shows an answer of GET /ops/api/schedule, with the figures of the same time.
  update(schedule, stats) {
    const begun = Math.ceil(-schedule.from_seconds / schedule.bucket_seconds);
    const first = Math.round((Date.parse(schedule.at) / 1000 + schedule.from_seconds) / schedule.bucket_seconds);
    const { rows, tasks } = schedule;
    const found = missingTasks(rows, tasks, begun);
    const missing = found.map((n, i) => (n > noise ? n : Math.min(n, this.#seen.get(first + i) ?? 0)));
    this.#seen = new Map(found.map((n, i) => [first + i, n]));
    const cancelled = stats.lateness.worker.count + stats.lateness.reconciler.count;
    const fell = this.#cancelled === null ? 0 : Math.max(0, cancelled - this.#cancelled);
    this.#cancelled = cancelled;
    this.#shown = { ...schedule, stats, begun, missing, cancelled, fell, readAt: performance.now() };
    this.#draw();
    setText(this.#text, describe(this.#shown));
  }

  #draw() {
    const shown = this.#shown;
    const { drawing, width } = canvas(this.#container, height);
    const window = shown.rows.counts.length * shown.bucket_seconds;
    const now = width / 3;
    const scale = width / window; // px a second
    const x = (seconds) => now + seconds * scale;
    const top = niceCeiling(Math.max(1, ...shown.rows.counts, ...shown.tasks?.counts ?? []));
    const h = (n) => (n > 0 ? Math.max(3, (barHeight * n) / top) : 0);

    const clips = svg('defs', {});
    for (const [id, from, to] of [['past', 0, now], ['future', now, width]]) {
      const clip = svg('clipPath', { id: `schedule-${id}` });
      clip.append(svg('rect', { x: from, y: 0, width: to - from, height }));
      clips.append(clip);
    }
    drawing.append(clips, svg('rect', { class: 'past', x: 0, y: 0, width: now, height: lanes.tasks }));

    // What is drawn drifts for three seconds at most: after that the page has no answer, and does not know.
    const group = (id) => {
      const clipped = svg('g', { 'clip-path': `url(#schedule-${id})` });
      const moving = svg('g', { class: 'moving' });
      clipped.append(moving);
      drawing.append(clipped);
      if (motion.matches) {
        const end = { transform: `translateX(${-3 * scale}px)` };
        moving.animate([{ transform: 'none' }, end], { duration: 3000, fill: 'forwards' }).currentTime = performance.now() - shown.readAt;
      }
      return moving;
    };
    const [past, future] = [group('past'), group('future')];
    // bar draws a bucket on a base line. The bucket of the present is in the past, too, if something in it is overdue.
    const bar = (kind, base, i, n) => {
      if (n === 0) {
        return;
      }
      const rect = () => svg('rect', {
        class: kind, x: (x(shown.from_seconds + i * shown.bucket_seconds) + 0.5).toFixed(1), y: (base - h(n)).toFixed(1),
        width: Math.max(1, shown.bucket_seconds * scale - 1).toFixed(1), height: h(n).toFixed(1),
      });
      if (i >= shown.begun - 1) {
        future.append(rect());
      }
      if (i < shown.begun - 1 || i === shown.begun - 1 && shown.stats.orders.oldest_overdue_seconds > 0) {
        past.append(rect());
      }
    };
    shown.rows.counts.forEach((n, i) => bar('orders', lanes.orders, i, n));
    shown.tasks?.counts.forEach((n, i) => bar('tasks', lanes.tasks, i, n));
    shown.missing.forEach((n, i) => bar('missing', lanes.tasks - h(shown.tasks?.counts[i] ?? 0), i, n));

    const text = (x, y, content, anchor = 'start', name = '') => drawing.append(svg('text', { x, y, 'text-anchor': anchor, class: name }, content));
    const edges = (base, title, before, later) => {
      text(0, base - barHeight - 8, title, 'start', 'title');
      if (before) {
        text(0, base - 6, `← ${before} earlier`);
      }
      if (later) {
        text(width, base - barHeight - 8, `${later} later →`, 'end');
      }
    };
    const { rows, tasks, stats } = shown;
    const all = stats.orders.pending; // counts more orders than rows.later does
    const later = rows.later < maxEdge ? rows.later : Math.max(rows.later, all - rows.before - sum(rows.counts));
    edges(lanes.orders, 'Orders in PostgreSQL', rows.before && orMore(rows.before, maxEdge),
      later && (all < maxPending ? number(later) : `${number(later)} or more`));
    edges(lanes.tasks, `Tasks in Redis${tasks ? '' : ': no answer'}`, tasks?.before && number(tasks.before),
      tasks?.later && number(tasks.later));
    for (const base of Object.values(lanes)) {
      drawing.append(svg('line', { class: 'grid', x1: 0, x2: width, y1: base, y2: base }));
    }
    drawing.append(svg('line', { class: 'now', x1: now, x2: now, y1: 4, y2: lanes.tasks + 6 }));
    const step = shown.bucket_seconds * 10;
    for (const k of width < 500 ? [-2, 0, 2, 4] : [-2, -1, 0, 1, 2, 3, 4]) {
      const label = k === 0 ? 'now' : `${k < 0 ? '−' : '+'}${duration(Math.abs(k) * step)}`;
      text(x(k * step), lanes.tasks + 18, label, k === -2 ? 'start' : k === 4 ? 'end' : 'middle', k === 0 ? 'title' : '');
    }
    text(now, height - 4, `${orMore(shown.cancelled, maxCounted)} cancelled`, 'middle', 'title');
    for (let i = 0; i < Math.min(shown.fell, 6) && motion.matches; i++) {
      const mark = svg('circle', { class: 'falls', cx: now, cy: lanes.tasks + 22, r: 3 });
      mark.style.animationDelay = `${i * 120}ms`;
      drawing.append(mark);
    }
    shown.fell = 0; // a window that is resized draws the picture again
    this.#container.replaceChildren(drawing);
  }
}

// describe returns the text of the picture.
function describe({ rows, tasks, from_seconds: from, bucket_seconds: width, begun, missing, stats, cancelled }) {
  const about = (lane) => (lane.estimated ? 'about ' : '');
  const soon = sum(rows.counts.slice(begun - 1));
  const next = rows.counts.findIndex((n, i) => n > 0 && i >= begun);
  const within = duration(width * (rows.counts.length - begun));
  const first = next < 0 ? '' : `, the first of them in some ${duration(Math.round(from + next * width))}`;
  const parts = [`Due in the next ${within}: ${about(rows)}${count(soon, 'order')}${first}.`];
  if (stats.orders.oldest_overdue_seconds > 1) {
    parts.push(`Orders are overdue, the oldest by ${duration(stats.orders.oldest_overdue_seconds)}.`);
  }
  const lost = sum(missing);
  if (tasks === null) {
    parts.push('Redis does not answer: the reconciler cancels what is overdue.');
  } else if (lost > 0) {
    parts.push(`Redis misses ${about(rows)}${count(lost, 'task')}: the next sweep adds what is missing.`);
  } else if (soon > 0 && !tasks.estimated) {
    parts.push('No task is seen to be missing in Redis.');
  }
  const late = Math.max(stats.lateness.worker.p99_seconds, stats.lateness.reconciler.p99_seconds);
  if (cancelled > 0) {
    parts.push(`Cancelled in the last hour: ${orMore(cancelled, maxCounted)}, 99 % of them at most ${duration(late)} late.`);
  }
  return parts.join(' ');
}

const count = (n, noun) => `${number(n)} ${noun}${n === 1 ? '' : 's'}`;
