// The shop as its customer sees it.

import { insist, Problem, request, serverClock } from './api.js';
import { countdown, duration, element, Message, moment, money, number, setText, wait } from './dom.js';
import { Feed } from './feed.js';

const pageSize = 20;
const mostOrders = 100; // in one answer
const messages = document.getElementById('messages');
const refusal = new Message(messages); // of what was asked for last
const announcer = document.getElementById('announcer');

/* ---- products ---- */

// Purchase is one wish to buy. Its key is kept until it is known what became of it: a second click, a retry
// and a reload repeat the request with it, and the same key makes one order.
class Purchase {
  #slot;
  #kept;

  constructor(product, quantity) {
    this.product = product;
    this.quantity = quantity;
    this.#slot = `purchase ${product} ${quantity}`;
    this.#kept = JSON.parse(sessionStorage.getItem(this.#slot));
  }

  // interrupted are the purchases that were being sent when the page was reloaded.
  static interrupted() {
    return Object.entries({ ...sessionStorage })
      .filter(([slot, kept]) => slot.startsWith('purchase ') && JSON.parse(kept).sending)
      .map(([slot]) => slot.split(' '))
      .map(([, product, quantity]) => new Purchase(product, Number(quantity)));
  }

  // send places the order. The key of an earlier try, that was given up, may turn out to have made an order that has
  // ended since: this is another wish then.
  async send() {
    const givenUp = this.#kept && !this.#kept.sending;
    const order = await this.#place(this.#kept?.key ?? randomKey());
    return givenUp && order.status !== 'pending' ? this.#place(randomKey()) : order;
  }

