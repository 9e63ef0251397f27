// The map of embeddings: points coloured by what the reader asks for, a slider over rounds, the sample under the pointer.

const GLIDE = 500;

function renderMap(block, key) {
  const kept = choice(`${key}.map`, { round: block.rounds.length - 1, by: block.colourings[0].name, part: null });
  kept.round = Math.min(kept.round, block.rounds.length - 1);
  const colouring = () => block.colourings.find((one) => one.name === kept.by) || block.colourings[0];
  const groups = () => { const one = colouring(); return one.perRound ? one.groups[kept.round] : one.groups; };
  const control = block.colourings.length > 1
    ? switcher(block.colourings.map((one) => [one.name, one.name]), colouring().name, (value) => { kept.by = value; kept.part = null; relabel(); paint(); })
    : null;
  const figure = framed(block, control);
  const canvas = el("canvas", { role: "img", "aria-label": block.title });
  const side = el("div", {});
  const [[xLow, xHigh], [yLow, yHigh]] = [extent(block.x.flat()), extent(block.y.flat())];
  const aspect = (yHigh - yLow) / (xHigh - xLow || 1);
  let from = block.rounds.length - 1;
  let begun = 0;
  let spots = [];

  // Where the points are, on their way from one round to the next.
  function places(now) {
    const t = Math.min(1, (now - begun) / GLIDE);
    const ease = t * t * (3 - 2 * t);
    const [ax, ay, bx, by] = [block.x[from], block.y[from], block.x[kept.round], block.y[kept.round]];
    return { done: t >= 1, at: (index) => [ax[index] + (bx[index] - ax[index]) * ease, ay[index] + (by[index] - ay[index]) * ease] };
  }

  function paint() {
    const width = canvas.clientWidth;
    if (!width || !canvas.isConnected) return;
    const height = Math.round(Math.min(Math.max(width * aspect, width * 0.4), width * 0.9, 560));
    const dense = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * dense) || canvas.height !== Math.round(height * dense)) {
      canvas.width = Math.round(width * dense);
      canvas.height = Math.round(height * dense);
      canvas.style.height = `${height}px`;
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(dense, 0, 0, dense, 0, 0);
    pen.clearRect(0, 0, width, height);
    const { done, at } = places(performance.now());
    const one = colouring();
    const of = groups();
    const tints = one.names.map((_, index) => plainColour(index, one.names.length));
    const grey = plainColour(9, 10);
    const radius = Math.max(2, Math.min(4, 90 / Math.sqrt(of.length)));
    const unit = Math.min((width - 28) / (xHigh - xLow || 1), (height - 28) / (yHigh - yLow || 1));
    spots = of.map((_, index) => {
      const [px, py] = at(index);
      return [width / 2 + (px - (xLow + xHigh) / 2) * unit, height / 2 - (py - (yLow + yHigh) / 2) * unit];
    });
    const faded = (index) => kept.part !== null && of[index] !== kept.part;
    for (const pass of [true, false]) {
      spots.forEach(([px, py], index) => {
        if (faded(index) !== pass) return;
        pen.globalAlpha = pass ? 0.1 : 0.82;
        pen.fillStyle = of[index] < 0 ? grey : tints[of[index]];
        pen.beginPath();
        pen.arc(px, py, radius, 0, 7);
        pen.fill();
      });
    }
    pen.globalAlpha = 1;
    if (!done) requestAnimationFrame(paint);
  }

  function relabel() {
    const one = colouring();
    const many = one.names.length > 24;
    const legend = highlighter(many ? [] : one.names, kept, paint, (index) => colour(index, one.names.length));
    const words = many ? el("p", { class: "note" }, `${one.names.length} of them; hover over a point to see its ${one.name}, click it to single it out.`) : null;
    side.replaceChildren(...[words, legend].filter(Boolean));
  }

  function nearest(event) {
    const box = canvas.getBoundingClientRect();
    let best = -1;
    let least = 18 ** 2;
    spots.forEach(([px, py], index) => {
      if (kept.part !== null && groups()[index] !== kept.part) return;
      const distance = (px - event.clientX + box.left) ** 2 + (py - event.clientY + box.top) ** 2;
      if (distance < least) { best = index; least = distance; }
    });
    return best;
  }

  canvas.addEventListener("pointermove", (event) => {
    const index = nearest(event);
    if (index < 0) { hideTip(); return; }
    const rows = block.colourings.map((one) => {
      const group = one.perRound ? one.groups[kept.round][index] : one.groups[index];
      return [group < 0 ? null : colour(group, one.names.length), one.name, group < 0 ? "unknown" : one.names[group]];
    });
    showTip(event, el("div", { class: "row", style: "flex-wrap:nowrap" }, block.sprite ? thumbnail(block.sprite, index, 84) : null, tipTable(rows)));
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => {
    const index = nearest(event);
    kept.part = index < 0 || kept.part !== null ? null : groups()[index];
    relabel();
    paint();
  });
  new ResizeObserver(() => requestAnimationFrame(paint)).observe(canvas);
  onTheme(() => { relabel(); paint(); });
  relabel();
  figure.append(el("div", { class: "map" }, canvas, side));
  if (block.rounds.length > 1) figure.append(slider(block, kept, (round) => { from = kept.round; kept.round = round; begun = performance.now(); paint(); }));
  return figure;
}

function slider(block, kept, go) {
  const label = () => (block.rounds[kept.round] === 0 ? "untrained" : `after round ${block.rounds[kept.round]}`);
  const output = el("output", {}, label());
  const move = (round) => { go(round); input.value = round; output.textContent = label(); };
  const input = el("input", { type: "range", min: 0, max: block.rounds.length - 1, step: 1, value: kept.round, "aria-label": "round",
    oninput: () => move(Number(input.value)) });
  const play = el("button", { type: "button", class: "button", onclick: () => {
    const step = (round) => { move(round); if (round + 1 < block.rounds.length) setTimeout(() => step(round + 1), GLIDE + 450); };
    step(0);
  } }, "▶ play");
  return el("div", { class: "slider" }, play, input, output);
}
