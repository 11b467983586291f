// The service as its operators see it.

import { request } from './api.js';
import { drawDepth, drawHistogram } from './charts.js';
import { duration, element, Message, moment, number, setText, wait } from './dom.js';

const byId = (id) => document.getElementById(id);
const messages = byId('messages');
const refusal = new Message(messages);
const connection = byId('connection');

/* ---- the operators' token ---- */

// The demo's link carries the token in the fragment, which browsers do not send anywhere.
function takeTokenFromLink() {
  const fragment = new URLSearchParams(location.hash.slice(1));
  if (fragment.has('token')) {
    sessionStorage.setItem('ops token', fragment.get('token'));
    history.replaceState(null, '', location.pathname);
  }
}

const ops = (method, path, seconds) =>
  request(method, `/ops/api${path}`, { seconds, headers: { Authorization: `Bearer ${sessionStorage.getItem('ops token')}` } });

function askForToken(why) {
  byId('dashboard').hidden = true;
  byId('sign-in').hidden = false;
  byId('token').focus();
  show('connecting', 'Closed');
  if (why) {
    refusal.show(why);
  }
}

byId('sign-in').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem('ops token', byId('token').value);
  byId('token').value = '';
  refusal.clear();
  look();
});

/* ---- what is looked at ---- */

function show(state, text) {
  connection.dataset.state = state;
  setText(connection, text);
}

let looking = false;
let refreshed = 0;
let unbroken = false; // since the last sample

// look shows the figures every second or, of a service that takes longer to gather them, not more often than
// a quarter of the time.
async function look() {
  if (looking) {
    return;
  }
  looking = true;
  unbroken = false;
  while (!document.hidden) {
    const began = performance.now();
    try {
      await render(await ops('GET', '/stats'));
      refreshed = Date.now();
      unbroken = true;
      byId('dashboard').classList.remove('stale');
      show('live', 'Live');
    } catch (failure) {
      if (failure.status === 401) {
        sessionStorage.removeItem('ops token');
        askForToken(failure.message);
        break;
      }
      unbroken = false;
      byId('dashboard').classList.add('stale');
      show('failing', `${refreshed ? `As of ${moment(refreshed)}` : 'Not open yet'}: ${failure.message}`);
    }
    await wait(Math.max(1000, 3 * (performance.now() - began)));
  }
  looking = false;
}

// open looks, if there is a token to look with.
function open() {
  takeTokenFromLink();
  if (sessionStorage.getItem('ops token')) {
    look();
  } else {
    askForToken();
  }
}

document.addEventListener('visibilitychange', () => !document.hidden && open());
window.addEventListener('hashchange', open);

let latest = null;

function render(stats) {
  latest = stats;
  const signedIn = byId('sign-in').contains(document.activeElement);
  byId('sign-in').hidden = true;
  byId('dashboard').hidden = false;
  if (signedIn) {
    byId('main').focus({ preventScroll: true });
  }
  renderInvariants(stats.violations);
  renderPicture(stats);
  sample(stats);
  renderCharts();
  renderSweep(stats.last_sweep);
  renderFaults(stats.faults);
  return renderDead(stats.queue?.dead);
}

const promises = [
  'For every product, supply is what is available, ordered and paid.',
  'No order is both paid and cancelled; each ends once.',
  'No order is pending past its deadline for longer than the bound.',
  'Nothing is paid past its deadline, or cancelled by it too early.',
];

