// The customers' page.

import { Problem, request, requestedAt, retry, serverClock } from './api.js';
import { addParts, element, Message, moment, money, number, setText, sleep } from './dom.js';
import { OrderCard, outcome, summary } from './order.js';

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
  //
  // waiting is called with the problem before each retry of a request.
  async send(waiting) {
    const givenUp = this.#saved && !this.#saved.sending;
    const order = await this.#place(this.#saved?.key ?? randomKey(), waiting);
    return givenUp && order.status !== 'pending' ? this.#place(randomKey(), waiting) : order;
  }

  async #place(key, waiting) {
    const save = (sending) => sessionStorage.setItem(this.#storageKey, JSON.stringify({ key, sending }));
    save(true);
    try {
      const order = await retry(() => request('POST', '/api/orders', {
        headers: { 'Idempotency-Key': key },
        body: { items: [{ product_id: this.product, quantity: this.quantity }] },
      }), waiting);
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

const few = 5; // units left, of which the customer is warned

function stockText(left) {
  if (left === 0) {
    return 'Sold out';
  }
  return left > few ? `${number(left)} left` : `Only ${left} left`;
}

class ProductCard {
  #product;
  #name = element('h3');
  #price = element('p', { className: 'price' });
  #stock = element('p', { className: 'stock' });
  #quantity;
  #buy;
  #busy = false;

  // missed is the latest purchase that was rejected because too few units were left: its quantity, the time of the
  // rejection (a value of performance.now()), and what the note says: 'rejected', 'sold out', 'few' or 'back'.
  #missed = null;
  #note = element('p');
  #order = element('button', { type: 'button', onclick: () => this.#send(this.#orderable()) });
  #noteRow = element('div', { className: 'missed', hidden: true }, this.#note, this.#order);

  constructor(product) {
    this.#product = product;
    this.#quantity = element('input', {
      type: 'number', min: 1, max: 1000, value: 1, required: true, inputMode: 'numeric',
    });
    this.#buy = element('button', { type: 'submit', className: 'primary' }, 'Buy');
    const form = element('form', { className: 'buy' }, this.#quantity, this.#buy);
    // The second click of a double click must not place a second order.
    this.#buy.addEventListener('click', (event) => event.detail > 1 && event.preventDefault());
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      if (await this.#send(this.#quantity.valueAsNumber)) {
        this.#quantity.value = 1;
      }
    });
    this.node = element('li', { className: 'card product', 'data-product': product.id },
      element('div', { className: 'product-head' }, element('div', {}, this.#name, this.#price, this.#stock), form), this.#noteRow);
  }

  get name() {
    return this.#product.name;
  }

  // update shows a product of an answer to a request that was sent at requestedAt, a value of performance.now().
  update(product, requestedAt) {
    this.#product = product;
    const left = product.available;
    setText(this.#name, product.name);
    setText(this.#price, money(product.price_cents, product.currency));
    setText(this.#stock, stockText(left));
    this.node.dataset.stock = left === 0 ? 'none' : left > few ? 'enough' : 'few';
    this.#quantity.setAttribute('aria-label', `Quantity of ${product.name}`);
    this.#buy.setAttribute('aria-label', `Buy ${product.name}`);
    this.#buy.setAttribute('aria-disabled', left === 0); // not the property disabled: it would remove the focus
    this.#quantity.readOnly = left === 0;
    if (this.#missed && requestedAt > this.#missed.at) {
      this.#updateMissed();
    }
  }

  // miss tells the customer that a purchase was rejected because too few units were left. The note stays with the
  // product until the customer orders it, and says when the product is available again.
  miss(quantity) {
    this.#missed = { quantity, at: performance.now(), state: 'rejected' };
    this.#showMissed(`${this.#rejection()}: there is not enough stock.`);
    announce(`${this.name}: ${this.#note.textContent}`);
  }

  #rejection() {
    const { quantity } = this.#missed;
    return quantity > 1 ? `Your order of ${number(quantity)} was not placed` : 'Your order was not placed';
  }

  // orderable is the quantity that the customer wanted, or less if less is left.
  #orderable() {
    return Math.min(this.#missed.quantity, this.#product.available);
  }

  #updateMissed() {
    const { quantity, state } = this.#missed;
    const left = this.#product.available;
    if (left === 0) {
      this.#missed.state = 'sold out';
      this.#showMissed(`${this.#rejection()}: sold out. You will see here when it is available again.`);
    } else if (left < quantity && ['rejected', 'few'].includes(state)) {
      this.#missed.state = 'few';
      this.#showMissed(`${this.#rejection()}: only ${number(left)} ${left === 1 ? 'is' : 'are'} left.`);
    } else {
      this.#missed.state = 'back';
      this.#showMissed(`${this.name} is available again.`);
      if (state !== 'back') {
        announce(`${this.name} is available again.`);
      }
    }
  }

  #showMissed(text) {
    setText(this.#note, text);
    const orderable = ['few', 'back'].includes(this.#missed.state);
    if (orderable) {
      setText(this.#order, `Order ${number(this.#orderable())}`);
      this.#order.setAttribute('aria-label', `${this.#order.textContent} × ${this.name}`);
    }
    this.#hide(this.#order, !orderable);
    this.#noteRow.hidden = false;
  }

  // clearMissed removes the note, because the customer has ordered the product.
  clearMissed() {
    this.#missed = null;
    this.#hide(this.#noteRow, true);
  }

  #hide(node, hidden) {
    const focused = node.contains(document.activeElement);
    node.hidden = hidden;
    if (hidden && focused) {
      this.#buy.focus(); // otherwise the focus returns to the top of the page
    }
  }

  // send orders a quantity, and reports whether the order was placed.
  async #send(quantity) {
    if (this.#busy || this.#product.available === 0) {
      return false;
    }
    this.#busy = true;
    const placed = await buy(new Purchase(this.#product.id, quantity));
    this.#busy = false;
    return placed;
  }
}

// buy places the order of a purchase, and reports whether it was placed.
async function buy(purchase) {
  actionError.clear();
  let placed = false;
  try {
    await signedIn;
    const order = await purchase.send((failure) =>
      failure.code === 'overloaded' && actionError.show('The shop is busy. Your order is sent again in a moment.'));
    placed = true;
    actionError.clear();
    products.ordered(purchase.product);
    openOrders.close();
    orders.put(order);
    orders.show(order.id);
    announce(order.status === 'pending'
      ? `Order placed: ${summary(order)}. Pay by ${moment(order.expires_at)}.`
      : `${summary(order)}: ${outcome(order)}.`);
  } catch (failure) {
    actionError.clear();
    explain(purchase, failure);
    signInAgain(failure);
  }
  products.refresh();
  return placed;
}

// explain shows why a purchase failed, and what the customer can do.
function explain(purchase, failure) {
  if (failure.openOrders?.length > 0) {
    openOrders.show(purchase, failure);
  } else if (failure.code === 'out-of-stock' && products.has(purchase.product)) {
    openOrders.close();
    products.miss(purchase);
  } else if (failure.transient) {
    const text = failure.code === 'overloaded' ? 'The shop is still busy.' : `${failure.message} Your order may or may not be placed.`;
    actionError.show(`${text} Try again: your order will not be placed twice.`,
      ['Try again', () => buy(new Purchase(purchase.product, purchase.quantity))]); // with the saved idempotency key
  } else {
    actionError.show(failure.message);
  }
}

class Products {
  #list = document.getElementById('products');
  #cards = new Map();

  has(id) {
    return this.#cards.has(id);
  }

  // describe returns a purchase's product, with its quantity if it is more than one.
  describe({ product, quantity }) {
    const name = this.#cards.get(product)?.name ?? 'the product';
    return quantity > 1 ? `${number(quantity)} × ${name}` : name;
  }

  // miss tells the customer that a purchase was rejected because too few units were left.
  miss({ product, quantity }) {
    this.#cards.get(product).miss(quantity);
  }

  // ordered is called when the customer has ordered a product.
  ordered(id) {
    this.#cards.get(id)?.clearMissed();
  }

  refresh = throttled(async () => {
    const requestedAt = performance.now();
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
      this.#cards.get(item.id).update(item, requestedAt);
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
  #actions = { // the functions of the page that an OrderCard calls
    put: (order) => this.put(order),
    refresh: (id) => this.refreshOne(id),
    announce,
    acted: (failure) => this.#acted(failure),
    newWayToPay: (card) => newWayToPay(card),
  };

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

  // refresh requests the newest orders, as many as are shown, or as many as one answer can hold. Then each
  // part refreshes what it shows about these orders.
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
    const shown = [...this.#cards.values()]; // without the orders that are placed meanwhile
    await Promise.all(refreshers.map((refresh) => refresh(shown)));
  }, 300);

  clear() {
    openOrders.close();
    this.#cards.clear();
    this.#list.replaceChildren();
  }

  // refreshOne refreshes the newest orders. If the order id is shown but not among the newest, it requests the order alone.
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
    } else if (requestedAt(card.order) <= requestedAt(order)) {
      card.update(order);
    }
    openOrders.update(order);
  }

  // moveTo moves the cards of orders to another list. It requests the orders that are not shown yet.
  async moveTo(list, ids) {
    const unknown = ids.filter((id) => !this.#cards.has(id));
    const found = await Promise.all(unknown.map((id) => request('GET', `/api/orders/${id}`).catch(() => null)));
    found.filter(Boolean).forEach((order) => this.put(order));
    list.replaceChildren(...ids.filter((id) => this.#cards.has(id)).map((id) => this.#cards.get(id).node));
    this.refresh(); // for what the parts show of them
  }

  // takeBack moves the cards back from another list.
  takeBack(list) {
    for (const node of [...list.children]) {
      const card = this.#cards.get(node.dataset.order);
      card?.node === node ? this.#insert(card) : node.remove();
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
      this.refresh(); // for what the parts show of them
    } catch (failure) {
      actionError.show(failure.message);
    }
  }
}

// OpenOrders shows why a purchase was rejected: the customer has too many open orders, or these hold units of the
// product. It shows these orders, so that the customer can pay or cancel one, and offers to repeat the purchase when
// it may succeed.
class OpenOrders {
  #panel = document.getElementById('open-orders');
  #title = document.getElementById('open-orders-title');
  #text = document.getElementById('open-orders-text');
  #list = document.getElementById('open-orders-list');
  #again = document.getElementById('order-again');
  #purchase = null; // the one that was rejected; null while nothing is shown
  #ids = [];
  #helps = []; // the states of one of the orders in which the purchase may succeed

  constructor() {
    this.#again.addEventListener('click', () => this.#repeat());
    document.getElementById('close-open-orders').addEventListener('click', () => this.close());
  }

  async show(purchase, { code, message, openOrders }) {
    this.close();
    this.#purchase = purchase;
    this.#ids = openOrders;
    const tooMany = code === 'too-many-open-orders';
    this.#helps = tooMany ? ['paid', 'cancelled'] : ['cancelled']; // what is paid is not available again
    setText(this.#title, tooMany ? 'Too many open orders' : 'Your open orders hold the stock');
    setText(this.#text, message);
    setText(this.#again, `Order ${products.describe(purchase)}`);
    this.#enable(false);
    this.#panel.hidden = false;
    announce(`${this.#title.textContent}. ${message}`);
    await orders.moveTo(this.#list, openOrders);
    const { top, bottom } = this.#text.getBoundingClientRect();
    if (top < 0 || bottom > innerHeight) {
      this.#panel.scrollIntoView(); // on a phone the orders are below the products
    }
  }

  // update is called with the newest state of an order.
  update({ id, status }) {
    if (this.#purchase && this.#helps.includes(status) && this.#ids.includes(id) && !this.#enabled) {
      setText(this.#text, `One of these orders is ${status}. You can order again.`);
      this.#enable(true);
      announce(this.#text.textContent);
    }
  }

  close() {
    if (!this.#purchase) {
      return;
    }
    this.#purchase = null;
    const focused = this.#panel.contains(document.activeElement);
    orders.takeBack(this.#list);
    this.#panel.hidden = true;
    if (focused) {
      document.getElementById('orders-title').focus(); // otherwise the focus returns to the top of the page
    }
  }

  get #enabled() {
    return this.#again.getAttribute('aria-disabled') === 'false';
  }

  #enable(enabled) {
    this.#again.setAttribute('aria-disabled', !enabled); // not the property disabled: it would remove the focus
  }

  async #repeat() {
    if (!this.#enabled) {
      return;
    }
    this.#enable(false);
    const purchase = this.#purchase;
    await buy(new Purchase(purchase.product, purchase.quantity));
    if (this.#purchase === purchase) { // it failed for another reason
      this.#enable(true);
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
const openOrders = new OpenOrders();
const orders = new Orders();

const pollEvery = 3_000; // in ms, while the page does not learn of changes in another way
const connection = document.getElementById('connection');

function refreshAll() {
  orders.refresh();
  products.refresh();
}

// These are set and filled by the parts of the page.
let notifications = null; // the part that receives notifications; null: the page only polls
let newWayToPay = () => null; // see OrderCard
const signInSteps = [];
const refreshers = [];

// page is what the parts of the page can use and change. A part is a module with a function add. See index.html.
const page = {
  refreshAll,
  refreshOrder: (id) => orders.refreshOne(id),
  refreshProducts: products.refresh,

  // showConnection shows how the page learns of changes. Unless the state is 'live', the page polls.
  showConnection(state, text) {
    connection.dataset.state = state;
    setText(connection, text);
  },

  // notifyBy sets what tells the page about changes. Its method connect is called each time the customer has signed in.
  notifyBy(source) {
    notifications = source;
  },

  // payBy sets the function that returns the way to pay of a new OrderCard, or null.
  payBy(newWay) {
    newWayToPay = newWay;
  },

  // onSignIn adds an asynchronous function that signIn calls when the browser has a valid cookie. The cards are made
  // after it.
  onSignIn(step) {
    signInSteps.push(step);
  },

  // onOrders adds an asynchronous function that is called with all cards after the orders have been requested.
  onOrders(refresh) {
    refreshers.push(refresh);
  },
};

// startUpdates subscribes the page to changes, and shows the present state.
function startUpdates() {
  if (notifications) {
    notifications.connect();
  } else {
    page.showConnection('timed', 'Refreshed every 3 s');
    refreshAll();
  }
}

// signIn ensures that the browser has a customer's valid cookie, and takes the parts' steps of signing in. It retries
// until the service answers.
async function signIn() {
  const signInError = new Message(messages);
  for (let rejections = 0; rejections < 2; ) {
    try {
      localStorage.getItem(''); // throws if the browser stores nothing for this page
      await withSignUpLock(signUp);
      await Promise.all(signInSteps.map((step) => step()));
      signInError.clear();
      return;
    } catch (failure) {
      if (failure.status === 401) {
        rejections++;
        continue;
      }
      if (!(failure instanceof Problem)) {
        break; // the browser denies storage, and so cookies
      }
      signInError.show(failure.message);
    }
    await sleep(2000);
  }
  signInError.show('This page needs cookies to show your orders. Allow cookies for this site, then reload the page.');
  await new Promise(() => {}); // the rest of the page needs a customer
}

// signUp makes a new customer if the service rejects the browser's cookie. Scripts cannot see whether there is one.
async function signUp() {
  const askForOrders = () => request('GET', '/api/orders?limit=1');
  try {
    await askForOrders();
  } catch (failure) {
    if (failure.status !== 401) {
      throw failure;
    }
    await request('POST', '/api/customers');
    await askForOrders(); // is rejected again if the browser has not stored the cookie
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
  startUpdates();
}

let signedIn = addParts(page).then(signIn);
products.refresh();
await signedIn;
startUpdates();
setInterval(() => connection.dataset.state !== 'live' && !document.hidden && refreshAll(), pollEvery);
Purchase.interrupted().forEach(buy);
