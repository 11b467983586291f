// The shop as its customer sees it.

import { request, serverClock } from './api.js';
import { countdown, duration, element, Message, money, number, setText, timeOfDay, wait } from './dom.js';
import { Feed } from './feed.js';

const pageSize = 20;
const mostOrders = 100; // in one answer
const messages = document.getElementById('messages');
const refusal = new Message(messages); // of what was asked for last
const outage = new Message(messages); // while the page cannot be refreshed
const announcer = document.getElementById('announcer');

/* ---- products ---- */

// Purchase is one wish to buy. Its key is kept until it is known what became of it: a second click, a retry
// and a reload repeat the request with it, and the same key makes one order.
class Purchase {
  #slot;
  #key;

  constructor(product, quantity) {
    this.product = product;
    this.quantity = quantity;
    this.#slot = `purchase ${product} ${quantity}`;
    this.#key = JSON.parse(sessionStorage.getItem(this.#slot))?.key ?? randomKey();
  }

  // interrupted are the purchases that were being sent when the page was reloaded.
  static interrupted() {
    return Object.entries({ ...sessionStorage })
      .filter(([slot, kept]) => slot.startsWith('purchase ') && JSON.parse(kept).sending)
      .map(([slot]) => slot.split(' '))
      .map(([, product, quantity]) => new Purchase(product, Number(quantity)));
  }

  #keep(sending) {
    sessionStorage.setItem(this.#slot, JSON.stringify({ key: this.#key, sending }));
  }

  // send places the order, and tries again while the service cannot answer.
  async send() {
    this.#keep(true);
    for (let attempt = 0; ; attempt++) {
      try {
        const order = await this.#place();
        sessionStorage.removeItem(this.#slot);
        return order;
      } catch (failure) {
        if (!failure.passing) {
          sessionStorage.removeItem(this.#slot);
          throw failure;
        }
        if (attempt === 3) {
          this.#keep(false);
          throw failure;
        }
        await wait(500 * 2 ** attempt);
      }
    }
  }

  #place() {
    return request('POST', '/api/orders', {
      headers: { 'Idempotency-Key': this.#key },
      body: { items: [{ product_id: this.product, quantity: this.quantity }] },
    });
  }
}

// randomKey does without crypto.randomUUID, which pages have only over HTTPS or from localhost.
const randomKey = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, '0')).join('');

class ProductCard {
  #stock = element('p', { className: 'stock' });
  #quantity;
  #buy;

  constructor(product) {
    this.id = product.id;
    this.#quantity = element('input', {
      type: 'number', min: 1, max: 1000, value: 1, required: true, inputMode: 'numeric',
      'aria-label': `Quantity of ${product.name}`,
    });
    this.#buy = element('button', { type: 'submit', className: 'primary', 'aria-label': `Buy ${product.name}` }, 'Buy');
    const form = element('form', { className: 'buy' }, this.#quantity, this.#buy);
    // The second click of a double click does not mean a second order.
    this.#buy.addEventListener('click', (event) => event.detail > 1 && event.preventDefault());
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.node = element('li', { className: 'card product' },
      element('div', {},
        element('h3', {}, product.name),
        element('p', { className: 'price' }, money(product.price_cents, product.currency)),
        this.#stock),
      form);
  }

  update(product) {
    const left = product.available;
    setText(this.#stock, left > 0 ? `${number(left)} left` : 'Sold out');
    this.node.classList.toggle('sold-out', left === 0);
    this.#buy.disabled = left === 0;
    this.#quantity.disabled = left === 0;
  }

  async #submit() {
    if (this.#buy.getAttribute('aria-disabled') === 'true') {
      return;
    }
    this.#buy.setAttribute('aria-disabled', 'true'); // and not disabled, which would take the focus away
    try {
      await buy(new Purchase(this.id, this.#quantity.valueAsNumber));
      this.#quantity.value = 1;
    } finally {
      this.#buy.setAttribute('aria-disabled', 'false');
    }
  }
}

async function buy(purchase) {
  refusal.clear();
  try {
    const order = await purchase.send();
    orders.put(order);
    orders.show(order.id);
    announcer.textContent = `Ordered: ${summary(order)}. Pay by ${timeOfDay(order.expires_at)}.`;
  } catch (failure) {
    refusal.show(failure.passing
      ? `${failure.message} Your order may or may not be placed: to try again is safe, it is placed once.`
      : failure.message);
  }
  products.refresh();
}

class Products {
  #list = document.getElementById('products');
  #cards = new Map();

  refresh = throttled(async () => {
    const { items } = await request('GET', '/api/products');
    if (items.length === 0) {
      this.#list.replaceChildren(element('li', { className: 'empty' }, 'Nothing is on sale.'));
      this.#cards.clear();
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
        element('div', {}, title, element('p', { className: 'hint' }, `${amount} · ordered at ${timeOfDay(order.created_at)}`)),
        element('div', { className: 'order-state' }, this.#left, this.#state)),
      this.#bar, this.#words, this.#actions, this.#details);
    this.title = title;
  }

  get order() {
    return this.#order;
  }

  update(order) {
    const before = this.#order;
    this.#order = order;
    if (before?.status === order.status) {
      return;
    }
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
    const overdue = Math.floor(-left / 1000);
    if (left < -500 && overdue !== this.#overdueSince) {
      this.#overdueSince = overdue;
      orders.refresh();
    }
  }

  async #do(action) {
    setText(this.#words, '');
    this.#pay.setAttribute('aria-disabled', 'true');
    this.#cancel.setAttribute('aria-disabled', 'true');
    try {
      this.update(await request('POST', `/api/orders/${this.#order.id}/${action}`));
    } catch (failure) {
      setText(this.#words, failure.message);
      orders.refresh();
    }
    this.#pay.removeAttribute('aria-disabled');
    this.#cancel.removeAttribute('aria-disabled');
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
    return element('li', {}, element('time', { dateTime: at }, timeOfDay(at)), element('span', {}, what));
  }
}

// settled says how an order ended.
function settled(order) {
  if (order.status === 'paid') {
    return `Paid at ${timeOfDay(order.paid_at)}`;
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

  // look looks at one order: the newest are refreshed together, what is further down alone.
  async look(id) {
    this.refresh();
    if (this.#cards.has(id) && this.#cards.size > mostOrders) {
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
    } catch (failure) {
      refusal.show(failure.message);
    }
  }
}

// throttled makes a function that looks at something run one at a time and no oftener than every so many
// milliseconds; what is asked for meanwhile is done once, afterwards. A failure is shown until it succeeds again.
function throttled(look, milliseconds) {
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
        outage.show(failure.message);
      }
      failed = true;
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
};

const feed = new Feed({
  everything() {
    orders.refresh();
    products.refresh();
  },
  order: (id) => orders.look(id),
  products: () => products.refresh(),
  state(state) {
    connection.dataset.state = state;
    setText(connection, states[state]);
  },
});

// signIn makes sure that the browser has a customer's cookie, however long the service takes to answer.
// Scripts cannot see the cookie: that there is one is remembered beside it.
async function signIn() {
  for (;;) {
    try {
      if (!localStorage.getItem('signed up')) {
        await request('POST', '/api/customers');
        localStorage.setItem('signed up', 'yes');
      }
      await request('GET', '/api/orders?limit=1');
      return;
    } catch (failure) {
      if (failure.status === 401) {
        localStorage.removeItem('signed up'); // the cookie is gone or too old, or there are none
      }
      outage.show(failure.message);
    }
    await wait(2000);
  }
}

products.refresh();
await signIn();
outage.clear();
feed.start();
Purchase.interrupted().forEach(buy);
