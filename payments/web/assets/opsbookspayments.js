// The last report of the payment provider's books on the operators' page, with what an operator can decide about it.

import { element, money, moment, renderList, setText } from './dom.js';
import { field } from './opsrefundspayments.js';

const byId = (id) => document.getElementById(id);

// newBooks returns the part of the section "Payments" that shows the books.
export const newBooks = () => element('div', { id: 'books', className: 'wide-part', hidden: true },
  element('h3', {}, "The provider's books"),
  element('p', { id: 'books-report', className: 'hint' }),
  element('div', { id: 'books-sums' }));

const lists = ['differences', 'incidents', 'unclaimed'];

// newDecisions returns the card of what an operator must decide about the books.
export const newDecisions = () => element('div', { id: 'books-decisions', className: 'card', hidden: true },
  element('h3', {}, "Differences from the provider's books"), ...lists.map((name) => element('ul', { id: `books-${name}`, className: 'dead' })));

// renderBooks shows the answer of GET /ops/api/books, or hides its part if it is null.
export function renderBooks(books, page) {
  byId('books').hidden = books === null;
  if (books === null) {
    return;
  }
  const currencies = books.report?.currencies ?? [];
  setText(byId('books-report'), reportText(books.report));
  renderList(byId('books-sums'), currencies, sums);
  const list = (name, items, render) => renderList(byId(`books-${name}`), items, render, page.waitingTitle);
  list('differences', currencies.flatMap(({ currency, differences }) => differences.map((row) => ({ currency, ...row }))), difference);
  list('incidents', books.incidents, (row) => incident(page, row));
  list('unclaimed', books.unclaimed.filter(({ state }) => state === 'open'), (row) => unclaimed(page, row));
  byId('books-decisions').hidden = lists.every((name) => byId(`books-${name}`).children.length === 0);
}

const oldReport = 3 * 3600_000; // ms; as in the alert BooksOld

function reportText(report) {
  if (report === null) {
    return 'There is no report yet. A process with the role reconciler makes one every hour.';
  }
  const result = report.balanced
    ? 'The provider and the shop agree.'
    : 'The provider and the shop differ: compare the attempts in "What waits for a person" with the payments in the provider\'s dashboard, and look at the incidents.';
  const old = Date.now() - Date.parse(report.made_at) > oldReport ? ' The report is old: run shop payments reconcile, which prints why.' : '';
  return `Report ${report.number}, made at ${moment(report.made_at)}. ${result}${old}`;
}

const rest = (side) => side.captured_cents - side.refunded_cents - side.disputed_cents;

// sums shows the sums of one currency. What an operator has kept does not wait for a decision.
const sums = ({ currency, there, here, under_way_cents: underWay, unclaimed_cents: all, kept_cents: kept, difference_cents: differs, difference_count: count }) =>
  element('dl', { className: 'facts wide' }, ...[
    ['at the provider', rest(there)], ['in the shop', rest(here)], ['under way', underWay],
    ['unclaimed', all - kept, all !== kept], ['differences', differs, count > 0],
  ].map(([name, cents, wrong = false]) =>
    element('div', {}, element('dt', {}, name), element('dd', { className: wrong ? 'wrong' : '' }, money(cents, currency)))));

const difference = ({ attempt_id: attempt, what, there_cents: there, here_cents: here, currency }) =>
  element('li', {}, element('code', {}, attempt), element('p', {}, `${what}: ${money(there, currency)} at the provider, ${money(here, currency)} in the shop`));

const afterIncident = {
  lost_sessions: 'No refund is sent and no session is closed until you close this incident. First find out which of the lost orders were shipped.',
  unclaimed: 'No refund is sent until you close this incident. First find out which of the lost orders were shipped. Then decide about each payment below.',
};

const incident = (page, { id, kind, detail, opened_at: at }) => element('li', {},
  element('p', {}, `Since ${moment(at)}: ${detail}. ${afterIncident[kind]}`),
  decision(page, 'What you found', ['Close', `/books/incidents/${id}/close`, `The incident ${id} is closed.`]));

const unclaimed = (page, { intent, amount_cents: cents, currency, order_id: order }) => element('li', {},
  element('code', {}, intent),
  element('p', {}, `${money(cents, currency)} for the order ${order ?? 'that is not known'}, which the database does not have. `
    + "Keep it if the customer has the goods, otherwise return it in the provider's dashboard: the next report finds that."),
  decision(page, 'Why', ['Keep', `/books/unclaimed/${intent}/keep`, `The money of the payment ${intent} is kept.`]));

// decision returns a form for the operator's name and reason, with a button: its name, its path and the text of the log.
function decision(page, why, [name, path, doneText]) {
  const form = element('form', { className: 'row' }, field('Your name', { name: 'actor' }), field(why, { name: 'note' }),
    element('button', { type: 'submit' }, name));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    page.post(event.submitter, path, doneText, undefined, { body: { actor: form.actor.value, note: form.note.value } });
  });
  return form;
}
