// The notifications of GET /api/events. A notification names the order or the list that has changed. The page then
// requests it again.

const pollEvery = 3_000;
const reconnectAfter = 5_000;
const silenceLimit = 25_000; // the server sends a heartbeat every 10 s
const heartbeatsPerRefresh = 3; // refresh without a notification, because notifications can be lost

// Notifications keeps a subscription to the server's notifications open. It calls these handlers:
//
//   onChange()      anything may have changed
//   onOrder(id)     an order of the customer has changed
//   onProducts()    the stock of products has changed
//   onState(state)  the state of the subscription has changed
//
// The states are 'live', 'polling' (the service has no notifications now), 'replaced' (newer tabs of the customer have
// taken over the subscription) and 'reconnecting'. In all states except 'live' it calls onChange every 3 s.
//
// A hidden tab has no subscription: over HTTP/1.1 a browser opens only six connections to a server, and each
// subscription occupies one of them.
export class Notifications {
  #handlers;
  #source = null;
  #state = '';
  #pollTimer = 0;
  #silenceTimer = 0;
  #reconnectTimer = 0;
  #heartbeats = 0;

  constructor(handlers) {
    this.#handlers = handlers;
  }

  start() {
    document.addEventListener('visibilitychange', () => this.connect());
    window.addEventListener('pageshow', (event) => event.persisted && this.connect());
    window.addEventListener('pagehide', () => this.#close());
    window.addEventListener('online', () => this.connect());
    window.addEventListener('offline', () => this.#disconnected());
    this.connect();
  }

  // connect replaces the subscription with a new one. While the tab is hidden it only closes the subscription.
  connect() {
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
    on('order', ({ id }) => this.#handlers.onOrder(id));
    on('products', () => this.#handlers.onProducts());
    on('heartbeat', () => {
      this.#heartbeats += 1;
      if (this.#heartbeats % heartbeatsPerRefresh === 0) {
        this.#handlers.onChange();
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
      this.#reconnectTimer = setTimeout(() => this.connect(), reconnectAfter);
    }
  }

  #close() {
    clearTimeout(this.#reconnectTimer);
    clearTimeout(this.#silenceTimer);
    clearInterval(this.#pollTimer);
    this.#source?.close();
    this.#source = null;
    this.#state = '';
  }

  // restartSilenceTimer replaces the connection if it stays silent: a connection can break without an error event.
  #restartSilenceTimer() {
    clearTimeout(this.#silenceTimer);
    this.#silenceTimer = setTimeout(() => this.connect(), silenceLimit);
  }

  // setState also calls onChange, because notifications may have been lost before the new state.
  #setState(state) {
    if (state === this.#state) {
      return;
    }
    this.#state = state;
    clearInterval(this.#pollTimer);
    if (state !== 'live') {
      this.#pollTimer = setInterval(() => this.#handlers.onChange(), pollEvery);
    }
    this.#handlers.onState(state);
    this.#handlers.onChange();
  }
}
