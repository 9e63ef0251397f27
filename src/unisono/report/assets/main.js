// The page: heading, sections, theme; and news while a run goes on.

const RENDERERS = {
  lines: renderLines, columns: renderColumns, table: renderTable, facts: renderFacts, prose: renderProse,
  code: renderCode, link: renderLink, map: renderMap, sheet: renderSheet,
  picture: renderPicture,
};
const root = document.documentElement;
const main = document.getElementById("page");
let page = JSON.parse(document.getElementById("document").textContent);

const themed = [];
function onTheme(redraw) { themed.push(redraw); }
function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
function afterTheme() {
  button.textContent = isDark() ? "☀ light" : "☾ dark";
  themed.forEach((redraw) => redraw());
}
const button = el("button", { type: "button", class: "button theme", onclick: () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  afterTheme();
} });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", afterTheme);

const header = el("header", {});
const nav = el("nav", { "aria-label": "sections" });
const sections = el("div", {});
const sprites = el("style", {});
const drawn = new Map();

function showHeader() {
  document.title = page.title;
  header.replaceChildren(
    el("div", { class: "heading" }, el("h1", {}, page.title), page.status ? el("span", { class: `status ${page.status}` }, page.status) : null, button),
    ...(page.subtitle ? [el("p", { class: "subtitle" }, page.subtitle)] : []),
    ...(page.tiles.length ? [el("div", { class: "tiles" }, page.tiles.map((tile) => el("div", { class: "tile" }, el("b", {}, tile.value), el("span", {}, tile.label))))] : []));
  nav.replaceChildren(...page.sections.map((part) => el("a", { href: `#${part.id}` }, part.title)));
}

function showSprites() {
  const rules = Object.entries(page.assets).map(([name, sprite]) => `.sprite-${name}{background-image:url(${sprite.source})}`).join("\n");
  if (sprites.textContent !== rules) sprites.textContent = rules;
}

// A block that is as it was keeps its element, so that nothing flickers and what the reader has opened stays open.
function blockNode(part, block, position) {
  const key = `${part.id}/${position}/${block.kind}/${block.title}`;
  const text = JSON.stringify(block);
  const before = drawn.get(key);
  if (before && before.text === text) return before.node;
  const node = RENDERERS[block.kind](block, key);
  drawn.set(key, { text, node });
  return node;
}

function show() {
  showSprites();
  showHeader();
  sections.replaceChildren(...page.sections.map((part) => el("section", { id: part.id }, el("h2", {}, part.title),
    part.note ? el("p", { class: "note" }, part.note) : null,
    el("div", { class: "blocks" }, part.blocks.map((block, position) => blockNode(part, block, position))))));
  afterTheme();
}

document.head.append(sprites);
main.append(header, nav, sections);
document.body.append(tip);
show();

// A run that does not go on may be resumed, so the page asks on, less often.
const PAUSE = { running: 2000, other: 10000 };
const MOST_SILENCE = 5;
async function listen(address) {
  for (let silent = 0; silent < MOST_SILENCE;) {
    await new Promise((done) => { setTimeout(done, page.status === "running" ? PAUSE.running : PAUSE.other); });
    try {
      const answer = await fetch(`${address}?version=${encodeURIComponent(page.version || "")}`, { cache: "no-store" });
      if (answer.status === 200) {
        page = await answer.json();
        const height = scrollY;
        show();
        scrollTo({ top: height, behavior: "instant" });
      }
      silent = 0;
    } catch {
      // The server is busy, or gone; what was last seen stays.
      silent += 1;
    }
  }
}
if (document.body.dataset.live) listen(document.body.dataset.live);
