// The section "Payments" of the operators' page.

import { duration, element, money, moment, number, renderList, setText } from './dom.js';

const byId = (id) => document.getElementById(id);

// renderPayments shows the answer of GET /ops/api/payments, or hides the section if it is null. ledger is the answer of
// GET /ops/api/provider-ledger, or null: only the demo has it. retry is called when the operator wants to try a failed
// refund again: with the button, and with the refund.
export function renderPayments(payments, ledger, retry) {
  byId('payments').hidden = payments === null;
  if (payments === null) {
    return;
  }
  const { attempts, refunds, webhooks, money: rows, failed_refunds: failed, oldest_check_overdue_seconds: overdue } = payments;
  renderFacts(byId('attempts'), counts(attempts, ['creating', 'open', 'closing', 'closed', 'succeeded']));
  renderFacts(byId('refunds'), [...counts(refunds, ['owed', 'sent', 'confirmed']), ['failed', number(refunds.failed), refunds.failed > 0]]);
  renderFacts(byId('provider'), [
    ['webhooks in the last hour', number(webhooks.last_hour)],
    ['last webhook', webhooks.last_at ? moment(webhooks.last_at) : '–'],
    ['oldest overdue check', overdue > 0 ? duration(overdue) : 'none', overdue > 5],
  ]);
  renderMoney(rows);
  renderLedger(rows, ledger);
  renderFailedRefunds(failed, retry);
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
    ...['captured', 'applied', 'returned', 'owed'].map((name) =>
      element('div', {}, element('dt', {}, name), element('dd', {}, money(row[`${name}_cents`], row.currency))))));
  setText(byId('money-hint'), rows.length === 0
    ? 'No payment yet.'
    : 'Captured money is either applied to an order, returned, or owed to the customer.');
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

function renderFailedRefunds(failed, retry) {
  byId('failed-refunds').hidden = failed.length === 0;
  renderList(byId('failed-refund-list'), failed, (refund) => element('li', {},
    element('code', {}, refund.id),
    element('p', {}, `${money(refund.amount_cents, refund.currency)} for the order ${refund.order_id}, failed at ${moment(refund.ended_at)}: ${refund.error}`),
    element('button', { type: 'button', 'aria-label': `Try the refund ${refund.id} again`, onclick: (event) => retry(event.target, refund) }, 'Try again')),
  byId('payments-title'));
}
