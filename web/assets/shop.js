// The customers' page.

import { Problem, request, retry, serverClock } from './api.js';
import { countdown, duration, element, Message, moment, money, number, setText, sleep } from './dom.js';
import { Notifications } from './notifications.js';

const pageSize = 20;
const maxPageSize = 100; // the API's limit
const messages = document.getElementById('messages');
const actionError = new Message(messages); // of the customer's last action
const announcer = document.getElementById('announcer');

/* ---- products ---- */

// Purchase places one order. It saves the request's idempotency key until an answer tells the outcome. A second click,
// a retry and a reload repeat the request with the saved key, and the service places one order for a key.
class Purchase {
  #storageKey;
  #saved; // {key, sending} of a request without an answer; null if there is none

  constructor(product, quantity) {
    this.product = product;
    this.quantity = quantity;
    this.#storageKey = `purchase ${product} ${quantity}`;
    this.#saved = JSON.parse(sessionStorage.getItem(this.#storageKey));
  }

  // interrupted returns the purchases whose requests a reload of the page interrupted.
  static interrupted() {
    return Object.entries({ ...sessionStorage })
      .filter(([storageKey, saved]) => storageKey.startsWith('purchase ') && JSON.parse(saved).sending)
      .map(([storageKey]) => storageKey.split(' '))
      .map(([, product, quantity]) => new Purchase(product, Number(quantity)));
  }

  // send places the order. If the page gave up an earlier request, the saved key may belong to an order that was placed
  // and has ended since. Then the customer wants another order, so send places one with a new key.
  async send() {
    const givenUp = this.#saved && !this.#saved.sending;
    const order = await this.#place(this.#saved?.key ?? randomKey());
    return givenUp && order.status !== 'pending' ? this.#place(randomKey()) : order;
  }

  async #place(key) {
    const save = (sending) => sessionStorage.setItem(this.#storageKey, JSON.stringify({ key, sending }));
    save(true);
    try {
      const order = await retry(() => request('POST', '/api/orders', {
        headers: { 'Idempotency-Key': key },
        body: { items: [{ product_id: this.product, quantity: this.quantity }] },
      }));
      sessionStorage.removeItem(this.#storageKey);
      return order;
    } catch (failure) {
      if (failure.transient) {
        save(false);
      } else {
        sessionStorage.removeItem(this.#storageKey);
      }
      throw failure;
    }
  }
}

// randomKey does not use crypto.randomUUID, which browsers provide only over HTTPS and on localhost.
const randomKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, '0')).join('');

class ProductCard {
  #name = element('h3');
  #price = element('p', { className: 'price' });
  #stock = element('p', { className: 'stock' });
  #soldOut = false;
  #quantity;
  #buy;
  #busy = false;

