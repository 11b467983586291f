// The live feed of GET /api/events. Its events are hints to look again; while there are none, the page
// looks every few seconds.

const pollEvery = 3_000;
const reconnectAfter = 5_000;
const silence = 25_000; // the server's heartbeat comes every 10 s

// Feed calls hear.everything() when anything may have changed, hear.order(id) and hear.products() when that did,
// and hear.state(state) with 'live', 'polling' (the service has no live feed now) or 'reconnecting'.
//
// Only a tab that is looked at holds a connection: of the six that a browser has to a server over HTTP/1.1
// each stream takes one for good.
export class Feed {
  #hear;
  #source = null;
  #state = '';
  #poll = 0;
  #watchdog = 0;
  #retry = 0;

  constructor(hear) {
    this.#hear = hear;
  }

  start() {
    document.addEventListener('visibilitychange', () => (document.hidden ? this.#close() : this.#open()));
    window.addEventListener('pageshow', (event) => event.persisted && this.#open());
    window.addEventListener('pagehide', () => this.#close());
    window.addEventListener('online', () => this.#open());
    window.addEventListener('offline', () => this.#lost());
    if (!document.hidden) {
      this.#open();
    }
  }

  #open() {
    this.#close();
    this.#become('reconnecting');
    const source = new EventSource('/api/events');
    this.#source = source;
    const on = (name, act) =>
      source.addEventListener(name, (event) => {
        this.#watch();
        act(event.data && JSON.parse(event.data));
      });
    on('state', ({ live }) => this.#become(live ? 'live' : 'polling'));
    on('order', ({ id }) => this.#hear.order(id));
    on('products', () => this.#hear.products());
    on('heartbeat', () => {});
    source.addEventListener('error', () => this.#lost());
    this.#watch();
  }

  // lost also stands for a refusal, after which an EventSource does not try again by itself.
  #lost() {
    this.#become('reconnecting');
    if (this.#source?.readyState === EventSource.CLOSED) {
      clearTimeout(this.#retry);
      this.#retry = setTimeout(() => this.#open(), reconnectAfter);
    }
  }

  #close() {
    clearTimeout(this.#retry);
    clearTimeout(this.#watchdog);
    clearInterval(this.#poll);
    this.#source?.close();
    this.#source = null;
    this.#state = '';
  }

  // watch opens the stream again if it stays silent: a connection can die without a word.
  #watch() {
    clearTimeout(this.#watchdog);
    this.#watchdog = setTimeout(() => this.#open(), silence);
  }

  // become looks at everything at every change: hints may have been missed.
  #become(state) {
    if (state === this.#state) {
      return;
    }
    this.#state = state;
    clearInterval(this.#poll);
    if (state !== 'live') {
      this.#poll = setInterval(() => this.#hear.everything(), pollEvery);
    }
    this.#hear.state(state);
    this.#hear.everything();
  }
}
