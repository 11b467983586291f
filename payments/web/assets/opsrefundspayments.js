// What an operator can decide about refunds on the operators' page.

import { element, money, moment } from './dom.js';

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
