// The section "Payments" of the operators' page, and the faults of the demo's simulated payment provider.

import { addStylesheet, duration, element, money, moment, number, renderList, setText } from './dom.js';
import { newBooks, newDecisions, renderBooks } from './opsbookspayments.js';
import { failedRefund } from './opsrefundspayments.js';

const byId = (id) => document.getElementById(id);

// add adds the section and the faults to the operators' page.
export function add(page) {
  addStylesheet('/assets/opspayments.css');
  byId('dashboard').append(newSection(page));
  page.addWaiting(newFailedRefunds());
  page.addWaiting(newDecisions());
  let simulated = false; // whether the provider is the demo's simulator, which has a ledger
  page.addFaults?.(newFaults(), faultTexts, (faults) => {
    simulated = faults.provider !== undefined;
    renderFaults(faults);
  });

  let payments = null;
  let ledger = null;
  let books = null;
  let withInvariants = false;
  page.addSection({
    async load() {
      payments = await page.optional('/payments');
      [ledger, books] = payments === null ? [null, null]
        : await Promise.all([simulated ? page.optional('/provider-ledger') : null, page.optional('/books')]);
      if (payments !== null && !withInvariants) {
        page.addInvariants(...invariants);
        withInvariants = true;
      }
    },
    render() {
      renderPayments(payments, ledger, page);
      renderBooks(books, page);
    },
  });
}

const invariants = [
  [6, 'A paid order has one applied payment of its amount, or was paid at once.'],
  [7, 'Captured money is applied or returned, and no more is returned than was captured.'],
  [8, 'No check of a payment or of a refund is overdue.'],
];

function newSection(page) {
  const part = (name, ...nodes) => element('div', {}, element('h3', {}, name), ...nodes);
  return element('section', { id: 'payments', 'aria-labelledby': 'payments-title', hidden: true },
    element('h2', { id: 'payments-title' }, 'Payments'),
    element('div', { className: 'card payments' },
      part('Attempts to pay', element('dl', { id: 'attempts', className: 'facts' })),
      part('Refunds', element('dl', { id: 'refunds', className: 'facts' })),
      part('Money', element('div', { id: 'money' }), element('p', { id: 'money-hint', className: 'hint' }), element('p', { id: 'ledger', hidden: true })),
      part('Payment provider', element('dl', { id: 'provider', className: 'facts wide' })),
      newBooks()));
}

const newFailedRefunds = () => element('div', { id: 'failed-refunds', className: 'card', hidden: true },
  element('h3', {}, 'Failed refunds'),
  element('p', { className: 'hint' }, 'The provider could not return this money. Find out why at the provider, then try again. If the payment is disputed, the dispute goes first.'),
  element('ul', { id: 'failed-refund-list', className: 'dead' }));

// renderPayments shows the answer of GET /ops/api/payments, or hides the section if it is null. ledger is the answer of
// GET /ops/api/provider-ledger, or null: only the demo has it.
function renderPayments(payments, ledger, page) {
  byId('payments').hidden = payments === null;
  if (payments === null) {
    return; // the service has no provider
  }
  const { attempts, refunds, money: rows, failed_refunds: failed, oldest_check_overdue_seconds: overdue } = payments;
  renderFacts(byId('attempts'), counts(attempts, ['creating', 'open', 'closing', 'closed', 'succeeded']));
  renderFacts(byId('refunds'), [...counts(refunds, ['owed', 'sent', 'confirmed']), ['failed', number(refunds.failed), refunds.failed > 0],
    ['settled outside', number(refunds.settled_outside)]]);
  renderFacts(byId('provider'), [
    ['oldest overdue check', overdue > 0 ? duration(overdue) : 'none', overdue > 5],
  ]);
  renderMoney(rows);
  renderLedger(rows, ledger);
  byId('failed-refunds').hidden = failed.length === 0;
  renderList(byId('failed-refund-list'), failed, (refund) => failedRefund(page, refund), page.waitingTitle);
}

const counts = (figures, names) => names.map((name) => [name, number(figures[name])]);

