// The customer's payments at the payment provider. A service without a provider answers their paths with 404.

import { request } from './api.js';
import { money, moment } from './dom.js';

const pageSize = 100; // the API's limit

export class Payments {
  #provider = false;
  #payments = []; // newest first

  // provider reports whether the service has a payment provider. It is known after detect.
  get provider() {
    return this.#provider;
  }

  async detect() {
    try {
      await request('GET', '/api/payments?limit=1');
      this.#provider = true;
    } catch (failure) {
      if (failure.status !== 404) {
        throw failure;
      }
      this.#provider = false;
    }
  }

  // refresh requests all payments of the orders that were placed at the time since or later.
  async refresh(since) {
    const found = [];
    let cursor = '';
    do {
      const page = await request('GET', `/api/payments?limit=${pageSize}${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
      found.push(...page.items);
      cursor = page.next_cursor;
    } while (cursor && Date.parse(found.at(-1).opened_at) >= Date.parse(since));
    this.#payments = found;
  }

  // of returns the payments of an order, newest first.
  of(orderId) {
    return this.#payments.filter((payment) => payment.order_id === orderId);
  }
}

// refundText describes a payment's refund.
export function refundText({ refund, currency }) {
  const amount = money(refund.amount_cents, currency);
  const payment = {
    late: `Your payment of ${amount} came too late and`,
    duplicate: `You paid twice. The second payment of ${amount}`,
    mismatch: `Your payment of ${amount} does not match the order and`,
  }[refund.reason];
  switch (refund.state) {
    case 'confirmed':
      return `${payment} was refunded at ${moment(refund.ended_at)}.`;
    case 'failed':
      return `${payment} could not be refunded automatically. The shop's staff is taking care of it.`;
    default:
      return `${payment} is being refunded.`;
  }
}

// CheckoutTab is the browser tab for the provider's checkout page. A browser opens a tab only in the handler of a
// click, so the tab opens before the service has answered with the page's address.
export class CheckoutTab {
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
