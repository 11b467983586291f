// The customer's payments at the payment provider: another way to pay an order. A service without a provider answers the
// paths of payments with 404.

import { request, retry, serverClock } from './api.js';
import { element, money, moment, setText } from './dom.js';
import { summary } from './order.js';

const pageSize = 100; // the API's limit

// add adds the payments to the customers' page.
export function add(page) {
  const payments = new Payments();
  page.onSignIn(() => payments.detect());
  page.onOrders((cards) => payments.refresh(cards));
  page.payBy((card) => payments.newCheckout(card));
}

class Payments {
  #provider = false; // whether the service has a payment provider
  #checkouts = new WeakMap(); // of each card
  #returned = null; // the id of the order from whose checkout the customer came back; null if it is shown

  async detect() {
    try {
      await request('GET', '/api/payments?limit=1');
      this.#provider = true;
      await this.#comeBack();
    } catch (failure) {
      if (failure.status !== 404) {
        throw failure;
      }
      this.#provider = false;
    }
  }

  // comeBack has the service ask the provider about the order in the page's address, from whose checkout the customer
  // comes back. It is only a hint, so its failure is not shown.
  async #comeBack() {
    const order = new URLSearchParams(location.search).get('returned');
    if (order) {
      history.replaceState(null, '', location.pathname);
      this.#returned = order;
      await request('POST', `/api/orders/${encodeURIComponent(order)}/payments/returned`).catch(() => {});
    }
  }

  // newCheckout returns the checkout of a card, or null if the service has no payment provider.
  newCheckout(card) {
    if (!this.#provider) {
      return null;
    }
    const checkout = new Checkout(card);
    this.#checkouts.set(card, checkout);
    return checkout;
  }

  // refresh requests and shows the payments of the cards' orders.
  async refresh(cards) {
    if (!this.#provider || cards.length === 0) {
      return;
    }
    const oldest = Math.min(...cards.map((card) => Date.parse(card.order.created_at)));
    const payments = await paymentsSince(oldest);
    for (const card of cards) {
      this.#checkouts.get(card)?.update(payments.filter((payment) => payment.order_id === card.order.id));
      if (card.order.id === this.#returned) {
        this.#returned = null;
        card.node.scrollIntoView({ block: 'nearest' });
      }
    }
  }
}

