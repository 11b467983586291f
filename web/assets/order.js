// An order on the customers' page: its texts, its countdown and its buttons.

import { request, retry, serverClock } from './api.js';
import { countdown, duration, element, moment, money, setText } from './dom.js';

export const summary = (order) => order.items.map((item) => (item.quantity > 1 ? `${item.quantity} × ${item.name}` : item.name)).join(', ');

// outcome describes how an order ended.
export function outcome(order) {
  if (order.status === 'paid') {
    return `Paid at ${moment(order.paid_at)}`;
  }
  return order.cancel_reason === 'timeout' ? 'Cancelled: not paid in time' : 'Cancelled by you';
}

// phase returns where an order is in its life:
//
//   payable  the customer can pay it
//   held     the deadline has passed, but the order is held while the customer pays it elsewhere
//   due      it is cancelled at any moment
//   ended    it is paid or cancelled
function phase(order, now) {
  if (order.status !== 'pending') {
    return 'ended';
  }
  if (now >= Date.parse(order.due_at)) {
    return 'due';
  }
  return now < Date.parse(order.expires_at) ? 'payable' : 'held';
}

// refreshEvery is how often a card requests its order, in ms, when the order may change at any moment. It does not rely
// on the notification of the change, which may be lost.
const refreshEvery = { due: 1000, held: 3000 };

// counted returns the times from and to which the countdown counts. It returns none while the countdown is hidden.
function counted(order, phase, openUntil) {
  switch (phase) {
    case 'payable':
    case 'due':
      return [order.created_at, order.expires_at];
    case 'held':
      return [order.expires_at, openUntil ?? order.hold_until];
    default:
      return [];
  }
}

// stateText is the text below the countdown.
function stateText(order, phase, millisecondsLeft) {
  switch (phase) {
    case 'payable':
      return timeLeftText(millisecondsLeft, remindBefore(order));
    case 'held':
      return 'The deadline has passed.';
    case 'due':
      return 'The deadline has passed. The order is being cancelled.';
    default:
      return outcome(order);
  }
}

// remindBefore is how long before the deadline the service reminds the customer, in ms.
const remindBefore = ({ created_at: from, expires_at: to }) => Math.min((Date.parse(to) - Date.parse(from)) / 3, 5 * 60_000);

function timeLeftText(left, reminder) {
  if (left > reminder) {
    return 'left to pay';
  }
  return left > 60_000 ? `Only ${minutes(left)} left to pay` : 'Only seconds left to pay';
}

function minutes(milliseconds) {
  const n = Math.ceil(milliseconds / 60_000);
  return n === 1 ? '1 minute' : `${n} minutes`;
}

// OrderCard shows one order. The page that it is on must have these methods:
//
//   put(order)        shows the newest state of an order
//   refresh(id)       requests the order
//   announce(text)    makes screen readers read a text
//   acted(failure)    is called after each action of the customer, with the error if it failed
//   newWayToPay(card) returns a way to pay the card's order, or null if the customer can pay it only at once
//
// A way to pay holds the order. It must have these members:
//
//   buttons                      its buttons and links
//   showButtons(order, payable)  shows or hides them
//   openUntil                    the time until which the customer can still pay in the phase held, or undefined
//   release(order)               ends the hold of the order, or throws the reason why it cannot
//   stateText(order, phase)      returns the text below the countdown, or undefined for the card's own text
//   noteTexts(order, phase)      returns the texts below the bar
//   eventTexts(event)            returns its texts for an event of the audit trail: what happened, and by whom. If one is
//                                undefined, the card uses its own.
export class OrderCard {
  #page;
  #order;
  #phase = '';
  #texts = []; // of the state and of the notes, as they are shown
  #busy = false;
  #refreshAt = Infinity;
  #announcedMark = Infinity; // in ms before the deadline

  #state = element('p', { className: 'state' });
  #countdown = element('span', { className: 'countdown', role: 'timer' });
  #bar = element('span', { className: 'bar-left', 'aria-hidden': 'true' });
  #notes = element('ul', { className: 'notes' });
  #error = element('p', { className: 'error', role: 'alert' });
  #wayToPay;
  #pay; // at once, if the service lets customers do so
  #extend;
  #cancel;
  #actions;
  #timeline = element('ol', { className: 'timeline' });
  #details;

