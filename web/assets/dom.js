// Helpers to build a page and to format its texts.

// element creates an element and sets its properties. It sets names with a hyphen, such as data-… and aria-…, and role
// as attributes.
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes('-') || name === 'role') {
      node.setAttribute(name, value);
    } else {
      node[name] = value;
    }
  }
  node.append(...children);
  return node;
}

// setText sets a node's text only if it differs. Setting an equal text would clear the user's selection, and a screen
// reader would read the text again.
export function setText(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

// renderList shows a node for each of items. It keeps the nodes unless the items have changed, because the user may be
// about to press one of their buttons. If a node with the focus is removed, the element heading gets the focus.
export function renderList(list, items, render, heading) {
  const shown = JSON.stringify(items);
  if (shownItems.get(list) === shown) {
    return;
  }
  shownItems.set(list, shown);
  const focused = list.contains(document.activeElement);
  list.replaceChildren(...items.map(render));
  if (focused) {
    heading.focus(); // otherwise the focus returns to the top of the page
  }
}

const shownItems = new WeakMap(); // of each list, as JSON

// decimals has the numbers of decimals of the currencies that do not have two, as ISO 4217 and the server have them. A
// browser shows no decimals for currencies whose small coins are out of use, such as HUF.
const decimals = {
  BIF: 0, CLP: 0, DJF: 0, GNF: 0, ISK: 0, JPY: 0, KMF: 0, KRW: 0, PYG: 0, RWF: 0, UGX: 0, UYI: 0,
  VND: 0, VUV: 0, XAF: 0, XOF: 0, XPF: 0,
  BHD: 3, IQD: 3, JOD: 3, KWD: 3, LYD: 3, OMR: 3, TND: 3,
  CLF: 4, UYW: 4,
};

// money returns an amount of the smallest unit of a currency as text, with the decimals of the currency.
export function money(amount, currency) {
  const digits = decimals[currency] ?? 2;
  const format = new Intl.NumberFormat('en-IE', {
    style: 'currency', currency, minimumFractionDigits: digits, maximumFractionDigits: digits,
  });
  return format.format(amount / 10 ** digits);
}

export const number = (n) => new Intl.NumberFormat('en-IE').format(n);

// moment returns the time of day. The date precedes it, unless the date is today.
export function moment(time) {
  const at = new Date(time);
  const clock = at.toLocaleTimeString('en-GB');
  const today = at.toDateString() === new Date().toDateString();
  return today ? clock : `${at.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' })}, ${clock}`;
}

// countdown returns "1:05" or "1:00:05". It rounds up to full seconds, so that it reaches 0:00 at the deadline.
export function countdown(milliseconds) {
  const seconds = Math.max(0, Math.ceil(milliseconds / 1000));
  const two = (n) => String(n).padStart(2, '0');
  const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  return h > 0 ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

// duration returns "4 ms", "1.2 s" or "12 s".
export function duration(seconds) {
  if (seconds < 1) {
    return `${Math.round(seconds * 1000)} ms`;
  }
  return `${number(seconds < 10 ? Math.round(seconds * 10) / 10 : Math.round(seconds))} s`;
}

// Message shows at most one error message, which the user can dismiss, within container.
export class Message {
  #slot;

  constructor(container) {
    this.#slot = element('div');
    container.append(this.#slot);
  }

  // show shows a text. The optional action is a text and a function: the user can press a button with that text.
  show(text, action) {
    const button = (text, className, onclick) => element('button', { type: 'button', className, onclick }, text);
    const buttons = element('div', { className: 'message-buttons' }, button('Dismiss', 'quiet', () => this.clear()));
    if (action) {
      const [name, act] = action;
      buttons.prepend(button(name, '', () => { this.clear(); act(); }));
    }
    this.#slot.replaceChildren(element('div', { className: 'message' }, element('p', {}, text), buttons));
  }

  clear() {
    const focused = this.#slot.contains(document.activeElement);
    this.#slot.replaceChildren();
    if (focused) {
      document.querySelector('main').focus({ preventScroll: true }); // otherwise the focus returns to the top of the page
    }
  }
}

// addParts imports the modules that the page's links with data-part name, and calls their functions add with the page.
export async function addParts(page) {
  for (const { href } of document.querySelectorAll('link[data-part]')) {
    const { add } = await import(href);
    add(page);
  }
}

// addStylesheet adds the style sheet of a part.
export function addStylesheet(href) {
  document.head.append(element('link', { rel: 'stylesheet', href }));
}

export const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