// paymentsSince returns all payments of the orders that were placed at a time, in ms, or later. The newest is the first.
async function paymentsSince(time) {
  const found = [];
  let cursor = '';
  do {
    const page = await request('GET', `/api/payments?limit=${pageSize}${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
    found.push(...page.items);
    cursor = page.next_cursor;
  } while (cursor && Date.parse(found.at(-1).opened_at) >= time);
  return found;
}

// Checkout pays the order of a card at the provider, and shows the order's payments. See OrderCard for its members.
class Checkout {
  #card;
  #payments = null; // of the order, newest first; null if they are not known yet
  #link;
  #pay;

  constructor(card) {
    this.#card = card;
    const { order } = card;
    const of = () => element('span', { className: 'visually-hidden' }, ` for ${summary(order)}`);
    this.#link = element('a', { className: 'button primary', target: '_blank', rel: 'noopener' }, 'Open the checkout', of());
    this.#pay = element('button', { type: 'button', className: 'primary', 'data-action': 'pay', onclick: () => this.#open() },
      `Pay ${money(order.total_cents, order.currency)}`, of());
    this.buttons = [this.#link, this.#pay];
  }

  update(payments) {
    const announce = this.#payments !== null;
    this.#payments = payments;
    this.#card.show(announce);
  }

  showButtons(order, payable) {
    const url = this.#payments?.find((payment) => payment.checkout_url)?.checkout_url;
    if (payable && url && this.#link.href !== url) {
      this.#link.href = url;
    }
    this.#link.hidden = !payable || !url;
    this.#pay.hidden = !payable || !this.#link.hidden;
  }

  get openUntil() {
    const until = this.#payments?.find((payment) => payment.checkout_until)?.checkout_until;
    return serverClock.now() < Date.parse(until) ? until : undefined;
  }

  stateText(order, phase) {
    if (phase === 'held' && this.openUntil) {
      return `The deadline has passed. Your checkout is open until ${moment(this.openUntil)}.`;
    }
    return undefined;
  }

  noteTexts(order, phase) {
    const payments = this.#payments ?? [];
    const notes = payments.filter((payment) => payment.refund).map(refundText);
    if (phase === 'payable' && order.hold_until) {
      notes.unshift(`Paying: held until ${moment(order.hold_until)}.`);
    }
    if (phase === 'held') {
      const asking = this.#payments && !this.openUntil ? ' The shop is asking the payment provider whether you paid.' : '';
      notes.unshift(`Paying: held until ${moment(order.hold_until)}.${asking}`);
    }
    if (payments[0]?.state === 'closed') { // whatever the provider's own page says
      notes.unshift(`The checkout was closed at ${moment(payments[0].ended_at)}. You were not charged.`);
    }
    if (order.status === 'cancelled' && payments.some(({ state }) => state === 'creating' || state === 'open')) {
      notes.unshift('The payment provider has not answered yet. If you paid, your payment will be refunded.');
    }
    return notes;
  }

  eventTexts({ type, actor }) {
    return {
      what: { held: 'checkout opened', released: 'checkout closed', paid: actor === 'customer' ? 'paid' : 'payment confirmed' }[type],
      by: actor === 'provider' ? 'by the payment provider' : undefined,
    };
  }

  // release has the provider close the checkout, so that the order can be cancelled.
  async release({ id }) {
    try {
      await request('POST', `/api/orders/${id}/payments/close`);
    } finally {
      this.#card.refresh(); // the customer may have paid
    }
  }

  // open opens the provider's checkout page in a new tab.
  async #open() {
    const tab = this.#card.busy ? null : new CheckoutTab();
    const id = this.#card.order.id;
    await this.#card.act(async () => {
      try {
        const payment = await retry(() => request('POST', `/api/orders/${id}/payments`));
        if (!tab.load(payment.checkout_url)) {
          throw new Error('The browser did not open the checkout in a new tab. Press Open the checkout.');
        }
      } catch (failure) {
        tab.close();
        throw failure;
      }
    });
    this.#card.refresh();
  }
}

// refundText describes a payment's refund.
function refundText({ refund, currency }) {
  const amount = money(refund.amount_cents, currency);
  const payment = {
    late: `Your payment of ${amount} came too late and`,
    duplicate: `You paid twice. One payment of ${amount}`,
    mismatch: `Your payment of ${amount} does not match the order and`,
  }[refund.reason];
  switch (refund.state) {
    case 'confirmed':
      return `${payment} was refunded at ${moment(refund.ended_at)}.`;
    case 'failed':
      return `${payment} could not be refunded automatically. The shop's staff is taking care of it.`;
    case 'settled_outside':
      return `${payment} was settled in another way at ${moment(refund.ended_at)}.`;
    default:
      return `${payment} is being refunded.`;
  }
}

// CheckoutTab is the browser tab for the provider's checkout page. A browser opens a tab only in the handler of a
// click, so the tab opens before the service has answered with the page's address.
class CheckoutTab {
  #tab = window.open('about:blank', '_blank'); // null if the browser blocks it

  constructor() {
    if (this.#tab) {
      this.#tab.opener = null; // the provider's page must not control this page
      const { document } = this.#tab;
      document.title = document.body.textContent = 'Opening the checkout…';
      document.documentElement.lang = 'en';
      document.documentElement.style.colorScheme = 'light dark';
    }
  }

  // load reports whether the tab shows the checkout. It does not if the browser has blocked the tab, or if the customer
  // has closed it.
  load(url) {
    if (!this.#tab || this.#tab.closed) {
      return false;
    }
    this.#tab.location.replace(url);
    return true;
  }

  close() {
    this.#tab?.close();
  }
}
