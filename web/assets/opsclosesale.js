// The section "Close the sale" of the operators' page.

import { request } from './api.js';
import { addStylesheet, element, moment, number, setText } from './dom.js';

// add adds the section to the operators' page.
export function add(page) {
  addStylesheet('/assets/opsclosesale.css');
  const choose = element('option', { value: '' }, 'Choose a product');
  const product = element('select', { id: 'close-sale-product', required: true, 'aria-label': 'Product', 'aria-describedby': 'close-sale-hint' }, choose);
  const result = element('p', { id: 'close-sale-result', role: 'status' });
  const form = element('form', { id: 'close-sale', className: 'card' },
    element('p', { id: 'close-sale-hint', className: 'hint' },
      'Customers have a minute more to pay their unpaid orders of the product. Later deadlines move forward; earlier deadlines stay.'),
    element('div', { className: 'row' }, product, element('button', { type: 'submit' }, 'Close the sale')), result);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    setText(result, '');
    const name = product.selectedOptions[0].text;
    page.post(event.submitter, `/products/${product.value}/close-sale`, (answer) => closedText(name, answer), (text) => setText(result, text));
  });
  document.getElementById('dashboard').append(element('section', { 'aria-labelledby': 'close-sale-title' },
    element('h2', { id: 'close-sale-title' }, 'Close the sale'), form));

  let loaded = false; // since the page was shown
  document.addEventListener('visibilitychange', () => { loaded = false; });
  page.addSection({
    async load() {
      if (loaded) {
        return;
      }
      const { items } = await request('GET', '/api/products');
      const chosen = product.value;
      product.replaceChildren(choose, ...items.map(({ id, name }) => element('option', { value: id }, name)));
      product.value = items.some(({ id }) => id === chosen) ? chosen : '';
      loaded = true;
    },
    render() {},
  });
}

function closedText(name, { orders, deadline }) {
  switch (orders) {
    case 0:
      return `${name}: no unpaid order has more than a minute left, so no deadline moves.`;
    case 1:
      return `${name}: the deadline of 1 unpaid order moves forward to ${moment(deadline)}.`;
    default:
      return `${name}: the deadlines of ${number(orders)} unpaid orders move forward to ${moment(deadline)}.`;
  }
}
