// The section "Where is this order?" of the operators' page, with the form that moves the deadline of the order. It also
// lists the orders that are overdue for the longest time under what waits for a person.

import { addStylesheet, duration, element, moment, renderList, setText } from './dom.js';

// add adds the section to the operators' page.
export function add(page) {
  addStylesheet('/assets/opswhereis.css');
  const id = element('input', { id: 'whereis-id', required: true, maxLength: 255, autocomplete: 'off', spellcheck: false });
  const form = element('form', {},
    element('label', { htmlFor: 'whereis-id' }, 'The id of an order'),
    element('div', { className: 'row' }, id, element('button', { type: 'submit' }, 'Find')));
  const next = element('p', { id: 'whereis-next', role: 'status' });
  const more = element('div', { id: 'whereis-more' });
  const move = newMove(page, () => find(move.order.id));
  const list = element('ul', { id: 'overdue', className: 'dead' });
  const failed = element('p', { className: 'hint' });
  const overdue = element('div', { className: 'card', hidden: true }, element('h3', {}, 'Overdue orders'), failed, list);
  page.addWaiting(overdue);
  document.getElementById('picture').after(element('section', { 'aria-labelledby': 'whereis-title' },
    element('h2', { id: 'whereis-title' }, 'Where is this order?'),
    element('div', { className: 'card', id: 'whereis' }, form, next, more, move.node)));

  const find = async (text) => {
    const moving = move.node.contains(document.activeElement);
    try {
      const [order] = (await page.get(`/where?id=${encodeURIComponent(text)}`)).items;
      setText(next, order.next);
      more.replaceChildren(...details(order));
      move.show(order);
    } catch (failure) {
      setText(next, failure.message);
      more.replaceChildren();
      move.show(null);
    }
    if (moving && move.node.hidden) {
      id.focus(); // otherwise the focus returns to the top of the page
    }
  };
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    find(id.value.trim());
  });

  let items = [];
  let problem = '';
  let late = false; // whether the last figures had an order that is overdue by more than a second
  page.addSection({
    async load() {
      try {
        items = late ? (await page.get('/where')).items : [];
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
            find(order.id);
          },
        }, 'Show')), page.waitingTitle);
      setText(failed, problem);
      overdue.hidden = items.length === 0 && problem === '';
    },
  });
}

// newMove returns the form that moves the deadline of an order. Its method show takes the order that is found, or null.
// The function moved is called after the deadline has moved.
function newMove(page, moved) {
  let readAt; // when the order was read, by the clock of the browser
  const field = (label, properties) => {
    const input = element('input', { required: true, ...properties });
    return [input, element('label', {}, label, input)];
  };
  const [minutes, minutesField] = field('Minutes from now', {
    name: 'minutes', type: 'number', min: 1, max: 30 * 24 * 60, inputMode: 'numeric',
  });
  const [reason, reasonField] = field('Why (the customer can read it)', { name: 'reason', maxLength: 500 });
  const title = element('h3');
  const result = element('p', { role: 'status' });
  const node = element('form', { id: 'move-deadline', hidden: true }, title,
    element('div', { className: 'row' }, minutesField, reasonField, element('button', { type: 'submit' }, 'Move')), result);
  const move = {
    node,
    order: null,
    show(order) {
      readAt = Date.now();
      if (order?.id !== move.order?.id) {
        node.reset();
        setText(result, '');
      }
      move.order = order;
      node.hidden = order?.status !== 'pending' || Date.parse(order.due_at) <= Date.parse(order.at);
      setText(title, `Move the deadline of the order ${order?.id}`);
    },
  };
  node.addEventListener('submit', (event) => {
    event.preventDefault();
    setText(result, '');
    const { id, at } = move.order;
    const now = Date.parse(at) + Date.now() - readAt; // the database's clock decides deadlines
    page.post(event.submitter, `/orders/${id}/deadline`,
      ({ expires_at: deadline }) => `The deadline of the order ${id} is ${moment(deadline)}.`,
      (text) => {
        if (move.order?.id === id) { // the operator may have looked for another order meanwhile
          node.reset();
          setText(result, text);
          moved();
        }
      },
      { body: { deadline: new Date(now + 60_000 * minutes.valueAsNumber).toISOString(), reason: reason.value } });
  });
  return move;
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

function stateOf({ state, left_seconds: left, outbox_seconds: waited }) {
  const texts = {
    absent: 'no', unknown: 'unknown: Redis does not answer', dead: 'a dead letter',
    scheduled: left > 0 ? `due in ${duration(left)}` : 'due',
    leased: left > 0 ? `claimed; the lease ends in ${duration(left)}` : 'claimed; the lease has ended',
  };
  return waited === null ? texts[state] : `${texts[state]}; in the outbox for ${duration(waited)}`;
}
