// The notifications of GET /api/events. A notification names the order or the list that has changed. The page then
// requests it again.

import { sleep } from './dom.js';

const reconnectAfter = 5_000;
const silenceLimit = 25_000; // the server sends a heartbeat every 10 s
const heartbeatsPerRefresh = 3; // refresh without a notification, because notifications can be lost

const texts = {
  live: 'Live',
  reconnecting: 'Reconnecting…',
  polling: 'No live updates: refreshed every 3 s',
  replaced: 'Live in your newer tabs, refreshed every 3 s here',
};

// add adds the notifications to the customers' page.
export function add(page) {
  page.notifyBy(new Notifications(page));
}

// Notifications keeps a subscription to the server's notifications open. It shows the state of the subscription on the
// page: 'live', 'polling' (the service has no notifications now), 'replaced' (newer tabs of the customer have taken over
// the subscription) or 'reconnecting'.
//
// A hidden tab has no subscription: over HTTP/1.1 a browser opens only six connections to a server, and each
// subscription occupies one of them.
class Notifications {
  #page;
  #source = null;
  #state = '';
  #started = false;
  #silenceTimer = 0;
  #reconnectTimer = 0;
  #heartbeats = 0;

  constructor(page) {
    this.#page = page;
  }

  // connect replaces the subscription with a new one. The first call starts to follow the browser's own events too.
  connect() {
    if (!this.#started) {
      this.#started = true;
      document.addEventListener('visibilitychange', () => this.#reconnect());
      window.addEventListener('pageshow', (event) => event.persisted && this.#reconnect());
      window.addEventListener('pagehide', () => this.#close());
      window.addEventListener('online', () => this.#reconnect());
      window.addEventListener('offline', () => this.#disconnected());
    }
    this.#reconnect();
  }

  // reconnect replaces the subscription. While the tab is hidden it only closes the subscription.
  #reconnect() {
    this.#close();
    if (document.hidden) {
      return;
    }
    this.#setState('reconnecting');
    const source = new EventSource('/api/events');
    this.#source = source;
    const on = (name, handle) =>
      source.addEventListener(name, (event) => {
        this.#restartSilenceTimer();
        handle(event.data && JSON.parse(event.data));
      });
    on('state', ({ live }) => this.#setState(live ? 'live' : 'polling'));
    on('order', ({ id }) => this.#page.refreshOrder(id));
    // All open pages get this notification at the same time. The random delay spreads their requests.
    on('products', () => sleep(Math.random() * 500).then(this.#page.refreshProducts));
    on('heartbeat', () => {
      this.#heartbeats += 1;
      if (this.#heartbeats % heartbeatsPerRefresh === 0) {
        this.#page.refreshAll();
      }
    });
    on('replaced', () => {
      source.close();
      clearTimeout(this.#silenceTimer);
      this.#setState('replaced');
    });
    source.addEventListener('error', () => this.#disconnected());
    this.#restartSilenceTimer();
  }

  // disconnected handles a lost connection and an error answer. After a lost connection the EventSource reconnects by
  // itself. After an error answer it is closed, so this function makes a new one later.
  #disconnected() {
    if (!this.#source || this.#state === 'replaced') {
      return;
    }
    this.#setState('reconnecting');
    if (this.#source.readyState === EventSource.CLOSED) {
      clearTimeout(this.#reconnectTimer);
      this.#reconnectTimer = setTimeout(() => this.#reconnect(), reconnectAfter);
    }
  }

  #close() {
    clearTimeout(this.#reconnectTimer);
    clearTimeout(this.#silenceTimer);
    this.#source?.close();
    this.#source = null;
    this.#state = '';
  }

  // restartSilenceTimer replaces the connection if it stays silent: a connection can break without an error event.
  #restartSilenceTimer() {
    clearTimeout(this.#silenceTimer);
    this.#silenceTimer = setTimeout(() => this.#reconnect(), silenceLimit);
  }

  // setState also refreshes the page, because notifications may have been lost before the new state.
  #setState(state) {
    if (state === this.#state) {
      return;
    }
    this.#state = state;
    this.#page.showConnection(state, texts[state]);
    this.#page.refreshAll();
  }
}
