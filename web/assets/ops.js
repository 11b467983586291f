// The operators' page.

import { request } from './api.js';
import { drawDepth, drawHistogram } from './charts.js';
import { duration, element, Message, moment, number, setText, sleep } from './dom.js';

const byId = (id) => document.getElementById(id);
const messages = byId('messages');
const actionError = new Message(messages);
const connection = byId('connection');

/* ---- the operators' token ---- */

// takeTokenFromLink stores the token of the demo's link. The link has it in its fragment, which browsers do not send to
// the server.
function takeTokenFromLink() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  if (fragment.has('token')) {
    sessionStorage.setItem('ops token', fragment.get('token'));
    history.replaceState(null, '', location.pathname);
  }
}

const ops = (method, path, seconds) =>
  request(method, `/ops/api${path}`, { seconds, headers: { Authorization: `Bearer ${sessionStorage.getItem('ops token')}` } });

function askForToken(reason) {
  byId('dashboard').hidden = true;
  byId('sign-in').hidden = false;
  byId('token').focus();
  showConnection('connecting', 'Not signed in');
  if (reason) {
    actionError.show(reason);
  }
}

byId('sign-in').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem('ops token', byId('token').value);
  byId('token').value = '';
  actionError.clear();
  poll();
});

/* ---- figures ---- */

function showConnection(state, text) {
  connection.dataset.state = state;
  setText(connection, text);
}

let polling = false;
let refreshedAt = 0;
let unbroken = false; // no poll has failed since the last sample

// poll requests and shows the figures every second while the page is visible. If the service needs longer to gather
// them, poll requests them less often, so that the service spends at most a quarter of its time on them.
async function poll() {
  if (polling) {
    return;
  }
  polling = true;
  unbroken = false;
  while (!document.hidden) {
    const began = performance.now();
    try {
      const [stats, faults] = await Promise.all([ops('GET', '/stats'), activeFaults()]);
      await render(stats, faults);
      refreshedAt = Date.now();
      unbroken = true;
      byId('dashboard').classList.remove('stale');
      showConnection('live', 'Live');
    } catch (failure) {
      if (failure.status === 401) {
        sessionStorage.removeItem('ops token');
        askForToken(failure.message);
        break;
      }
      unbroken = false;
      byId('dashboard').classList.add('stale');
      showConnection('failing', `${refreshedAt ? `As of ${moment(refreshedAt)}` : 'Not connected yet'}: ${failure.message}`);
    }
    await sleep(Math.max(1000, 3 * (performance.now() - began)));
  }
  polling = false;
}

let servesFaults = true; // false after the service has answered 404

// activeFaults returns the faults that are active, or null if the service is not the demo. Only the demo serves them.
async function activeFaults() {
  if (!servesFaults) {
    return null;
  }
  try {
    return await ops('GET', '/faults');
  } catch (failure) {
    if (failure.status !== 404) {
      throw failure;
    }
    servesFaults = false;
    return null;
  }
}

// start polls if the page has a token. Otherwise it asks for one.
function start() {
  takeTokenFromLink();
  if (sessionStorage.getItem('ops token')) {
    poll();
  } else {
    askForToken();
  }
}

document.addEventListener('visibilitychange', () => !document.hidden && start());
window.addEventListener('hashchange', start);

let latest = null;

function render(stats, faults) {
  latest = stats;
  const signedIn = byId('sign-in').contains(document.activeElement);
  byId('sign-in').hidden = true;
  byId('dashboard').hidden = false;
  if (signedIn) {
    byId('main').focus({ preventScroll: true });
  }
  renderInvariants(stats.violations);
  renderPicture(stats, faults);
  addSample(stats);
  renderCharts();
  renderSweep(stats.last_sweep);
  renderFaults(faults);
  return renderDead(stats.queue?.dead);
}

const invariants = [
  'The supply of each product equals its available stock plus the quantities of its pending and paid orders.',
  'No order is both paid and cancelled, and each order ends at most once.',
  'No order stays pending past its deadline for longer than the stated bound.',
  'No payment is accepted at or after the deadline, and no order times out before it.',
];

