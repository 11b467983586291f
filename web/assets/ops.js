// The operators' page.

import { request } from './api.js';
import { drawHistogram } from './charts.js';
import { addParts, duration, element, Message, moment, number, renderList, setText, sleep } from './dom.js';
import { maxCounted, pendingText, Schedule } from './schedule.js';

const byId = (id) => document.getElementById(id);
const messages = byId('messages');
const actionError = new Message(messages);
const connection = byId('connection');
const waitingTitle = byId('waiting-title');

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

const ops = (method, path, { headers, ...more } = {}) =>
  request(method, `/ops/api${path}`, { ...more, headers: { Authorization: `Bearer ${sessionStorage.getItem('ops token')}`, ...headers } });

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

const pause = 1000; // between polls, in ms
let pollNow = () => {}; // ends the wait for the next poll

// poll requests and shows the figures every second while the page is visible. If the service needs longer to gather
// them, poll requests them less often, so that the service spends at most a quarter of its time on them.
async function poll() {
  if (polling) {
    return;
  }
  polling = true;
  while (!document.hidden) {
    const began = performance.now();
    try {
      const [stats, schedule] = await Promise.all(
        [ops('GET', '/stats'), ops('GET', '/schedule').catch(() => null), ...sections.map((section) => section.load())]);
      await render(stats, schedule);
      refreshedAt = Date.now();
      byId('dashboard').classList.remove('stale');
      showConnection('live', 'Live');
    } catch (failure) {
      if (failure.status === 401) {
        sessionStorage.removeItem('ops token');
        askForToken(failure.message);
        break;
      }
      byId('dashboard').classList.add('stale');
      showConnection('failing', `${refreshedAt ? `As of ${moment(refreshedAt)}` : 'Not connected yet'}: ${failure.message}`);
    }
    const called = new Promise((resolve) => { pollNow = resolve; });
    await Promise.race([called, sleep(Math.max(pause, 3 * (performance.now() - began)))]);
  }
  polling = false;
}

const notServed = new Set(); // the paths that the service has answered with 404

