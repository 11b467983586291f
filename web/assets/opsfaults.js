// The drawer of faults at the bottom of the operators' page, with the log. Only the demo has faults.

import { request, retry } from './api.js';
import { addStylesheet, element, moment, setText } from './dom.js';

const byId = (id) => document.getElementById(id);

const names = {
  'place-orders': 'Place 1,000 orders',
  'redis-wipe': 'Wipe Redis',
  'redis-stop': 'Stop Redis',
  'redis-start': 'Start Redis',
  'worker-pause': 'Pause the worker',
  'worker-resume': 'Resume the worker',
};

const texts = {
  'place-orders': '1,000 orders are placed. They stay unpaid.',
  'redis-wipe': 'Redis is wiped: it has lost all tasks.',
  'redis-stop': 'Redis is stopped. The shop still accepts orders.',
  'redis-start': 'Redis is started, empty.',
  'worker-pause': 'The worker is paused. The reconciler cancels overdue orders, a few seconds late.',
  'worker-resume': 'The worker is resumed.',
};

// add adds the drawer to the operators' page. It sets page.addFaults, with which later parts add faults of their own.
export function add(page) {
  addStylesheet('/assets/opsfaults.css');
  const log = element('ol', { id: 'log', className: 'log', role: 'log', 'aria-label': 'Log of your actions and of repairs' },
    element('li', { className: 'hint' }, 'Place orders, then wipe Redis: the orders are still cancelled on time.'));
  const last = element('p', { className: 'hint last', role: 'status' }); // the last text of the log, while the drawer is closed
  const section = element('section', { id: 'faults', 'aria-labelledby': 'faults-title', hidden: true },
    element('details', {}, element('summary', {}, element('h2', { id: 'faults-title' }, 'Inject faults')),
      element('div', { className: 'drawer' },
        element('div', { className: 'row' }, ...Object.entries(names).map(([fault, name]) => element('button', { type: 'button', 'data-fault': fault }, name))),
        log)), last);
  byId('dashboard').after(section);
  section.addEventListener('click', (event) => {
    const fault = event.target.dataset.fault;
    if (fault === 'place-orders') {
      page.act(event.target, placeOrders, texts[fault]);
    } else if (fault && event.target.getAttribute('aria-disabled') !== 'true') {
      page.post(event.target, `/faults/${fault}`, texts[fault]);
    }
  });
  page.logBy((text) => {
    setText(last, text);
    log.querySelector('.hint')?.remove();
    log.prepend(element('li', {}, element('time', {}, moment(Date.now())), element('span', {}, text)));
    while (log.children.length > 50) {
      log.lastChild.remove();
    }
  });

  const others = []; // the functions that show the faults of other parts

  // addFaults adds the faults of another part: their buttons within node, the texts of the log by fault, and the function
  // that shows the answer of GET /ops/api/faults.
  page.addFaults = (node, moreTexts, render) => {
    log.before(node);
    Object.assign(texts, moreTexts);
    others.push(render);
  };

  let faults = null;
  page.addSection({
    async load() {
      faults = await page.optional('/faults');
    },
    render() {
      section.hidden = faults === null;
      if (faults === null) {
        return;
      }
      renderButtons(faults);
      setText(byId('worker-state'), faults.worker_paused ? 'paused' : '');
      others.forEach((render) => render(faults));
    },
  });
}

// placeOrders places 1,000 orders, each as a customer of its own, because the service limits the unpaid orders of a
// customer. It sends and keeps no cookies, so that this browser keeps its own customer.
async function placeOrders() {
  const products = (await request('GET', '/api/products')).items;
  const most = products.reduce((a, b) => (b.available > a.available ? b : a));
  let left = 1000;
  const client = async () => {
    while (left-- > 0) {
      const { token } = await retry(() => request('POST', '/api/customers', { credentials: 'omit' }));
      await retry(() => request('POST', '/api/orders', {
        credentials: 'omit', headers: { Authorization: `Bearer ${token}`, 'Idempotency-Key': 'the only order' },
        body: { items: [{ product_id: most.id, quantity: 1 }] },
      }));
    }
  };
  try {
    await Promise.all(Array.from({ length: 6 }, client));
  } finally {
    left = 0; // after an error the other clients stop, too
  }
}

function renderButtons(faults) {
  // Not the property disabled: it would remove the focus from the button.
  const enable = (fault, possible) => document.querySelector(`[data-fault="${fault}"]`).setAttribute('aria-disabled', !possible);
  enable('redis-wipe', !faults.redis_stopped);
  enable('redis-stop', !faults.redis_stopped);
  enable('redis-start', faults.redis_stopped);
  enable('worker-pause', !faults.worker_paused);
  enable('worker-resume', faults.worker_paused);
}