function renderInvariants(violations) {
  const list = byId('invariants');
  invariants.forEach((invariant, i) => {
    const broken = violations?.filter((violation) => violation.invariant === i + 1) ?? [];
    const [state, mark, detail] = violations === null
      ? ['unknown', '?', 'Not checked: there are too many orders to check within a second. To check them, run shop doctor.']
      : broken.length > 0
        ? ['broken', '✗', `Broken: ${broken.slice(0, 3).map((v) => `${v.subject}: ${v.detail}`).join('; ')}${broken.length > 3 ? ` and ${broken.length - 3} more` : ''}`]
        : ['holds', '✓', 'Holds'];
    if (!list.children[i]) {
      list.append(element('li', {}, element('span', { className: 'mark', 'aria-hidden': 'true' }),
        element('div', {}, element('p', {}, invariant), element('p', { className: 'detail' }))));
    }
    const row = list.children[i];
    row.className = state;
    setText(row.querySelector('.mark'), mark);
    setText(row.querySelector('.detail'), detail);
  });
}

const maxCounted = 10_000; // the API counts at most this many timeouts of the last hour, the latest ones

function renderPicture({ redis, queue, orders, outbox, lateness, last_sweep: sweep }, faults) {
  const stat = (name, value, wrong = false) => {
    const node = document.querySelector(`[data-stat="${name}"]`);
    setText(node, value);
    node.classList.toggle('wrong', wrong);
  };
  stat('pending', number(orders.pending));
  stat('overdue', orders.oldest_overdue_seconds > 0 ? duration(orders.oldest_overdue_seconds) : 'none', orders.oldest_overdue_seconds > 1);
  stat('outbox', number(outbox.backlog), outbox.oldest_seconds > 5);
  for (const state of ['scheduled', 'due', 'leased', 'dead']) {
    stat(state, queue ? number(queue[state]) : '–', state === 'dead' && queue?.dead > 0);
  }
  const counted = lateness.worker.count + lateness.reconciler.count;
  const countText = (n) => (counted < maxCounted ? number(n) : `${number(n)} of the last ${number(counted)}`);
  stat('by-worker', countText(lateness.worker.count));
  stat('by-reconciler', countText(lateness.reconciler.count));
  stat('swept', sweep ? moment(sweep.started_at) : '–');
  setText(byId('redis-state'), redis === 'up' ? '' : 'down');
  byId('redis-node').classList.toggle('broken', redis !== 'up');
  setText(byId('worker-state'), faults?.worker_paused ? 'paused' : '');
}

const span = 2 * 60_000;
const samples = [];

function addSample({ queue, orders, outbox }) {
  const inRedis = queue ? queue.scheduled + queue.due + queue.leased : null;
  samples.push({ at: performance.now(), follows: unbroken, pending: orders.pending, scheduled: inRedis, outbox: outbox.backlog });
  while (samples[0].at < performance.now() - span) {
    samples.shift();
  }
}

function renderCharts() {
  const { pending, scheduled, outbox } = samples.at(-1);
  drawDepth(byId('depth'), samples, ['pending', 'scheduled', 'outbox'], span,
    `Now: ${number(pending)} orders are pending. ${scheduled === null ? 'Redis is down' : `Redis holds ${number(scheduled)} tasks`}. The outbox holds ${number(outbox)} messages.`);
  renderLateness(latest.lateness);
}

window.addEventListener('resize', () => latest && renderCharts());

function renderLateness({ worker, reconciler, histogram }) {
  const rows = histogram.map(({ below_seconds: below, ...counts }, i) => ({
    label: below === null ? `≥ ${duration(histogram[i - 1].below_seconds)}` : `< ${duration(below)}`,
    ...counts,
  }));
  const describe = (actor, p) => `${actor} cancelled ${number(p.count)}: median ${duration(p.p50_seconds)}, p99 ${duration(p.p99_seconds)}, maximum ${duration(p.max_seconds)}`;
  const figures = [
    worker.count > 0 && describe('Workers', worker),
    reconciler.count > 0 && describe('The reconciler', reconciler),
  ].filter(Boolean);
  setText(byId('percentiles'), figures.length > 0 ? `${figures.join('. ')}.` : 'No order has timed out in the last hour.');
  drawHistogram(byId('lateness'), rows, 'Number of orders by the time from their deadline to their cancellation');
}

let lastSweep = '';

