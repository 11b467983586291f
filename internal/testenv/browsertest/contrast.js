// Lists the page's texts that have too little contrast with their background. WCAG 2.2 AA demands a ratio of 4.5, or
// of 3 for large text (24 px, or 18.66 px and bold). Disabled controls are exempt, and so are texts that are clipped
// or beside the screen, for screen readers only. Where no element has a background, the background counts as white.
(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => {
    const linear = [r, g, b].map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) {
        return colour;
      }
    }
    return [255, 255, 255, 255];
  };
  const seen = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const box = at.getBoundingClientRect();
      if (box.right <= 0 || (box.width <= 1 && box.height <= 1 && getComputedStyle(at).overflow === 'hidden')) {
        return false;
      }
    }
    return true;
  };
  const poor = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.textContent.trim();
    const node = texts.currentNode.parentElement;
    if (!text || !node.checkVisibility() || !seen(node) || node.closest(':disabled, [aria-disabled=true]')) {
      continue;
    }
    const style = getComputedStyle(node);
    const colour = rgba(node.closest('svg') ? style.fill : style.color);
    const [light, dark] = [luminance(colour), luminance(behind(node))].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize);
    const least = size >= 24 || (size >= 18.66 && style.fontWeight >= 700) ? 3 : 4.5;
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < least) {
      poor.push(`${contrast.toFixed(2)} of ${least}: ${text.slice(0, 60)}`);
    }
  }
  return poor;
})()
