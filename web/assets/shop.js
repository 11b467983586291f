// The customers' page.

import { Problem, request, retry, serverClock } from './api.js';
import { element, Message, moment, money, number, setText, sleep } from './dom.js';
import { Notifications } from './notifications.js';
import { OrderCard, outcome, summary } from './order.js';
import { Payments } from './payments.js';

const pageSize = 20;
const maxPageSize = 100; // the API's limit
const messages = document.getElementById('messages');
const actionError = new Message(messages); // of the customer's last action
const announcer = document.getElementById('announcer');

// announce makes screen readers read a text.
function announce(text) {
  announcer.textContent = text;
}

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
    announce(order.status === 'pending'
      ? `Order placed: ${summary(order)}. Pay by ${moment(order.expires_at)}.`
      : `${summary(order)}: ${outcome(order)}.`);
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

class Orders {
  #list = document.getElementById('orders');
  #older = document.getElementById('older');
  #cards = new Map();
  #nextCursor = null; // of the first page that is not shown
  #payments;
  #actions; // the functions of the page that an OrderCard calls

  constructor(payments) {
    this.#payments = payments;
    this.#actions = {
      hasProvider: () => payments.provider,
      put: (order) => this.put(order),
      refresh: (id) => this.refreshOne(id),
      announce,
      acted: (failure) => this.#acted(failure),
    };
    this.#older.addEventListener('click', () => this.#showOlder());
    setInterval(() => this.#tick(), 200);
  }

  #tick() {
    if (serverClock.detectSleep()) {
      this.refresh();
    }
    this.#cards.forEach((card) => card.tick());
  }

  // refresh requests the newest orders, as many as are shown, or as many as one answer can hold. Then it requests the
  // payments of all orders that are shown.
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
    await this.#refreshPayments();
  }, 300);

  async #refreshPayments() {
    if (!this.#payments.provider || this.#cards.size === 0) {
      return;
    }
    const shown = [...this.#cards]; // without the orders that are placed meanwhile
    const oldest = shown.map(([, card]) => card.order.created_at).reduce((a, b) => (Date.parse(a) < Date.parse(b) ? a : b));
    await this.#payments.refresh(oldest);
    shown.forEach(([id, card]) => card.updatePayments(this.#payments.of(id)));
  }

  clear() {
    this.#cards.clear();
    this.#list.replaceChildren();
  }

  // refreshOne refreshes the newest orders and the payments. If the order id is shown but not among the newest, it
  // requests the order alone.
  async refreshOne(id) {
    this.refresh();
    this.#cards.get(id)?.showTimeline(); // a reminder changes nothing else
    const newer = [...this.#cards.keys()].filter((other) => other > id).length; // ids sort by time
    if (this.#cards.has(id) && newer >= maxPageSize) {
      const order = await request('GET', `/api/orders/${id}`).catch(() => null); // the next tick or notification retries
      order && this.put(order);
    }
  }

  put(order) {
    let card = this.#cards.get(order.id);
    if (!card) {
      card = new OrderCard(order, this.#actions);
      if (this.#cards.size === 0) {
        this.#list.replaceChildren();
      }
      this.#cards.set(order.id, card);
      this.#insert(card);
    } else if (Date.parse(card.order.server_time) <= Date.parse(order.server_time)) { // answers may arrive out of order
      card.update(order);
    }
  }

  // show scrolls to an order. On a phone the orders are below the products.
  show(id) {
    this.#cards.get(id).node.scrollIntoView({ block: 'nearest' });
  }

  // acted is called after each action on an order. The error is null if the action succeeded.
  #acted(failure) {
    if (failure) {
      signInAgain(failure);
      this.refresh();
    }
    products.refresh();
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
      this.refresh(); // for their payments
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
const payments = new Payments();
const orders = new Orders(payments);

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

// signIn ensures that the browser has a customer's valid cookie, and learns whether the service has a payment provider.
// It retries until the service answers. Scripts cannot read the cookie, so localStorage records that there is one.
async function signIn() {
  const signInError = new Message(messages);
  for (let rejections = 0; rejections < 2; ) {
    try {
      await withSignUpLock(signUp);
      await request('GET', '/api/orders?limit=1');
      await payments.detect();
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