// optional requests a path that not every service has. It returns null if the service does not have the path.
async function optional(path) {
  if (notServed.has(path)) {
    return null;
  }
  try {
    return await ops('GET', path);
  } catch (failure) {
    if (failure.status !== 404) {
      throw failure;
    }
    notServed.add(path);
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

const schedule = new Schedule(byId('schedule'), byId('schedule-text'));
let latest = null;

function render(stats, due) {
  latest = stats;
  const signedIn = byId('sign-in').contains(document.activeElement);
  byId('sign-in').hidden = true;
  byId('dashboard').hidden = false;
  if (signedIn) {
    byId('main').focus({ preventScroll: true });
  }
  renderInvariants(stats.violations, stats.invariants_checked_at);
  if (due) {
    schedule.update(due, stats);
  } else {
    setText(byId('schedule-text'), 'What is due when cannot be read now.');
  }
  renderFigures(stats);
  renderLateness(stats.lateness);
  renderSweep(stats.last_sweep);
  sections.forEach((section) => section.render(stats));
  return renderDead(stats.queue?.dead);
}

// The number of an invariant is the one in a violation. Number 5, that an order survives a crash, is not a query.
const invariants = [
  [1, 'The supply of each product equals its available stock plus what is sold and the quantities of its pending orders.'],
  [2, 'No order is both paid and cancelled, and each order ends at most once.'],
  [3, 'No order stays pending past its deadline, or past the end of its hold, for longer than the stated bound.'],
  [4, 'No order is paid at or after its deadline, or after the end of its hold; no order times out before it.'],
];

function renderInvariants(violations, checkedAt) {
  const list = byId('invariants');
  invariants.forEach(([n, invariant], i) => {
    const broken = violations.filter((violation) => violation.invariant === n);
    const [state, mark, text] = checkedAt === null
      ? ['unknown', '?', 'Not checked yet.']
      : broken.length > 0
        ? ['broken', '✗', `Broken: ${broken.slice(0, 3).map((v) => `${v.subject}: ${v.detail}`).join('; ')}${broken.length > 3 ? ` and ${broken.length - 3} more` : ''}.`]
        : ['holds', '✓', 'Holds.'];
    const detail = checkedAt === null ? text : `${text} Checked at ${moment(checkedAt)}.`;
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

function renderFigures({ queue, orders, outbox, lateness }) {
  const stat = (name, value, wrong = false) => {
    const node = document.querySelector(`[data-stat="${name}"]`);
    setText(node, value);
    node.classList.toggle('wrong', wrong);
  };
  stat('pending', pendingText(orders.pending));
  stat('overdue', orders.oldest_overdue_seconds > 0 ? duration(orders.oldest_overdue_seconds) : 'none', orders.oldest_overdue_seconds > 1);
  stat('outbox', number(outbox.backlog), outbox.oldest_seconds > 5);
  for (const state of ['scheduled', 'due', 'leased', 'dead']) {
    stat(state, queue ? number(queue[state]) : '–', state === 'dead' && queue?.dead > 0);
  }
  const counted = lateness.worker.count + lateness.reconciler.count;
  const countText = (n) => (counted < maxCounted ? number(n) : `${number(n)} of the last ${number(counted)}`);
  stat('by-worker', countText(lateness.worker.count));
  stat('by-reconciler', countText(lateness.reconciler.count));
}

window.addEventListener('resize', () => latest && renderLateness(latest.lateness));

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
  setText(byId('sweep-summary'), `At ${moment(sweep.started_at)}, orders due soon, in ${duration(sweep.took_seconds)}: ${outcome}${sweep.error ? `: ${sweep.error}` : ''}.`);
  byId('sweep').replaceChildren(...['examined', 'missing', 'late', 'overdue', 'locked', 'failed', 'dead'].map((name) =>
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

// renderDead shows the latest dead letters.
async function renderDead(count) {
  byId('dead-letters').hidden = count === 0;
  if (count === undefined) {
    setText(byId('dead-hint'), 'Unknown: Redis, which stores them, is down.');
    return;
  }
  const { items } = count > 0 ? await ops('GET', '/dead-letters') : { items: [] };
  setText(byId('dead-hint'), count > items.length ? `The latest ${items.length} of ${number(count)}.` : `${number(count)} in total.`);
  renderList(byId('dead'), items, (letter) => element('li', {},
    element('code', {}, letter.id),
    element('p', {}, `${letter.kind}, failed ${letter.attempts} times, last at ${moment(letter.buried_at)}: ${letter.error}`),
    element('button', {
      type: 'button', 'aria-label': `Redrive ${letter.id}`,
      onclick: (event) => post(event.target, `/dead-letters/${letter.kind}/${letter.id}/redrive`, 'Dead letter redriven: its task is due again.'),
    }, 'Redrive')), waitingTitle);
}

/* ---- actions ---- */

let log = () => {}; // a part may show the log of the operator's actions and of repairs

// post sends the request of a button, as act does. The answer may take up to a minute. more, if given, has the body and
// the headers of the request.
const post = (button, path, doneText, done, more) =>
  act(button, () => ops('POST', path, { ...more, seconds: 70 }), doneText, done);

// act calls the asynchronous function action for a button, and logs doneText after it. Until then the button does nothing.
// doneText is a text, or a function that returns a text for what action returned. done, if given, is called with the text.
async function act(button, action, doneText, done) {
  if (busy.has(button)) {
    return;
  }
  busy.add(button);
  actionError.clear();
  try {
    const answer = await action();
    const text = typeof doneText === 'function' ? doneText(answer) : doneText;
    log(text);
    done?.(text);
    pollNow();
  } catch (failure) {
    actionError.show(failure.message);
  }
  busy.delete(button);
}

const busy = new Set();

byId('sweep-now').addEventListener('click', (event) => post(event.target, '/reconcile', 'Swept.'));

/* ---- the page ---- */

const sections = []; // of the parts

// page is what the parts of the page can use and change. A part is a module with a function add. See ops.html.
const page = {
  get: (path) => ops('GET', path),
  optional,
  post,
  act,

  // logBy sets the function that shows a text in the log.
  logBy(show) {
    log = show;
  },

  // addSection adds something that the page shows. Each poll calls its asynchronous method load, and then, if nothing
  // failed, its method render with the figures.
  addSection(section) {
    sections.push(section);
  },

  // addWaiting adds a card for something that waits for a person. The card is hidden while nothing of its kind waits.
  addWaiting(card) {
    byId('waiting').append(card);
  },

  // waitingTitle gets the focus when a card disappears because a person has decided about it.
  waitingTitle,

  // addInvariants adds invariants that the service checks, as their numbers and texts.
  addInvariants(...more) {
    invariants.push(...more);
  },
};

await addParts(page);
document.addEventListener('visibilitychange', () => !document.hidden && start());
window.addEventListener('hashchange', start);
start();
