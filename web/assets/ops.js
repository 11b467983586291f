// The operators' page.

import { request } from './api.js';
import { drawDepth, drawHistogram } from './charts.js';
import { duration, element, Message, moment, number, renderList, setText, sleep } from './dom.js';
import { renderPayments } from './opspayments.js';

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

let pollNow = () => {}; // ends the wait for the next poll

// poll requests and shows the figures every second while the page is visible, and four times a second during a flash
// sale. If the service needs longer to gather them, poll requests them less often, so that the service spends at most a
// quarter of its time on them.
async function poll() {
  if (polling) {
    return;
  }
  polling = true;
  unbroken = false;
  let productsLoaded = false;
  let pause = 1000;
  while (!document.hidden) {
    const began = performance.now();
    try {
      const [stats, faults, payments] = await Promise.all([ops('GET', '/stats'), optional('/faults'), optional('/payments')]);
      const ledger = faults?.provider === undefined ? null : await optional('/provider-ledger');
      await render(stats, faults, payments, ledger);
      pause = faults?.flash_sale?.running ? 250 : 1000;
      if (!productsLoaded) {
        await loadProducts();
        productsLoaded = true;
      }
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
    const called = new Promise((resolve) => { pollNow = resolve; });
    await Promise.race([called, sleep(Math.max(pause, 3 * (performance.now() - began)))]);
  }
  polling = false;
}

const notServed = new Set(); // the paths that the service has answered with 404

// optional requests a path that not every service has: only the demo has faults, and only a service with a payment
// provider has payments. It returns null if the service does not have the path.
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

document.addEventListener('visibilitychange', () => !document.hidden && start());
window.addEventListener('hashchange', start);

let latest = null;

function render(stats, faults, payments, ledger) {
  latest = stats;
  const signedIn = byId('sign-in').contains(document.activeElement);
  byId('sign-in').hidden = true;
  byId('dashboard').hidden = false;
  if (signedIn) {
    byId('main').focus({ preventScroll: true });
  }
  renderInvariants(stats.violations, payments !== null);
  renderPicture(stats, faults);
  addSample(stats);
  renderCharts();
  renderSweep(stats.last_sweep);
  renderFaults(faults);
  renderPayments(payments, ledger, retryRefund);
  return renderDead(stats.queue?.dead);
}

// The number of an invariant is the one in a violation. Number 5, that an order survives a crash, is not a query.
const invariants = [
  [1, 'The supply of each product equals its available stock plus the quantities of its pending and paid orders.'],
  [2, 'No order is both paid and cancelled, and each order ends at most once.'],
  [3, 'No order stays pending past its deadline, or past the end of its hold, for longer than the stated bound.'],
  [4, 'No payment is accepted at or after the deadline, unless it was opened before; no order times out before it.'],
];
const paymentInvariants = [
  [6, 'A paid order has one applied payment of its amount, or was paid at once.'],
  [7, 'Captured money is either applied or returned.'],
  [8, 'No check of a payment or of a refund is overdue.'],
];

function renderInvariants(violations, withPayments) {
  const list = byId('invariants');
  [...invariants, ...(withPayments ? paymentInvariants : [])].forEach(([n, invariant], i) => {
    const broken = violations?.filter((violation) => violation.invariant === n) ?? [];
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

// renderDead shows the latest dead letters.
async function renderDead(count) {
  if (count === undefined) {
    setText(byId('dead-hint'), 'Unknown: Redis, which stores them, is down.');
    return;
  }
  const { items } = count > 0 ? await ops('GET', '/dead-letters') : { items: [] };
  setText(byId('dead-hint'), count === 0
    ? 'None. A task that fails 10 times is listed here, with its error.'
    : count > items.length ? `The latest ${items.length} of ${number(count)}.` : `${number(count)} in total.`);
  renderList(byId('dead'), items, (letter) => element('li', {},
    element('code', {}, letter.id),
    element('p', {}, `${letter.kind}, failed ${letter.attempts} times, last at ${moment(letter.buried_at)}: ${letter.error}`),
    element('button', {
      type: 'button', 'aria-label': `Redrive ${letter.id}`,
      onclick: (event) => post(event.target, `/dead-letters/${letter.kind}/${letter.id}/redrive`, 'Dead letter redriven: its task is due again.'),
    }, 'Redrive')), byId('dead-title'));
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
// button does nothing. doneText is a text, or a function that returns a text for the answer. done, if given, is called
// with the text.
async function post(button, path, doneText, done) {
  if (busy.has(button)) {
    return;
  }
  busy.add(button);
  actionError.clear();
  try {
    const answer = await ops('POST', path, 70);
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

const retryRefund = (button, { id }) => post(button, `/refunds/${id}/retry`, `The refund ${id} is tried again.`);

/* ---- closing a sale ---- */

const saleProduct = byId('close-sale-product');

async function loadProducts() {
  const { items } = await request('GET', '/api/products');
  const chosen = saleProduct.value;
  saleProduct.replaceChildren(saleProduct.options[0], ...items.map(({ id, name }) => element('option', { value: id }, name)));
  saleProduct.value = items.some(({ id }) => id === chosen) ? chosen : '';
}

byId('close-sale').addEventListener('submit', (event) => {
  event.preventDefault();
  const result = byId('close-sale-result');
  setText(result, '');
  const name = saleProduct.selectedOptions[0].text;
  post(event.submitter, `/products/${saleProduct.value}/close-sale`, (answer) => closedText(name, answer), (text) => setText(result, text));
});

function closedText(name, { orders, deadline }) {
  switch (orders) {
    case 0:
      return `${name}: no unpaid order has more than a minute left, so no deadline moves.`;
    case 1:
      return `${name}: the deadline of 1 unpaid order moves forward to ${moment(deadline)}.`;
    default:
      return `${name}: the deadlines of ${number(orders)} unpaid orders move forward to ${moment(deadline)}.`;
  }
}

/* ---- faults ---- */

const faultTexts = {
  'place-orders': '1,000 orders are placed. They stay unpaid.',
  'flash-sale': 'A flash sale has started.',
  'redis-wipe': 'Redis is wiped: it has lost all tasks.',
  'redis-stop': 'Redis is stopped. The shop still accepts orders.',
  'redis-start': 'Redis is started, empty.',
  'worker-pause': 'The worker is paused. The reconciler cancels overdue orders, a few seconds late.',
  'worker-resume': 'The worker is resumed.',
  'provider-down': 'The payment provider is stopped: it closes connections without an answer.',
  'provider-hung': 'The payment provider hangs: it accepts requests and does not answer.',
  'provider-loses-answers': 'The payment provider does what it is asked, and its answers are lost.',
  'provider-up': 'The payment provider is started.',
  'webhooks-normal': 'The payment provider sends its webhooks once, in order.',
  'webhooks-lost': 'All webhooks are lost.',
  'webhooks-doubled': 'Each webhook arrives twice.',
  'webhooks-late': 'Webhooks arrive 5 s late.',
  'webhooks-reordered': 'Webhooks arrive out of order.',
};

byId('faults').addEventListener('click', (event) => {
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
  enable('flash-sale', !faults.flash_sale?.running);
  renderFlashSale(faults.flash_sale);
  renderProvider(faults);
}

let shownSale; // 'running', or the seconds of the result that is shown; undefined before the first answer

// renderFlashSale shows the flash sale that runs, or the result of the last one. It logs each new result.
function renderFlashSale(sale) {
  byId('flash-sale').hidden = sale === null;
  const shown = sale?.running ? 'running' : sale?.seconds ?? null;
  const news = shownSale !== undefined && shownSale !== shown;
  shownSale = shown;
  if (sale === null) {
    return;
  }
  const text = saleText(sale);
  if (news && !sale.running) {
    log(`Flash sale of the ${text}`);
  }
  setText(byId('flash-sale').querySelector('p'), text);
  const progress = byId('flash-sale').querySelector('progress');
  progress.max = sale.customers;
  progress.value = sale.sold + sum(sale.refused) + sale.failed;
}

const sum = (counts) => Object.values(counts).reduce((total, n) => total + n, 0);

function saleText({ running, product, units, sold, refused, failed, returned, seconds }) {
  return [
    `${product}: sold ${!running && sold === units ? 'exactly ' : ''}${number(sold)}`,
    `refused ${number(sum(refused))}${reasons(refused)}`,
    failed > 0 && `${number(failed)} without an answer`,
    returned > 0 && `${number(returned)} came back from cancelled orders meanwhile`,
    running ? `${duration(seconds)} so far` : `took ${duration(seconds)}`,
  ].filter(Boolean).join(', ');
}

// reasons tells why the service has refused customers. refused has their numbers by the code of the problem.
function reasons(refused) {
  const texts = Object.entries(refused).map(([code, n]) => [code.replaceAll('-', ' '), n]);
  switch (texts.length) {
    case 0:
      return '';
    case 1:
      return ` (${texts[0][0]})`;
    default:
      return ` (${texts.map(([text, n]) => `${number(n)} ${text}`).join(', ')})`;
  }
}

const providerTexts = {
  up: 'up', down: 'stopped', hung: 'hangs', loses_answers: 'loses its answers', errors: 'answers with errors',
};

// renderProvider shows the faults of the simulated payment provider.
function renderProvider({ provider, webhooks }) {
  byId('provider-faults').hidden = provider === undefined;
  if (provider === undefined) {
    return;
  }
  setText(byId('provider-state'), `Provider: ${providerTexts[provider]}`);
  setText(byId('webhooks-state'), `Webhooks: ${webhooks}`);
  document.querySelectorAll('[data-provider]').forEach((button) => button.setAttribute('aria-disabled', button.dataset.provider === provider));
  document.querySelectorAll('[data-webhooks]').forEach((button) => button.setAttribute('aria-pressed', button.dataset.webhooks === webhooks));
}

start();
