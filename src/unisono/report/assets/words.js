// Facts, paragraphs, and text to copy.

function renderFacts(block) {
  const figure = framed(block);
  figure.append(el("dl", {}, block.pairs.map(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])));
  return figure;
}

function renderProse(block) {
  return el("p", { class: `block wide ${block.tone}` }, block.text);
}

function renderLink(block) {
  return el("p", { class: "block wide" }, el("a", { href: block.file }, block.text));
}

function renderCode(block, key) {
  const copy = el("button", {
    type: "button", class: "button push",
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(block.text);
        copy.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(text);
        copy.textContent = "selected";
      }
      setTimeout(() => { copy.textContent = "copy"; }, 1500);
    },
  }, "copy");
  const text = el("pre", { tabindex: 0 }, block.text);
  if (!block.folded) {
    const figure = framed(block, copy);
    figure.append(text);
    return figure;
  }
  const state = choice(`${key}.open`, { open: false });
  const details = el("details", { open: state.open, ontoggle: () => { state.open = details.open; } },
    el("summary", {}, block.title), el("div", { class: "row" }, copy), text);
  return el("figure", { class: "block wide" }, details);
}