function renderInvariants(violations) {
  const list = byId('invariants');
  promises.forEach((promise, i) => {
    const broken = violations?.filter((violation) => violation.invariant === i + 1) ?? [];
    const [state, mark, says] = violations === null
      ? ['unknown', '?', 'Not checked: there are too many orders to check in a second. shop doctor takes the time.']
      : broken.length > 0
        ? ['broken', '✗', `Broken: ${broken.slice(0, 3).map((v) => `${v.subject}: ${v.detail}`).join('; ')}${broken.length > 3 ? ` and ${broken.length - 3} more` : ''}`]
        : ['holds', '✓', 'Holds'];
    if (!list.children[i]) {
      list.append(element('li', {}, element('span', { className: 'mark', 'aria-hidden': 'true' }),
        element('div', {}, element('p', {}, promise), element('p', { className: 'detail' }))));
    }
    const row = list.children[i];
    row.className = state;
    setText(row.querySelector('.mark'), mark);
    setText(row.querySelector('.detail'), says);
  });
}

const mostCounted = 10_000; // of the last hour's timeouts

function renderPicture({ redis, queue, orders, outbox, lateness, last_sweep: sweep, faults }) {
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
  const atLeast = (n) => (counted < mostCounted ? number(n) : `${number(n)} of the last ${number(counted)}`);
  stat('by-worker', atLeast(lateness.worker.count));
  stat('by-reconciler', atLeast(lateness.reconciler.count));
  stat('swept', sweep ? moment(sweep.started_at) : '–');
  setText(byId('redis-state'), redis === 'up' ? '' : 'down');
  byId('redis-node').classList.toggle('broken', redis !== 'up');
  setText(byId('worker-state'), faults?.worker_paused ? 'paused' : '');
}

const span = 2 * 60_000;
const samples = [];

function sample({ queue, orders, outbox }) {
  const inRedis = queue ? queue.scheduled + queue.due + queue.leased : null;
  samples.push({ at: performance.now(), follows: unbroken, pending: orders.pending, scheduled: inRedis, outbox: outbox.backlog });
  while (samples[0].at < performance.now() - span) {
    samples.shift();
  }
}

function renderCharts() {
  const { pending, scheduled, outbox } = samples.at(-1);
  drawDepth(byId('depth'), samples, ['pending', 'scheduled', 'outbox'], span,
    `Now ${number(pending)} orders are pending, ${scheduled === null ? 'Redis is down' : `${number(scheduled)} tasks are in Redis`}, ${number(outbox)} in the outbox.`);
  renderLateness(latest.lateness);
}

window.addEventListener('resize', () => latest && renderCharts());

function renderLateness({ worker, reconciler, histogram }) {
  const rows = histogram.map(({ below_seconds: below, ...counts }, i) => ({
    label: below === null ? `≥ ${duration(histogram[i - 1].below_seconds)}` : `< ${duration(below)}`,
    ...counts,
  }));
  const told = (who, p) => `${who} ${number(p.count)}: median ${duration(p.p50_seconds)}, p99 ${duration(p.p99_seconds)}, most ${duration(p.max_seconds)}`;
  const figures = [
    worker.count > 0 && told('Workers cancelled', worker),
    reconciler.count > 0 && told('The reconciler cancelled', reconciler),
  ].filter(Boolean);
  setText(byId('percentiles'), figures.length > 0 ? `${figures.join('. ')}.` : 'No order has timed out yet.');
  drawHistogram(byId('lateness'), rows, 'Cancelled orders by how long after their deadlines');
}

let lastSweep = '';

function renderSweep(sweep) {
  if (!sweep || sweep.started_at === lastSweep) {
    return;
  }
  const outcome = { ok: 'all well', partial: 'overdue orders are left', degraded: 'without Redis', failed: 'failed' }[sweep.outcome];
  setText(byId('sweep-summary'), `At ${moment(sweep.started_at)}, ${sweep.full ? 'over all pending orders' : 'over those due soon'}, in ${duration(sweep.took_seconds)}: ${outcome}${sweep.error ? `: ${sweep.error}` : ''}.`);
  byId('sweep').replaceChildren(...['examined', 'missing', 'late', 'orphaned', 'overdue', 'set_aside', 'locked', 'failed', 'dead'].map((name) =>
    element('div', {}, element('dt', {}, name.replace('_', ' ')), element('dd', {}, number(sweep[name])))));
  if (lastSweep !== '') {
    for (const [name, what] of [
      ['missing', 'tasks that Redis had lost are put back'],
      ['late', 'tasks are moved forward'],
      ['overdue', 'overdue orders are cancelled without Redis'],
      ['failed', 'overdue orders cannot be cancelled'],
    ]) {
      if (sweep[name] > 0) {
        log(`The reconciler: ${number(sweep[name])} ${what}, in ${duration(sweep.took_seconds)}.`);
      }
    }
  }
  lastSweep = sweep.started_at;
}

