// Elements and numbers. Everything from outside becomes text, never markup.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Makes what is shown like new content, node by node, so that what someone has scrolled, focused or marked stays so.
export function renew(parent, ...content) {
  content.forEach((wanted, place) => {
    const shown = parent.childNodes[place];
    if (!shown) parent.append(wanted);
    else if (shown.nodeName !== wanted.nodeName) shown.replaceWith(wanted);
    else if (shown.nodeType === Node.TEXT_NODE) {
      if (shown.data !== wanted.data) shown.data = wanted.data;
    } else {
      for (const { name } of [...shown.attributes]) if (!wanted.hasAttribute(name)) shown.removeAttribute(name);
      for (const { name, value } of wanted.attributes) {
        if (shown.getAttribute(name) === value) continue;
        if (name === "style") shown.style.cssText = value; // as an attribute, the page's policy forbids it
        else shown.setAttribute(name, value);
      }
      renew(shown, ...wanted.childNodes);
    }
  });
  while (parent.childNodes.length > content.length) parent.lastChild.remove();
}

export function table(heads, rows, numbers = []) {
  const cell = (tag, content, place, more = {}) =>
    element(tag, { ...more, class: numbers.includes(place) ? "number" : null }, ...[content].flat());
  return element("div", { class: "scroll", tabindex: "0" }, element("table", {},
    element("thead", {}, element("tr", {}, ...heads.map((head, place) => cell("th", head, place, { scope: "col" })))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((one, place) => cell("td", one, place)))))));
}

export const MISSING = "–";

export function number(value, digits = 3, least = 1) {
  if (value === null || value === undefined) return MISSING;
  const most = Math.max(digits, Math.floor(Math.log10(Math.abs(value) || 1)) + 1);
  return value.toLocaleString("en", { minimumSignificantDigits: least, maximumSignificantDigits: most });
}

export const seconds = (value) => (value === null || value === undefined ? MISSING : `${number(value, 3, 3)}\u00a0s`);
export const share = (value) => (value === null || value === undefined ? MISSING : `${value > 0 && value < 0.005 ? "<1" : Math.round(100 * value)}\u00a0%`);

export function bytes(value) {
  if (value === null || value === undefined) return MISSING;
  return value >= 1000 * 2 ** 20 ? `${number(value / 2 ** 30)}\u00a0GiB` : `${number(value / 2 ** 20)}\u00a0MiB`;
}

export function duration(value) {
  if (value === null || value === undefined) return "unknown";
  if (value < 60) return `${Math.round(value)} s`;
  const [small, name] = value < 3600 ? [1, "min"] : [60, "h"];
  const whole = Math.round(value / small);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")} ${name}`;
}

// Black or white, whichever is read better on a color.
export function ink(color) {
  const [red, green, blue] = [1, 3, 5].map((place) => parseInt(color.slice(place, place + 2), 16));
  return 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000" : "#fff";
}
