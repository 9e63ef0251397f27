// Stacked columns: a column per group, a colour per part; counts, or shares of each column.

function renderColumns(block, key) {
  const mode = choice(`${key}.mode`, { shares: false, part: null });
  const count = block.parts.length;
  const tint = (part) => colour(part, count);
  const control = block.shares ? switcher([[false, "samples"], [true, "shares"]], mode.shares, (value) => { mode.shares = value; place.redraw(); }) : null;
  const figure = framed(block, control);

  function draw(width) {
    const height = block.wide ? 280 : 236;
    const totals = block.values.map((row) => row.reduce((sum, value) => sum + (value || 0), 0));
    const range = mode.shares ? [0, 1] : padded(extent(totals), true);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${block.title}: ${block.y.label} by ${block.x.label}` });
    const [y, left] = yAxis(root, range, mode.shares ? `share of ${block.y.label}` : block.y.label, width, height, mode.shares);
    const bottom = height - MARGIN.bottom;
    const step = (width - left - MARGIN.right) / Math.max(1, block.groups.length);
    const thick = Math.min(step * (step > 5 ? 0.84 : 1), 64);
    const labelled = Math.max(1, Math.ceil(34 / step));
    block.groups.forEach((name, group) => {
      const start = left + step * (group + 0.5) - thick / 2;
      const column = svg("g", {});
      let below = 0;
      block.values[group].forEach((value, part) => {
        if (!value) return;
        const size = mode.shares ? value / totals[group] : value;
        const faded = mode.part !== null && mode.part !== part;
        column.append(svg("rect", { x: start.toFixed(2), width: thick.toFixed(2), y: y(below + size).toFixed(2),
          height: Math.max(0, y(below) - y(below + size)).toFixed(2), fill: tint(part), opacity: faded ? 0.14 : null }));
        below += size;
      });
      const catcher = svg("rect", { x: left + step * group, width: step, y: MARGIN.top, height: bottom - MARGIN.top, fill: "transparent" });
      const show = (event) => {
        const rows = block.values[group].map((value, part) => [value, part]).filter(([value]) => value).sort((a, b) => b[0] - a[0]);
        const listed = rows.slice(0, 10).map(([value, part]) => [tint(part), block.parts[part], `${number(value)} (${Math.round((100 * value) / totals[group])}%)`]);
        if (rows.length > 10) listed.push([null, `and ${rows.length - 10} more`, ""]);
        showTip(event, `${block.x.label} ${name}: ${number(totals[group])} ${block.y.label}`, count > 1 ? tipTable(listed) : "");
      };
      catcher.addEventListener("pointermove", show);
      catcher.addEventListener("pointerdown", show);
      catcher.addEventListener("pointerleave", hideTip);
      root.append(column, catcher);
      if (group % labelled === 0) root.append(svg("text", { x: left + step * (group + 0.5), y: bottom + 16, "text-anchor": "middle" }, name));
    });
    root.append(svg("line", { class: "axis", x1: left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
    xLabel(root, block.x.label, left, width, height);
    return [root];
  }

  const place = drawing(draw);
  figure.append(place);
  if (count > 1 && count <= 24) figure.append(highlighter(block.parts, mode, () => place.redraw(), tint));
  return figure;
}

// A legend whose entries make one part stand out.
function highlighter(names, mode, redraw, tint) {
  const buttons = names.map((name, part) => el("button", {
    type: "button",
    onclick: () => { mode.part = mode.part === part ? null : part; mark(); redraw(); },
  }, swatch(tint(part)), name));
  const mark = () => buttons.forEach((button, part) => button.classList.toggle("off", mode.part !== null && mode.part !== part));
  mark();
  return el("div", { class: "legend" }, buttons);
}
