// What an operator can decide about refunds on the operators' page.

import { element, money, moment, parseMoney } from './dom.js';

// field returns an input with its label, for a form. properties are those of the input.
export const field = (label, properties) => element('label', { className: 'row' }, `${label} `, element('input', { required: true, maxLength: 200, ...properties }));

// failedRefund shows a failed refund, with what an operator can do about it.
export function failedRefund(page, refund) {
  const { id } = refund;
  const settle = element('form', { className: 'row', hidden: true }, field('Your name', { name: 'actor' }), field('What you did', { name: 'note' }),
    element('button', { type: 'submit', className: 'primary' }, 'Settle it for good'));
  settle.addEventListener('submit', (event) => {
    event.preventDefault();
    page.post(event.submitter, `/refunds/${id}/settled-outside`, `The refund ${id} is settled outside of the provider.`, undefined,
      { body: { actor: settle.actor.value, note: settle.note.value } });
  });
  return element('li', {},
    element('code', {}, id),
    element('p', {}, `${money(refund.amount_cents, refund.currency)} for the order ${refund.order_id}, failed at ${moment(refund.ended_at)}: ${refund.error}`),
    element('button', { type: 'button', 'aria-label': `Try the refund ${id} again`,
      onclick: (event) => page.post(event.target, `/refunds/${id}/retry`, `The refund ${id} is tried again.`) }, 'Try again'),
    element('button', { type: 'button', 'aria-label': `The refund ${id} was settled outside of the provider`,
      onclick: () => {
        settle.hidden = !settle.hidden;
        settle.actor.focus();
      } }, 'Settled outside …'),
    settle);
}

// refundForm returns a form that refunds a paid order, in full or in part. As long as nothing in it changes, a repeated
// request refunds nothing more.
export function refundForm(page) {
  let key = crypto.randomUUID();
  const result = element('p', { role: 'status' });
  const form = element('form', { id: 'refund-order', className: 'row' },
    field('Order', { name: 'order', pattern: '[0-9a-f\\-]{36}', title: 'the id of a paid order' }),
    field('Amount', { name: 'amount', inputMode: 'decimal', placeholder: '5.00' }),
    field('Currency', { name: 'currency', pattern: '[A-Z]{3}', placeholder: 'EUR', title: 'for example EUR' }),
    field('Your name', { name: 'actor' }), field('Why', { name: 'note' }),
    element('button', { type: 'submit' }, 'Refund'));
  form.addEventListener('input', () => {
    key = crypto.randomUUID();
    const { amount, currency } = form;
    const isAmount = parseMoney(amount.value, currency.value) !== null;
    amount.setCustomValidity(isAmount ? '' : 'Give all decimals of the currency: 5.00 EUR, 500 JPY or 5.000 KWD.');
  });
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const { order, amount, currency, actor, note } = form;
    const cents = parseMoney(amount.value, currency.value);
    page.post(event.submitter, `/orders/${order.value}/refunds`,
      (refund) => `The refund ${refund.id} of ${money(refund.amount_cents, refund.currency)} is ${refund.state}.`,
      (text) => {
        result.textContent = text;
      },
      {
        headers: { 'Idempotency-Key': key },
        body: { amount_cents: cents, currency: currency.value, actor: actor.value, note: note.value },
      });
  });
  return element('div', { className: 'wide-part' }, element('h3', {}, 'Refund a paid order'),
    element('p', { className: 'hint' }, 'In full or in part. The order stays paid, and its stock is not changed. If the payment is disputed, the dispute goes first.'),
    form, result);
}