let lettersShown = '';

// renderDead shows the latest dead letters, anew only if they are others: someone may be about to press a button.
async function renderDead(count) {
  if (count === undefined) {
    setText(byId('dead-hint'), 'Redis, which keeps them, is down.');
    return;
  }
  const { items } = count > 0 ? await ops('GET', '/dead-letters') : { items: [] };
  setText(byId('dead-hint'), count === 0
    ? 'None. A task that fails 10 times comes here, with its error.'
    : `${number(count)} in all${count > items.length ? `, the latest ${items.length} first` : ''}.`);
  const letters = JSON.stringify(items);
  if (letters === lettersShown) {
    return;
  }
  lettersShown = letters;
  const list = byId('dead');
  const focused = list.contains(document.activeElement);
  list.replaceChildren(...items.map((letter) => element('li', {},
    element('code', {}, letter.id),
    element('p', {}, `${letter.kind}, failed ${letter.attempts} times, the last at ${moment(letter.buried_at)}: ${letter.error}`),
    element('button', {
      type: 'button', 'aria-label': `Redrive ${letter.id}`,
      onclick: (event) => act(event.target, `/dead-letters/${letter.kind}/${letter.id}/redrive`, 'Dead letter redriven: it is due again.'),
    }, 'Redrive'))));
  if (focused) {
    byId('dead-title').focus(); // not back to the top of the page
  }
}

/* ---- what is done ---- */

function log(text) {
  const list = byId('log');
  list.querySelector('.hint')?.remove();
  list.prepend(element('li', {}, element('time', {}, moment(Date.now())), element('span', {}, text)));
  while (list.children.length > 50) {
    list.lastChild.remove();
  }
}

// act has the service do something, which may take a while, and says when it is done.
async function act(button, path, done) {
  if (busy.has(button)) {
    return;
  }
  busy.add(button);
  refusal.clear();
  try {
    await ops('POST', path, 70);
    log(done);
  } catch (failure) {
    refusal.show(failure.message);
  }
  busy.delete(button);
}

const busy = new Set();

byId('sweep-now').addEventListener('click', (event) => act(event.target, '/reconcile', 'Swept.'));

const faultDone = {
  'place-orders': '1,000 orders are placed, and no one pays them.',
  'redis-wipe': 'Redis is wiped: it has forgotten every task.',
  'redis-stop': 'Redis is stopped. Orders are still taken.',
  'redis-start': 'Redis is started, empty.',
  'worker-pause': 'The worker is paused. The reconciler cancels, later.',
  'worker-resume': 'The worker works again.',
};

byId('fault-buttons').addEventListener('click', (event) => {
  const fault = event.target.dataset.fault;
  if (fault && event.target.getAttribute('aria-disabled') !== 'true') {
    act(event.target, `/faults/${fault}`, faultDone[fault]);
  }
});

function renderFaults(faults) {
  byId('faults').hidden = faults === null;
  if (faults === null) {
    return;
  }
  // And not disabled, which would take the focus away.
  const only = (fault, possible) => document.querySelector(`[data-fault="${fault}"]`).setAttribute('aria-disabled', !possible);
  only('redis-wipe', !faults.redis_stopped);
  only('redis-stop', !faults.redis_stopped);
  only('redis-start', faults.redis_stopped);
  only('worker-pause', !faults.worker_paused);
  only('worker-resume', faults.worker_paused);
}

open();
