// Elements from names, attributes and children. Texts become text nodes, never markup, so that
// whatever a model has written is shown as it is.

const SVG = "http://www.w3.org/2000/svg";
const DIRECTIONS = /[\u202a-\u202e\u2066-\u2069]/g; // they would turn round the texts that follow
const escaped = (character) => `\\u${character.charCodeAt(0).toString(16)}`;

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (name === "value") continue;
    else if (name === "data") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  if (attributes?.value !== undefined) element.value = attributes.value; // a choice needs its options
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child).replace(DIRECTIONS, escaped));
  }
}

export function h(name, attributes, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  return fill(element, attributes, children);
}

export function svg(name, attributes, ...children) {
  const [tag, ...classes] = name.split(".");
  const element = document.createElementNS(SVG, tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  return fill(element, attributes, children);
}

// Replace what an element holds, and keep the focus where an element with the same id had it.
export function show(element, ...children) {
  const id = document.activeElement?.id;
  element.replaceChildren();
  append(element, children);
  const again = id && document.getElementById(id);
  if (again && again !== document.activeElement && element.contains(again)) again.focus();
}
