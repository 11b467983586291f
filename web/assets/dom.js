// Small things to build and fill a page with.

// element makes an element: properties are set on it, data-… and aria-… as attributes.
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes('-') || name === 'role') {
      made.setAttribute(name, value);
    } else {
      made[name] = value;
    }
  }
  made.append(...children);
  return made;
}

// setText writes only what changed, so that neither selections nor screen readers are disturbed.
export function setText(node, text) {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

export const money = (cents, currency) =>
  new Intl.NumberFormat('en-IE', { style: 'currency', currency }).format(cents / 100);

export const number = (n) => new Intl.NumberFormat('en-IE').format(n);

// moment is the time of day, with the date if that is not today.
export function moment(time) {
  const at = new Date(time);
  const clock = at.toLocaleTimeString('en-GB');
  const today = at.toDateString() === new Date().toDateString();
  return today ? clock : `${at.toLocaleDateString('en-GB', { day: 'numeric', month: 'short' })}, ${clock}`;
}

// countdown is "1:05" or "1:00:05": full seconds, rounded up, so that 0:00 is the deadline itself.
export function countdown(milliseconds) {
  const seconds = Math.max(0, Math.ceil(milliseconds / 1000));
  const two = (n) => String(n).padStart(2, '0');
  const [h, m, s] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
  return h > 0 ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

// duration is "4 ms", "1.2 s" or "12 s".
export function duration(seconds) {
  if (seconds < 1) {
    return `${Math.round(seconds * 1000)} ms`;
  }
  return `${number(seconds < 10 ? Math.round(seconds * 10) / 10 : Math.round(seconds))} s`;
}

// Message has a place for one thing that went wrong.
export class Message {
  #place;

  constructor(place) {
    this.#place = element('div');
    place.append(this.#place);
  }

  show(text) {
    const dismiss = element('button', { type: 'button', className: 'quiet', onclick: () => this.clear() }, 'Dismiss');
    this.#place.replaceChildren(element('div', { className: 'message' }, element('p', {}, text), dismiss));
  }

  clear() {
    const focused = this.#place.contains(document.activeElement);
    this.#place.replaceChildren();
    if (focused) {
      document.querySelector('main').focus({ preventScroll: true }); // not back to the top of the page
    }
  }
}

// wait is over after a time.
export const wait = (milliseconds) => new Promise((over) => setTimeout(over, milliseconds));