  constructor(order, page) {
    this.#page = page;
    this.#order = order;
    const items = summary(order);
    const amount = money(order.total_cents, order.currency);
    const of = (text) => element('span', { className: 'visually-hidden' }, text);
    const button = (action, text, properties) => element('button', { type: 'button', 'data-action': action, ...properties }, text, of(` for ${items}`));
    this.#wayToPay = page.newWayToPay(this);
    const pay = { onclick: () => this.#send('pay') };
    this.#pay = this.#wayToPay
      ? button('pay-at-once', 'Pay with store credit', pay)
      : button('pay', `Pay ${amount}`, { className: 'primary', ...pay });
    this.#extend = button('extend', element('span'), { onclick: () => this.#send('extend') });
    this.#cancel = element('button', { type: 'button', 'data-action': 'cancel', onclick: () => this.#cancelOrder() }, 'Cancel', of(` the order of ${items}`));
    this.#actions = element('div', { className: 'row' }, ...(this.#wayToPay?.buttons ?? []), this.#pay, this.#extend, this.#cancel);
    this.#details = element('details', { ontoggle: () => this.showTimeline() },
      element('summary', {}, 'Timeline', of(` of the order of ${items}`)), this.#timeline);
    this.title = element('h3', { tabIndex: -1 }, items);
    this.node = element('li', { className: 'card order', 'data-order': order.id },
      element('div', { className: 'order-head' },
        element('div', {}, this.title, element('p', { className: 'hint' }, `${amount} · ordered at ${moment(order.created_at)}`)),
        element('div', { className: 'order-state' }, this.#countdown, this.#state)),
      this.#bar, this.#notes, this.#actions, this.#error, this.#details);
    this.show(false);
  }

  get order() {
    return this.#order;
  }

  update(order) {
    const before = this.#order;
    if (before.status !== 'pending') {
      return; // an order that has ended does not change again: the answer is old
    }
    this.#order = order;
    if (order.expires_at !== before.expires_at) {
      this.#announcedMark = Infinity;
    }
    if (['status', 'expires_at', 'hold_until'].some((name) => order[name] !== before[name])) {
      this.showTimeline();
    }
    if (order.status !== before.status) {
      setText(this.#error, '');
    }
    this.show(true);
  }

  // refresh requests the order.
  refresh() {
    this.#page.refresh(this.#order.id);
  }

  // tick shows the time left.
  tick() {
    this.show(true);
    if (serverClock.now() >= this.#refreshAt) {
      this.#refreshAt = serverClock.now() + refreshEvery[this.#phase];
      this.refresh();
    }
  }

  // show shows the order at the present time. If announce is true, screen readers read the new texts.
  show(announce) {
    const now = serverClock.now();
    const at = phase(this.#order, now);
    const openUntil = this.#wayToPay?.openUntil;
    const [from, to] = counted(this.#order, at, openUntil).map((time) => Date.parse(time));
    const left = to - now;
    if (at !== this.#phase) {
      this.#phase = at;
      this.#refreshAt = refreshEvery[at] ? now + 500 : Infinity;
    }
    this.node.dataset.status = this.#order.status;
    this.node.dataset.phase = at;
    this.#showTimeLeft(left, to - from);
    this.#showTexts(this.#wayToPay?.stateText(this.#order, at) ?? stateText(this.#order, at, left),
      this.#wayToPay?.noteTexts(this.#order, at) ?? [], announce);
    this.#showActions(openUntil);
    if (at === 'payable') {
      this.#announceTimeLeft(left);
    }
  }

  // showTimeLeft shows how much is left of a number of milliseconds, or nothing if the countdown is hidden.
  #showTimeLeft(left, of) {
    const hidden = Number.isNaN(left);
    this.#countdown.hidden = hidden;
    this.#bar.hidden = hidden;
    if (!hidden) {
      setText(this.#countdown, countdown(left));
      this.#bar.style.setProperty('--left', Math.max(0, Math.min(1, left / of)).toFixed(4));
    }
    this.#state.classList.toggle('urgent', this.#phase === 'payable' && left <= remindBefore(this.#order));
  }

  #showTexts(state, notes, announce) {
    const before = this.#texts;
    this.#texts = [state, ...notes];
    if (this.#texts.join() === before.join()) {
      return;
    }
    setText(this.#state, state);
    this.#notes.replaceChildren(...notes.map((text) => element('li', {}, text)));
    const news = this.#texts.filter((text) => !before.includes(text) && !text.endsWith('left to pay'));
    if (announce && news.length > 0) {
      this.#announce(news.map((text) => text.replace(/\.?$/, '.')).join(' '));
    }
  }

  #showActions(openUntil) {
    const { hold_until: holdUntil, extension_seconds: extension, extensions_left: left, pay_at_once: payAtOnce } = this.#order;
    // The service's clock decides whether the deadline has passed, so the buttons stay until the order is cancelled.
    const payable = this.#phase === 'payable' || (this.#phase === 'due' && !holdUntil);
    if (extension) {
      const by = extension % 60 === 0 ? minutes(extension * 1000) : duration(extension);
      setText(this.#extend.firstChild, `Extend by ${by} (${left} ${left === 1 ? 'extension' : 'extensions'} left)`);
    }
    const focused = this.#actions.contains(document.activeElement) ? document.activeElement : null;
    const open = this.#phase === 'held' && openUntil !== undefined;
    this.#wayToPay?.showButtons(this.#order, payable || open);
    this.#pay.hidden = !payable || !payAtOnce;
    this.#extend.hidden = !payable || !extension;
    this.#cancel.hidden = !payable && !open;
    this.#actions.hidden = !payable && !open;
    if (focused?.hidden) {
      const link = this.#wayToPay?.buttons.find((button) => button.matches('a:not([hidden])'));
      (link ?? this.title).focus(); // otherwise the focus returns to the top of the page
    }
  }

  // announceTimeLeft announces to screen readers the reminder, that a minute is left, and that ten seconds are left.
  #announceTimeLeft(left) {
    const mark = [10_000, 60_000, remindBefore(this.#order)].sort((a, b) => a - b).find((mark) => left > 0 && left <= mark);
    if (mark < this.#announcedMark) {
      this.#announcedMark = mark;
      this.#announce(`${left > 60_000 ? minutes(left) : `${Math.ceil(left / 1000)} seconds`} left to pay.`);
    }
  }

  #announce(text) {
    this.#page.announce(`${summary(this.#order)}: ${text}`);
  }

  #send(action) {
    return this.act(async () => {
      const send = () => request('POST', `/api/orders/${this.#order.id}/${action}`);
      this.#page.put(await (action === 'extend' ? send() : retry(send))); // each request extends the deadline again
    }, action === 'extend' ? '' : ' Try again.');
  }

  // cancelOrder ends the hold of the order, which another tab may have begun, and cancels the order. If the deadline
  // has passed, the timeout cancels it.
  #cancelOrder() {
    return this.act(async () => {
      const late = this.#phase === 'held';
      await this.#wayToPay?.release(this.#order);
      if (!late) {
        this.#page.put(await retry(() => request('POST', `/api/orders/${this.#order.id}/cancel`)));
      }
    });
  }

  get busy() {
    return this.#busy;
  }

  // act does what a button is for, unless the card is busy. After a transient failure it requests the order, so that
  // the customer sees whether the action took effect, and adds the advice to the problem's text.
  async act(action, advice = ' Try again.') {
    if (this.#busy) {
      return;
    }
    this.#busy = true;
    setText(this.#error, '');
    let failed = null;
    try {
      await action();
    } catch (failure) {
      failed = failure;
      setText(this.#error, failure.transient ? failure.message + advice : failure.message);
      if (failure.transient) {
        this.refresh();
      }
    }
    this.#busy = false;
    this.#page.acted(failed);
  }

  // showTimeline requests and shows the order's audit trail if the customer has opened it.
  async showTimeline() {
    if (!this.#details.open) {
      return;
    }
    try {
      const { items } = await request('GET', `/api/orders/${this.#order.id}/events`);
      this.#timeline.replaceChildren(...items.map((event) =>
        element('li', {}, element('time', { dateTime: event.at }, moment(event.at)), element('span', {},
          eventText(event, this.#order, this.#wayToPay?.eventTexts(event))))));
    } catch (failure) {
      this.#timeline.replaceChildren(element('li', {}, failure.message));
    }
  }
}

const actors = { customer: 'by you', operator: 'by the shop' };

const events = {
  reminded: 'reminder sent',
};

// eventText describes an event of the order's audit trail. The texts of a way to pay replace its own.
function eventText({ type, actor, at, deadline, reason }, order, { what, by } = {}) {
  if (type === 'rescheduled') {
    return `deadline moved to ${moment(deadline)} ${actors[actor]}${reason ? `: ${reason}` : ''}`;
  }
  const late = type === 'cancelled' && actor !== 'customer' ? lateness(at, order) : '';
  return `${what ?? events[type] ?? type} ${by ?? actors[actor] ?? `by the ${actor}`}${late}`;
}

// lateness tells how long an order was overdue when it was cancelled at a time.
function lateness(at, order) {
  const after = order.hold_until ? 'the end of the hold' : 'the deadline';
  return `, ${duration((Date.parse(at) - Date.parse(order.due_at)) / 1000)} after ${after}`;
}