// renderFacts shows entries of the form [name, value, wrong]. The names must not change.
function renderFacts(list, entries) {
  if (list.children.length === 0) {
    list.append(...entries.map(([name]) => element('div', {}, element('dt', {}, name), element('dd'))));
  }
  entries.forEach(([, value, wrong = false], i) => {
    const node = list.children[i].lastChild;
    setText(node, value);
    node.classList.toggle('wrong', wrong);
  });
}

// renderMoney shows a list for each currency.
function renderMoney(rows) {
  renderList(byId('money'), rows, (row) => element('dl', { className: 'facts wide' },
    ...['captured', 'applied', 'returned', 'outside', 'disputed', 'owed'].map((name) =>
      element('div', {}, element('dt', {}, name === 'outside' ? 'settled outside' : name), element('dd', {}, money(row[`${name}_cents`], row.currency))))));
  setText(byId('money-hint'), rows.length === 0
    ? 'No payment yet.'
    : 'Captured money is applied to an order, or it is returned, settled outside of the provider, or owed to the customer.');
}

// renderLedger compares the shop's money with the provider's own ledger. While a payment or a refund is on its way, the
// two differ.
function renderLedger(rows, ledger) {
  byId('ledger').hidden = ledger === null;
  if (ledger === null) {
    return;
  }
  const total = (list, name) => list.map((row) => money(row[`${name}_cents`], row.currency)).join(', ') || 'nothing';
  const agree = ['captured', 'returned'].every((name) => total(rows, name) === total(ledger.items, name));
  setText(byId('ledger'), `The provider's own ledger: captured ${total(ledger.items, 'captured')}, returned ${total(ledger.items, 'returned')}. `
    + (agree ? 'The two ledgers agree.' : 'The two ledgers differ until all payments and refunds are settled.'));
}

/* ---- the faults of the simulated provider ---- */

const faultTexts = {
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

function newFaults() {
  const knob = (id, text, ...buttons) => element('div', { className: 'row', role: 'group', 'aria-labelledby': id },
    element('p', { id, className: 'knob-state' }, text), ...buttons);
  const button = (fault, name, attribute, value) => element('button', { type: 'button', 'data-fault': fault, [attribute]: value }, name);
  const provider = (fault, name, state) => button(`provider-${fault}`, name, 'data-provider', state);
  const webhooks = (mode, name) => button(`webhooks-${mode}`, name, 'data-webhooks', mode);
  return element('div', { id: 'provider-faults', className: 'knobs', hidden: true },
    element('p', { className: 'hint' }, 'Stop the provider while you pay an order. Wait until the deadline has passed, then start the provider. '
      + 'The order is paid, or it is cancelled and the payment is refunded.'),
    knob('provider-state', '',
      provider('down', 'Stop the provider', 'down'),
      provider('hung', 'Hang the provider', 'hung'),
      provider('loses-answers', 'Lose its answers', 'loses_answers'),
      provider('up', 'Start the provider', 'up')),
    knob('webhooks-state', 'Webhooks',
      webhooks('normal', 'Normal'), webhooks('lost', 'Lost'), webhooks('doubled', 'Doubled'), webhooks('late', 'Late'), webhooks('reordered', 'Reordered')));
}

const providerTexts = {
  up: 'up', down: 'stopped', hung: 'hangs', loses_answers: 'loses its answers', errors: 'answers with errors',
};

// renderFaults shows the present faults of the provider.
function renderFaults({ provider, webhooks }) {
  byId('provider-faults').hidden = provider === undefined;
  if (provider === undefined) {
    return;
  }
  setText(byId('provider-state'), `Provider: ${providerTexts[provider]}`);
  setText(byId('webhooks-state'), `Webhooks: ${webhooks}`);
  document.querySelectorAll('[data-provider]').forEach((button) => button.setAttribute('aria-disabled', button.dataset.provider === provider));
  document.querySelectorAll('[data-webhooks]').forEach((button) => button.setAttribute('aria-pressed', button.dataset.webhooks === webhooks));
}