  async #place(key) {
    const keep = (sending) => sessionStorage.setItem(this.#slot, JSON.stringify({ key, sending }));
    keep(true);
    try {
      const order = await insist(() => request('POST', '/api/orders', {
        headers: { 'Idempotency-Key': key },
        body: { items: [{ product_id: this.product, quantity: this.quantity }] },
      }));
      sessionStorage.removeItem(this.#slot);
      return order;
    } catch (failure) {
      if (failure.passing) {
        keep(false);
      } else {
        sessionStorage.removeItem(this.#slot);
      }
      throw failure;
    }
  }
}

// randomKey does without crypto.randomUUID, which pages have only over HTTPS or from localhost.
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
    // The second click of a double click does not mean a second order.
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
    this.#buy.setAttribute('aria-disabled', this.#soldOut); // and not disabled, which would take the focus away
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

// buy tells whether the purchase became an order.
async function buy(purchase) {
  refusal.clear();
  let bought = false;
  try {
    await signedIn;
    const order = await purchase.send();
    bought = true;
    orders.put(order);
    orders.show(order.id);
    announcer.textContent = order.status === 'pending'
      ? `Ordered: ${summary(order)}. Pay by ${moment(order.expires_at)}.`
      : `${summary(order)}: ${settled(order)}.`;
  } catch (failure) {
    refusal.show(failure.passing
      ? `${failure.message} Your order may or may not be placed. Buy again: it is placed once.`
      : failure.message);
    recover(failure);
  }
  products.refresh();
  return bought;
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
      this.#list.replaceChildren(element('li', { className: 'empty' }, 'Nothing is on sale.'));
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
  #left = element('span', { className: 'countdown', role: 'timer' });
  #bar = element('span', { className: 'bar-left', 'aria-hidden': 'true' });
  #words = element('p', { className: 'words', role: 'alert' });
  #pay;
  #cancel;
  #actions;
  #timeline = element('ol', { className: 'timeline' });
  #details;
  #overdueSince = 0;
  #busy = false;
  #warned = Infinity;

  constructor(order) {
    const what = summary(order);
    const amount = money(order.total_cents, order.currency);
    this.#pay = element('button', { type: 'button', className: 'primary', onclick: () => this.#do('pay') },
      `Pay ${amount}`, element('span', { className: 'visually-hidden' }, ` for ${what}`));
    this.#cancel = element('button', { type: 'button', onclick: () => this.#do('cancel') },
      'Cancel', element('span', { className: 'visually-hidden' }, ` the order of ${what}`));
    this.#actions = element('div', { className: 'row' }, this.#pay, this.#cancel);
    this.#details = element('details', { ontoggle: () => this.#showTimeline() },
      element('summary', {}, 'Timeline', element('span', { className: 'visually-hidden' }, ` of the order of ${what}`)), this.#timeline);
    const title = element('h3', { tabIndex: -1 }, what);
    this.node = element('li', { className: 'card order', 'data-order': order.id },
      element('div', { className: 'order-head' },
        element('div', {}, title, element('p', { className: 'hint' }, `${amount} · ordered at ${moment(order.created_at)}`)),
        element('div', { className: 'order-state' }, this.#left, this.#state)),
      this.#bar, this.#actions, this.#words, this.#details);
    this.title = title;
  }

  get order() {
    return this.#order;
  }

  update(order) {
    const before = this.#order;
    if (before && (before.status === order.status || before.status !== 'pending')) {
      return; // an answer from before the order ended may come after it
    }
    this.#order = order;
    const pending = order.status === 'pending';
    const focused = this.#actions.contains(document.activeElement);
    this.node.dataset.status = order.status;
    this.#actions.hidden = !pending;
    this.#left.hidden = !pending;
    this.#bar.hidden = !pending;
    if (focused && !pending) {
      this.title.focus(); // not back to the top of the page
    }
    if (!pending) {
      setText(this.#state, settled(order));
    }
    if (before) {
      setText(this.#words, '');
      announcer.textContent = `${summary(order)}: ${settled(order)}.`;
      this.#showTimeline();
    }
    this.tick();
  }

  // tick shows the time that is left. It asks the service itself when the deadline has passed and no hint
  // came that the order is cancelled.
  tick() {
    if (this.#order.status !== 'pending') {
      return;
    }
    const deadline = Date.parse(this.#order.expires_at);
    const left = deadline - serverClock.now();
    setText(this.#left, countdown(left));
    setText(this.#state, left > 0 ? 'left to pay' : 'The deadline has passed. The order is being cancelled.');
    const whole = deadline - Date.parse(this.#order.created_at);
    this.#bar.style.setProperty('--left', Math.max(0, Math.min(1, left / whole)).toFixed(4));
    this.#warn(left / 1000);
    const overdue = Math.floor(-left / 1000);
    if (left < -500 && overdue !== this.#overdueSince) {
      this.#overdueSince = overdue;
      orders.look(this.#order.id);
    }
  }

  // warn tells who does not see the countdown.
  #warn(seconds) {
    const mark = [10, 60].find((mark) => seconds > 0 && seconds <= mark);
    if (mark < this.#warned) {
      this.#warned = mark;
      announcer.textContent = `${summary(this.#order)}: ${Math.ceil(seconds)} seconds left to pay.`;
    }
  }

  async #do(action) {
    if (this.#busy) {
      return;
    }
    this.#busy = true;
    setText(this.#words, '');
    try {
      this.update(await insist(() => request('POST', `/api/orders/${this.#order.id}/${action}`)));
    } catch (failure) {
      setText(this.#words, failure.passing ? `${failure.message} Try again: it is done once.` : failure.message);
      recover(failure);
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
      this.#timeline.replaceChildren(...items.map((event) => this.#entry(event)));
    } catch (failure) {
      this.#timeline.replaceChildren(element('li', {}, failure.message));
    }
  }

  #entry({ type, actor, at }) {
    const who = { customer: 'by you', worker: 'by the worker', reconciler: 'by the reconciler' }[actor];
    let what = `${type} ${who}`;
    if (actor !== 'customer') {
      what += `, ${duration((Date.parse(at) - Date.parse(this.#order.expires_at)) / 1000)} after the deadline`;
    }
    return element('li', {}, element('time', { dateTime: at }, moment(at)), element('span', {}, what));
  }
}

// settled says how an order ended.
function settled(order) {
  if (order.status === 'paid') {
    return `Paid at ${moment(order.paid_at)}`;
  }
  return order.cancel_reason === 'timeout' ? 'Cancelled: not paid in time' : 'Cancelled by you';
}

class Orders {
  #list = document.getElementById('orders');
  #older = document.getElementById('older');
  #cards = new Map();
  #next = null; // the cursor of what is not shown yet

  constructor() {
    this.#older.addEventListener('click', () => this.#showOlder());
    setInterval(() => this.#tick(), 200);
  }

  #tick() {
    if (serverClock.slept()) {
      this.refresh();
    }
    this.#cards.forEach((card) => card.tick());
  }

  // refresh looks at the orders that are shown, newest first.
  refresh = throttled(async () => {
    const limit = Math.min(Math.max(pageSize, this.#cards.size), mostOrders);
    const page = await request('GET', `/api/orders?limit=${limit}`);
    if (page.next_cursor && !page.items.some((order) => this.#cards.has(order.id))) {
      this.#cards.clear(); // so many are new that some between these and those shown would be missing
    }
    page.items.forEach((order) => this.put(order));
    if (this.#cards.size <= page.items.length) {
      this.#setNext(page.next_cursor);
    }
    if (this.#cards.size === 0) {
      this.#list.replaceChildren(element('li', { className: 'empty' },
        'No orders yet. Buy something, and see what happens if you do not pay.'));
    }
    this.#list.setAttribute('aria-busy', 'false');
  }, 300);

  forget() {
    this.#cards.clear();
    this.#list.replaceChildren();
  }

  // look looks at one order: the newest are refreshed together, what is further down alone.
  async look(id) {
    this.refresh();
    const newer = [...this.#cards.keys()].filter((other) => other > id).length; // ids sort by time
    if (this.#cards.has(id) && newer >= mostOrders) {
      const order = await request('GET', `/api/orders/${id}`).catch(() => null); // the next hint, or click, will tell
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
    } else if (Date.parse(card.order.server_time) <= Date.parse(order.server_time)) { // answers can overtake each other
      card.update(order);
    }
  }

  // show brings an order into view, which on a phone is below the products.
  show(id) {
    this.#cards.get(id).node.scrollIntoView({ block: 'nearest' });
  }

  #insert(card) {
    const id = card.node.dataset.order; // ids sort by time
    const next = [...this.#list.children].find((node) => node.dataset.order < id);
    this.#list.insertBefore(card.node, next ?? null);
  }

  #setNext(cursor) {
    this.#next = cursor;
    this.#older.hidden = cursor === null;
  }

  async #showOlder() {
    try {
      const page = await request('GET', `/api/orders?limit=${pageSize}&cursor=${encodeURIComponent(this.#next)}`);
      page.items.forEach((order) => this.put(order));
      this.#setNext(page.next_cursor);
      this.#cards.get(page.items[0]?.id)?.title.focus();
    } catch (failure) {
      refusal.show(failure.message);
    }
  }
}

// throttled makes a function that looks at something run one at a time and no oftener than every so many
// milliseconds; what is asked for meanwhile is done once, afterwards. A failure is shown until it succeeds again.
function throttled(look, milliseconds) {
  const outage = new Message(messages);
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
      await look();
      if (failed) {
        outage.clear();
      }
      failed = false;
    } catch (failure) {
      if (!failed) {
        outage.show(`Not up to date: ${failure.message}`);
      }
      failed = true;
      recover(failure);
    }
    await wait(milliseconds);
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
const states = {
  live: 'Live',
  reconnecting: 'Reconnecting…',
  polling: 'Redis is away: refreshed every 3 s',
  elsewhere: 'Live in newer tabs, here refreshed every 3 s',
};

const feed = new Feed({
  everything() {
    orders.refresh();
    products.refresh();
  },
  order: (id) => orders.look(id),
  products: () => wait(Math.random() * 500).then(products.refresh), // every open page is told at once
  state(state) {
    connection.dataset.state = state;
    setText(connection, states[state]);
  },
});

// signIn makes sure that the browser has a customer's cookie, however long the service takes to answer.
// Scripts cannot see the cookie: that there is one is remembered beside it.
async function signIn() {
  const trouble = new Message(messages);
  for (let refused = 0; refused < 2; ) {
    try {
      await alone(signUp);
      await request('GET', '/api/orders?limit=1');
      trouble.clear();
      return;
    } catch (failure) {
      if (failure.status === 401) {
        localStorage.removeItem('signed up'); // the cookie is gone, too old, or of another service
        refused++;
        continue;
      }
      if (!(failure instanceof Problem)) {
        break; // the browser keeps nothing for this page, cookies neither
      }
      trouble.show(failure.message);
    }
    await wait(2000);
  }
  trouble.show('This page needs cookies, to know whose orders it shows.');
  await new Promise(() => {}); // there is nothing to wait for
}

async function signUp() {
  if (!localStorage.getItem('signed up')) {
    await request('POST', '/api/customers');
    localStorage.setItem('signed up', 'yes');
  }
}

// alone does something that no other tab does meanwhile, where the browser can tell: over HTTPS and from localhost.
const alone = (act) => navigator.locks?.request('sign up', act) ?? act();

// recover signs in again if that is what is wrong: the cookie is too old, or the service does not know it any more.
let recovering = false;
async function recover(failure) {
  if (failure.status !== 401 || recovering) {
    return;
  }
  recovering = true;
  signedIn = signIn();
  await signedIn;
  recovering = false;
  orders.forget(); // those of another customer
  feed.open();
}

let signedIn = signIn();
products.refresh();
await signedIn;
feed.start();
Purchase.interrupted().forEach(buy);