function renderSweep(sweep) {
  if (!sweep || sweep.started_at === lastSweep) {
    return;
  }
  const outcome = { ok: 'ok', partial: 'some overdue orders remain', degraded: 'Redis was not usable', failed: 'failed' }[sweep.outcome];
  setText(byId('sweep-summary'), `At ${moment(sweep.started_at)}, ${sweep.full ? 'all pending orders' : 'orders due soon'}, in ${duration(sweep.took_seconds)}: ${outcome}${sweep.error ? `: ${sweep.error}` : ''}.`);
  byId('sweep').replaceChildren(...['examined', 'missing', 'late', 'orphaned', 'overdue', 'set_aside', 'locked', 'failed', 'dead'].map((name) =>
    element('div', {}, element('dt', {}, name.replace('_', ' ')), element('dd', {}, number(sweep[name])))));
  if (lastSweep !== '') {
    for (const [name, repair] of [
      ['missing', 'tasks that Redis had lost are added again'],
      ['late', 'tasks that were scheduled too late are moved to their deadlines'],
      ['overdue', 'overdue orders are cancelled directly'],
      ['failed', 'overdue orders cannot be cancelled'],
    ]) {
      if (sweep[name] > 0) {
        log(`The reconciler: ${number(sweep[name])} ${repair}, in ${duration(sweep.took_seconds)}.`);
      }
    }
  }
  lastSweep = sweep.started_at;
}

let shownLetters = '';

// renderDead shows the latest dead letters. It keeps the list unless the letters have changed, because the operator may
// be about to press one of its buttons.
async function renderDead(count) {
  if (count === undefined) {
    setText(byId('dead-hint'), 'Unknown: Redis, which stores them, is down.');
    return;
  }
  const { items } = count > 0 ? await ops('GET', '/dead-letters') : { items: [] };
  setText(byId('dead-hint'), count === 0
    ? 'None. A task that fails 10 times is listed here, with its error.'
    : count > items.length ? `The latest ${items.length} of ${number(count)}.` : `${number(count)} in total.`);
  const letters = JSON.stringify(items);
  if (letters === shownLetters) {
    return;
  }
  shownLetters = letters;
  const list = byId('dead');
  const focused = list.contains(document.activeElement);
  list.replaceChildren(...items.map((letter) => element('li', {},
    element('code', {}, letter.id),
    element('p', {}, `${letter.kind}, failed ${letter.attempts} times, last at ${moment(letter.buried_at)}: ${letter.error}`),
    element('button', {
      type: 'button', 'aria-label': `Redrive ${letter.id}`,
      onclick: (event) => post(event.target, `/dead-letters/${letter.kind}/${letter.id}/redrive`, 'Dead letter redriven: its task is due again.'),
    }, 'Redrive'))));
  if (focused) {
    byId('dead-title').focus(); // otherwise the focus returns to the top of the page
  }
}

/* ---- actions ---- */

function log(text) {
  const list = byId('log');
  list.querySelector('.hint')?.remove();
  list.prepend(element('li', {}, element('time', {}, moment(Date.now())), element('span', {}, text)));
  while (list.children.length > 50) {
    list.lastChild.remove();
  }
}

// post sends the request of a button, and logs doneText after the answer, which may take up to a minute. Until then the
// button does nothing.
async function post(button, path, doneText) {
  if (busy.has(button)) {
    return;
  }
  busy.add(button);
  actionError.clear();
  try {
    await ops('POST', path, 70);
    log(doneText);
  } catch (failure) {
    actionError.show(failure.message);
  }
  busy.delete(button);
}

const busy = new Set();

byId('sweep-now').addEventListener('click', (event) => post(event.target, '/reconcile', 'Swept.'));

const faultTexts = {
  'place-orders': '1,000 orders are placed. They stay unpaid.',
  'redis-wipe': 'Redis is wiped: it has lost all tasks.',
  'redis-stop': 'Redis is stopped. The shop still accepts orders.',
  'redis-start': 'Redis is started, empty.',
  'worker-pause': 'The worker is paused. The reconciler cancels overdue orders, a few seconds late.',
  'worker-resume': 'The worker is resumed.',
};

byId('fault-buttons').addEventListener('click', (event) => {
  const fault = event.target.dataset.fault;
  if (fault && event.target.getAttribute('aria-disabled') !== 'true') {
    post(event.target, `/faults/${fault}`, faultTexts[fault]);
  }
});

function renderFaults(faults) {
  byId('faults').hidden = faults === null;
  if (faults === null) {
    return;
  }
  // Not the property disabled: it would remove the focus from the button.
  const enable = (fault, possible) => document.querySelector(`[data-fault="${fault}"]`).setAttribute('aria-disabled', !possible);
  enable('redis-wipe', !faults.redis_stopped);
  enable('redis-stop', !faults.redis_stopped);
  enable('redis-start', faults.redis_stopped);
  enable('worker-pause', !faults.worker_paused);
  enable('worker-resume', faults.worker_paused);
}

start();
