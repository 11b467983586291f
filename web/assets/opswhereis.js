// The section "Where is this order?" of the operators' page. The orders that are overdue for the longest time wait for a person.

import { addStylesheet, duration, element, renderList, setText } from './dom.js';

// add adds the section to the operators' page.
export function add(page) {
  addStylesheet('/assets/opswhereis.css');
  const id = element('input', { id: 'whereis-id', required: true, maxLength: 255, autocomplete: 'off', spellcheck: false });
  const next = element('p', { id: 'whereis-next', role: 'status' });
  const more = element('div', { id: 'whereis-more' });
  const form = element('form', { className: 'card', id: 'whereis' },
    element('label', { htmlFor: 'whereis-id' }, 'The id of an order, or of something that refers to it'),
    element('div', { className: 'row' }, id, element('button', { type: 'submit' }, 'Find')), next, more);
  const list = element('ul', { id: 'overdue', className: 'dead' });
  const failed = element('p', { className: 'hint' });
  const overdue = element('div', { className: 'card', hidden: true }, element('h3', {}, 'Overdue orders'), failed, list);
  page.addWaiting(overdue);
  document.getElementById('picture').after(element('section', { 'aria-labelledby': 'whereis-title' },
    element('h2', { id: 'whereis-title' }, 'Where is this order?'), form));

  const find = async () => {
    try {
      const [order] = (await page.get(`/orders?id=${encodeURIComponent(id.value.trim())}`)).items;
      setText(next, order.next);
      more.replaceChildren(...details(order));
    } catch (failure) {
      setText(next, failure.message);
      more.replaceChildren();
    }
  };
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    find();
  });

  let items = [];
  let problem = '';
  let late = false; // whether the last figures had an order that is overdue by more than a second
  page.addSection({
    async load() {
      try {
        items = late ? (await page.get('/orders')).items : [];
        problem = '';
      } catch (failure) { // the other sections still have answers
        if (failure.status === 401) {
          throw failure;
        }
        problem = `The overdue orders cannot be listed: ${failure.message}`;
      }
    },
    render({ orders }) {
      late = orders.oldest_overdue_seconds > 1;
      renderList(list, items.map(({ id, next }) => ({ id, next })), (order) => element('li', {},
        element('code', {}, order.id), element('p', {}, order.next),
        element('button', {
          type: 'button', 'aria-label': `Show ${order.id}`,
          onclick() {
            id.value = order.id;
            id.focus();
            find();
          },
        }, 'Show')), page.waitingTitle);
      setText(failed, problem);
      overdue.hidden = items.length === 0 && problem === '';
    },
  });
}

// details returns a table of the tasks of an order, if there are any.
function details({ tasks }) {
  if (tasks.length === 0) {
    return [];
  }
  const cells = (tag, ...texts) => element('tr', {}, ...texts.map((text) => element(tag, {}, text)));
  const table = element('table', {},
    element('thead', {}, cells('th', 'Task', 'In Redis', 'Failed attempts', 'Last error')),
    element('tbody', {}, ...tasks.map((task) => cells('td', task.kind, stateOf(task), String(task.attempts), task.error || '–'))));
  return [element('div', { className: 'scroll', tabIndex: 0, role: 'region', 'aria-label': 'Tasks' }, table)];
}

function stateOf({ state, left_seconds: left, owner, outbox_seconds: waited }) {
  const claimed = owner ? `claimed by ${owner}` : 'claimed';
  const texts = {
    absent: 'no', unknown: 'unknown: Redis does not answer', dead: 'a dead letter',
    scheduled: left > 0 ? `due in ${duration(left)}` : 'due',
    leased: left > 0 ? `${claimed}; the lease ends in ${duration(left)}` : `${claimed}; the lease has ended`,
  };
  return waited === null ? texts[state] : `${texts[state]}; in the outbox for ${duration(waited)}`;
}