  constructor(product) {
    this.id = product.id;
    this.#quantity = element('input', {
      type: 'number', min: 1, max: 1000, value: 1, required: true, inputMode: 'numeric',
    });
    this.#buy = element('button', { type: 'submit', className: 'primary' }, 'Buy');
    const form = element('form', { className: 'buy' }, this.#quantity, this.#buy);
    // The second click of a double click must not place a second order.
    this.#buy.addEventListener('click', (event) => event.detail > 1 && event.preventDefault());
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.node = element('li', { className: 'card product' }, element('div', {}, this.#name, this.#price, this.#stock), form);
  }

  update(product) {
    const left = product.available;
    setText(this.#name, product.name);
    setText(this.#price, money(product.price_cents, product.currency));
    setText(this.#stock, left > 0 ? `${number(left)} left` : 'Sold out');
    this.#quantity.setAttribute('aria-label', `Quantity of ${product.name}`);
    this.#buy.setAttribute('aria-label', `Buy ${product.name}`);
    this.#soldOut = left === 0;
    this.#buy.setAttribute('aria-disabled', this.#soldOut); // not the property disabled: it would remove the focus
    this.#quantity.readOnly = this.#soldOut;
  }

  async #submit() {
    if (this.#busy || this.#soldOut) {
      return;
    }
    this.#busy = true;
    if (await buy(new Purchase(this.id, this.#quantity.valueAsNumber))) {
      this.#quantity.value = 1;
    }
    this.#busy = false;
  }
}

// buy places the order of a purchase, and reports whether it was placed.
async function buy(purchase) {
  actionError.clear();
  let placed = false;
  try {
    await signedIn;
    const order = await purchase.send();
    placed = true;
    orders.put(order);
    orders.show(order.id);
    announcer.textContent = order.status === 'pending'
      ? `Order placed: ${summary(order)}. Pay by ${moment(order.expires_at)}.`
      : `${summary(order)}: ${outcome(order)}.`;
  } catch (failure) {
    actionError.show(failure.transient
      ? `${failure.message} Your order may or may not be placed. Press Buy again: it will not be placed twice.`
      : failure.message);
    signInAgain(failure);
  }
  products.refresh();
  return placed;
}

class Products {
  #list = document.getElementById('products');
  #cards = new Map();

  refresh = throttled(async () => {
    const { items } = await request('GET', '/api/products');
    for (const [id, card] of this.#cards) {
      if (!items.some((item) => item.id === id)) {
        card.node.remove();
        this.#cards.delete(id);
      }
    }
    if (items.length === 0) {
      this.#list.replaceChildren(element('li', { className: 'empty' }, 'There are no products.'));
    }
    for (const item of items) {
      if (!this.#cards.has(item.id)) {
        if (this.#cards.size === 0) {
          this.#list.replaceChildren();
        }
        const card = new ProductCard(item);
        this.#cards.set(item.id, card);
        this.#list.append(card.node);
      }
      this.#cards.get(item.id).update(item);
    }
    this.#list.setAttribute('aria-busy', 'false');
  }, 500);
}

/* ---- orders ---- */

const summary = (order) => order.items.map((item) => (item.quantity > 1 ? `${item.quantity} × ${item.name}` : item.name)).join(', ');

class OrderCard {
  #order;
  #state = element('p', { className: 'state' });
  #countdown = element('span', { className: 'countdown', role: 'timer' });
  #bar = element('span', { className: 'bar-left', 'aria-hidden': 'true' });
  #error = element('p', { className: 'error', role: 'alert' });
  #pay;
  #cancel;
  #actions;
  #timeline = element('ol', { className: 'timeline' });
  #details;
  #overdueSeconds = 0; // how long the order was overdue when it was last requested
  #busy = false;
  #announcedMark = Infinity; // in seconds before the deadline

  constructor(order) {
    const items = summary(order);
    const amount = money(order.total_cents, order.currency);
    this.#pay = element('button', { type: 'button', className: 'primary', onclick: () => this.#send('pay') },
      `Pay ${amount}`, element('span', { className: 'visually-hidden' }, ` for ${items}`));
    this.#cancel = element('button', { type: 'button', onclick: () => this.#send('cancel') },
      'Cancel', element('span', { className: 'visually-hidden' }, ` the order of ${items}`));
    this.#actions = element('div', { className: 'row' }, this.#pay, this.#cancel);
    this.#details = element('details', { ontoggle: () => this.#showTimeline() },
      element('summary', {}, 'Timeline', element('span', { className: 'visually-hidden' }, ` of the order of ${items}`)), this.#timeline);
    const title = element('h3', { tabIndex: -1 }, items);
    this.node = element('li', { className: 'card order', 'data-order': order.id },
      element('div', { className: 'order-head' },
        element('div', {}, title, element('p', { className: 'hint' }, `${amount} · ordered at ${moment(order.created_at)}`)),
        element('div', { className: 'order-state' }, this.#countdown, this.#state)),
      this.#bar, this.#actions, this.#error, this.#details);
    this.title = title;
  }

  get order() {
    return this.#order;
  }

  update(order) {
    const before = this.#order;
    if (before && (before.status === order.status || before.status !== 'pending')) {
      return; // an order that has ended does not change again: the answer is old
    }
    this.#order = order;
    const pending = order.status === 'pending';
    const focused = this.#actions.contains(document.activeElement);
    this.node.dataset.status = order.status;
    this.#actions.hidden = !pending;
    this.#countdown.hidden = !pending;
    this.#bar.hidden = !pending;
    if (focused && !pending) {
      this.title.focus(); // otherwise the focus returns to the top of the page
    }
    if (!pending) {
      setText(this.#state, outcome(order));
    }
    if (before) {
      setText(this.#error, '');
      announcer.textContent = `${summary(order)}: ${outcome(order)}.`;
      this.#showTimeline();
    }
    this.tick();
  }

  // tick shows the time left. Once the deadline has passed, it requests the order every second, because the
  // notification of the cancellation may be lost.
  tick() {
    if (this.#order.status !== 'pending') {
      return;
    }
    const deadline = Date.parse(this.#order.expires_at);
    const left = deadline - serverClock.now();
    setText(this.#countdown, countdown(left));
    setText(this.#state, left > 0 ? 'left to pay' : 'The deadline has passed. The order is being cancelled.');
    const whole = deadline - Date.parse(this.#order.created_at);
    this.#bar.style.setProperty('--left', Math.max(0, Math.min(1, left / whole)).toFixed(4));
    this.#announceTimeLeft(left / 1000);
    const overdue = Math.floor(-left / 1000);
    if (left < -500 && overdue !== this.#overdueSeconds) {
      this.#overdueSeconds = overdue;
      orders.refreshOne(this.#order.id);
    }
  }

  // announceTimeLeft announces to screen readers that a minute is left, and that ten seconds are left.
  #announceTimeLeft(seconds) {
    const mark = [10, 60].find((mark) => seconds > 0 && seconds <= mark);
    if (mark < this.#announcedMark) {
      this.#announcedMark = mark;
      announcer.textContent = `${summary(this.#order)}: ${Math.ceil(seconds)} seconds left to pay.`;
    }
  }

  async #send(action) {
    if (this.#busy) {
      return;
    }
    this.#busy = true;
    setText(this.#error, '');
    try {
      this.update(await retry(() => request('POST', `/api/orders/${this.#order.id}/${action}`)));
    } catch (failure) {
      setText(this.#error, failure.transient ? `${failure.message} Try again: a repeated request takes effect only once.` : failure.message);
      signInAgain(failure);
      orders.refresh();
    }
    this.#busy = false;
    products.refresh();
  }

  async #showTimeline() {
    if (!this.#details.open) {
      return;
    }
    try {
      const { items } = await request('GET', `/api/orders/${this.#order.id}/events`);
      this.#timeline.replaceChildren(...items.map((event) => this.#timelineEntry(event)));
    } catch (failure) {
      this.#timeline.replaceChildren(element('li', {}, failure.message));
    }
  }

  #timelineEntry({ type, actor, at }) {
    const by = { customer: 'by you', worker: 'by the worker', reconciler: 'by the reconciler' }[actor];
    let text = `${type} ${by}`;
    if (actor !== 'customer') {
      text += `, ${duration((Date.parse(at) - Date.parse(this.#order.expires_at)) / 1000)} after the deadline`;
    }
    return element('li', {}, element('time', { dateTime: at }, moment(at)), element('span', {}, text));
  }
}

// outcome describes how an order ended.
function outcome(order) {
  if (order.status === 'paid') {
    return `Paid at ${moment(order.paid_at)}`;
  }
  return order.cancel_reason === 'timeout' ? 'Cancelled: not paid in time' : 'Cancelled by you';
}

class Orders {
  #list = document.getElementById('orders');
  #older = document.getElementById('older');
  #cards = new Map();
  #nextCursor = null; // of the first page that is not shown

  constructor() {
    this.#older.addEventListener('click', () => this.#showOlder());
    setInterval(() => this.#tick(), 200);
  }

  #tick() {
    if (serverClock.detectSleep()) {
      this.refresh();
    }
    this.#cards.forEach((card) => card.tick());
  }

  // refresh requests the newest orders: as many as are shown, or as many as one answer can hold.
  refresh = throttled(async () => {
    const limit = Math.min(Math.max(pageSize, this.#cards.size), maxPageSize);
    const page = await request('GET', `/api/orders?limit=${limit}`);
    if (page.next_cursor && !page.items.some((order) => this.#cards.has(order.id))) {
      this.#cards.clear(); // all are new: there may be further orders between them and those shown
    }
    page.items.forEach((order) => this.put(order));
    if (this.#cards.size <= page.items.length) {
      this.#setNextCursor(page.next_cursor);
    }
    if (this.#cards.size === 0) {
      this.#list.replaceChildren(element('li', { className: 'empty' },
        'No orders yet. Buy a product, and watch what happens if you do not pay.'));
    }
    this.#list.setAttribute('aria-busy', 'false');
  }, 300);

  clear() {
    this.#cards.clear();
    this.#list.replaceChildren();
  }

  // refreshOne refreshes the newest orders. If the order id is shown but not among them, it requests the order alone.
  async refreshOne(id) {
    this.refresh();
    const newer = [...this.#cards.keys()].filter((other) => other > id).length; // ids sort by time
    if (this.#cards.has(id) && newer >= maxPageSize) {
      const order = await request('GET', `/api/orders/${id}`).catch(() => null); // the next tick or notification retries
      order && this.put(order);
    }
  }

  put(order) {
    let card = this.#cards.get(order.id);
    if (!card) {
      card = new OrderCard(order);
      if (this.#cards.size === 0) {
        this.#list.replaceChildren();
      }
      this.#cards.set(order.id, card);
      card.update(order);
      this.#insert(card);
    } else if (Date.parse(card.order.server_time) <= Date.parse(order.server_time)) { // answers may arrive out of order
      card.update(order);
    }
  }

  // show scrolls to an order. On a phone the orders are below the products.
  show(id) {
    this.#cards.get(id).node.scrollIntoView({ block: 'nearest' });
  }

  #insert(card) {
    const id = card.node.dataset.order; // ids sort by time
    const older = [...this.#list.children].find((node) => node.dataset.order < id);
    this.#list.insertBefore(card.node, older ?? null);
  }

  #setNextCursor(cursor) {
    this.#nextCursor = cursor;
    this.#older.hidden = cursor === null;
  }

  async #showOlder() {
    try {
      const page = await request('GET', `/api/orders?limit=${pageSize}&cursor=${encodeURIComponent(this.#nextCursor)}`);
      page.items.forEach((order) => this.put(order));
      this.#setNextCursor(page.next_cursor);
      this.#cards.get(page.items[0]?.id)?.title.focus();
    } catch (failure) {
      actionError.show(failure.message);
    }
  }
}

// throttled returns a function that calls load: one call at a time, with a pause of the given milliseconds after each
// call. Calls during a call or its pause are combined into one later call. It shows an error message until a call
// succeeds.
function throttled(load, milliseconds) {
  const loadError = new Message(messages);
  let busy = false;
  let again = false;
  let failed = false;
  return async function run() {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      await load();
      if (failed) {
        loadError.clear();
      }
      failed = false;
    } catch (failure) {
      if (!failed) {
        loadError.show(`Not up to date: ${failure.message} This page tries again automatically.`);
      }
      failed = true;
      signInAgain(failure);
    }
    await sleep(milliseconds);
    busy = false;
    if (again) {
      again = false;
      run();
    }
  };
}

/* ---- the page ---- */

const products = new Products();
const orders = new Orders();

const connection = document.getElementById('connection');
const connectionTexts = {
  live: 'Live',
  reconnecting: 'Reconnecting…',
  polling: 'No live updates: refreshed every 3 s',
  replaced: 'Live in your newer tabs, refreshed every 3 s here',
};

const notifications = new Notifications({
  onChange() {
    orders.refresh();
    products.refresh();
  },
  onOrder: (id) => orders.refreshOne(id),
  // All open pages get this notification at the same time. The random delay spreads their requests.
  onProducts: () => sleep(Math.random() * 500).then(products.refresh),
  onState(state) {
    connection.dataset.state = state;
    setText(connection, connectionTexts[state]);
  },
});

// signIn ensures that the browser has a customer's valid cookie. It retries until the service answers. Scripts cannot
// read the cookie, so localStorage records that there is one.
async function signIn() {
  const signInError = new Message(messages);
  for (let rejections = 0; rejections < 2; ) {
    try {
      await withSignUpLock(signUp);
      await request('GET', '/api/orders?limit=1');
      signInError.clear();
      return;
    } catch (failure) {
      if (failure.status === 401) {
        localStorage.removeItem('signed up'); // the cookie is missing, expired, or signed with another key
        rejections++;
        continue;
      }
      if (!(failure instanceof Problem)) {
        break; // localStorage is denied, so the browser stores no cookies for this page either
      }
      signInError.show(failure.message);
    }
    await sleep(2000);
  }
  signInError.show('This page needs cookies to show your orders. Allow cookies for this site, then reload the page.');
  await new Promise(() => {}); // the rest of the page needs a customer
}

async function signUp() {
  if (!localStorage.getItem('signed up')) {
    await request('POST', '/api/customers');
    localStorage.setItem('signed up', 'yes');
  }
}

// withSignUpLock calls action while no other tab signs up. Browsers provide locks only over HTTPS and on localhost;
// elsewhere it calls action at once.
const withSignUpLock = (action) => navigator.locks?.request('sign up', action) ?? action();

// signInAgain signs in as a new customer if the service has rejected the cookie.
let signingIn = false;
async function signInAgain(failure) {
  if (failure.status !== 401 || signingIn) {
    return;
  }
  signingIn = true;
  signedIn = signIn();
  await signedIn;
  signingIn = false;
  orders.clear(); // they belong to the previous customer
  notifications.connect();
}

let signedIn = signIn();
products.refresh();
await signedIn;
notifications.start();
Purchase.interrupted().forEach(buy);
