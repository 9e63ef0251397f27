// Elements, numbers as people read them, the tooltip, and what the reader has chosen on this page.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") node.style.cssText = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// What the reader has hidden, sorted or selected, by block; it outlives a redraw.
const choices = new Map();
function choice(key, start) {
  if (!choices.has(key)) choices.set(key, start);
  return choices.get(key);
}

const NUM_COLOURS = 10;
const NUM_STOPS = 9;
function colour(index, count) {
  if (count <= NUM_COLOURS) return `var(--c${index % NUM_COLOURS})`;
  // Too many to tell apart by colour alone: places on a scale, and the pointer names what it is on.
  const [stop, share] = onScale(index, count);
  return `color-mix(in srgb, var(--s${stop}), var(--s${stop + 1}) ${(100 * share).toFixed(1)}%)`;
}
function onScale(index, count) {
  const place = (Math.min(index, count - 1) / (count - 1)) * (NUM_STOPS - 1);
  const stop = Math.min(Math.floor(place), NUM_STOPS - 2);
  return [stop, place - stop];
}
// The same for a canvas, which knows no variables.
function plainColour(index, count) {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  if (count <= NUM_COLOURS) return value(`--c${index % NUM_COLOURS}`);
  const [stop, share] = onScale(index, count);
  const [low, high] = [stop, stop + 1].map((number) => [1, 3, 5].map((at) => parseInt(value(`--s${number}`).slice(at, at + 2), 16)));
  return `rgb(${low.map((part, channel) => Math.round(part + (high[channel] - part) * share)).join(" ")})`;
}

function number(value, digits = 4) {
  if (value === null || value === undefined) return "";
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2);
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 6 });
}
const percent = (value) => (value === null || value === undefined ? "" : `${Number((100 * value).toFixed(2))} %`);

const tip = el("div", { id: "tip", role: "status", hidden: true });
function showTip(event, ...children) {
  tip.replaceChildren(...children.flat(Infinity));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const right = event.clientX + 16 + width < innerWidth;
  tip.style.left = `${Math.max(4, right ? event.clientX + 16 : event.clientX - width - 16)}px`;
  tip.style.top = `${Math.min(Math.max(4, event.clientY - height / 2), innerHeight - height - 4)}px`;
}
const hideTip = () => { tip.hidden = true; };
const swatch = (fillColour) => el("span", { class: "swatch", style: `display:inline-block;background:${fillColour}` });
function tipTable(rows) {
  return el("table", {}, rows.map(([fillColour, name, value]) =>
    el("tr", {}, el("td", {}, fillColour ? swatch(fillColour) : null, ` ${name}`), el("td", {}, value))));
}

// A head, a note, and a drawing that follows the width of its place.
function framed(block, ...controls) {
  const head = el("div", { class: "row" }, block.title ? el("h3", {}, block.title) : null, ...controls);
  return el("figure", { class: block.wide ? "block wide" : "block" }, block.title || controls.length ? head : null,
    block.note ? el("p", { class: "note" }, block.note) : null);
}
function drawing(draw) {
  const place = el("div", { class: "drawing" });
  let last = 0;
  place.redraw = () => { if (place.clientWidth) place.replaceChildren(...draw(place.clientWidth)); };
  new ResizeObserver(() => {
    if (place.clientWidth === last) return;
    last = place.clientWidth;
    requestAnimationFrame(place.redraw);
  }).observe(place);
  return place;
}
function switcher(options, chosen, onChoose) {
  const buttons = options.map(([value, label]) => el("button", {
    type: "button", "aria-pressed": String(value === chosen),
    onclick: (event) => {
      buttons.forEach((button) => button.setAttribute("aria-pressed", String(button === event.currentTarget)));
      onChoose(value);
    },
  }, label));
  return el("span", { class: "switch push", role: "group" }, buttons);
}
