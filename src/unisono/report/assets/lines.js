// Line charts: a legend that hides lines, bands around them, and the values where the pointer is.

const MOST_MARKERS = 30;
const MARKERS = [
  "M-3.4,0a3.4,3.4 0 1,0 6.8,0a3.4,3.4 0 1,0 -6.8,0", "M-3,-3h6v6h-6z", "M0,-4L4,3H-4z", "M0,-4.2L4.2,0L0,4.2L-4.2,0z", "M0,4L4,-3H-4z",
];

function path(xs, ys, x, y) {
  let text = "";
  let pen = "M";
  xs.forEach((value, index) => {
    if (ys[index] === null || value === null) { pen = "M"; return; }
    text += `${pen}${x(value).toFixed(1)},${y(ys[index]).toFixed(1)}`;
    pen = "L";
  });
  return text;
}

function band(one, x, y) {
  const inside = one.x.map((_, index) => index).filter((index) => one.low[index] !== null && one.high[index] !== null);
  const corner = (index, edge) => `${x(one.x[index]).toFixed(1)},${y(edge[index]).toFixed(1)}`;
  const there = inside.map((index) => corner(index, one.high));
  const back = inside.map((index) => corner(index, one.low)).reverse();
  return inside.length ? `M${[...there, ...back].join("L")}Z` : "";
}

function renderLines(block, key) {
  const hidden = choice(`${key}.hidden`, new Set());
  const figure = framed(block);
  const shownAs = block.y.percent ? percent : number;
  const tint = (index) => colour(index, block.series.length);

  function draw(width) {
    const height = block.wide ? 300 : 236;
    const shown = block.series.map((one, index) => ({ ...one, index })).filter((one) => !hidden.has(one.name));
    const xs = block.series.flatMap((one) => one.x);
    const edges = shown.flatMap((one) => [...one.y, ...(one.low || []), ...(one.high || [])]);
    const [first, last] = extent(xs);
    const margin = first === last ? 0.5 : 0;
    const yRange = padded(extent([...edges, ...block.references.map((one) => one.y)]), block.y.from_zero);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${block.title}: ${block.y.label} over ${block.x.label}` });
    const [y, left] = yAxis(root, yRange, block.y.label, width, height, block.y.percent);
    const whole = xs.every((value) => value === null || Number.isInteger(value));
    const x = xAxis(root, [first - margin, last + margin], block.x.label, left, width, height, whole);
    for (const line of block.references) {
      root.append(svg("line", { class: "reference", x1: left, x2: width - MARGIN.right, y1: y(line.y), y2: y(line.y) }),
        svg("text", { x: width - MARGIN.right, y: y(line.y) - 4, "text-anchor": "end" }, line.name));
    }
    for (const one of shown) {
      if (one.low) root.append(svg("path", { d: band(one, x, y), fill: tint(one.index), opacity: 0.15 }));
      root.append(svg("path", { d: path(one.x, one.y, x, y), fill: "none", stroke: tint(one.index), "stroke-width": 2,
        "stroke-linejoin": "round", "stroke-dasharray": one.dashed ? "5 4" : null }));
      const points = one.x.map((value, index) => [value, one.y[index]]).filter(([, value]) => value !== null);
      if (points.length > MOST_MARKERS) continue;
      for (const [px, py] of points) {
        root.append(svg("path", { d: MARKERS[one.index % MARKERS.length], transform: `translate(${x(px)} ${y(py)})`, fill: tint(one.index) }));
      }
    }
    const cursor = svg("line", { class: "cursor", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" });
    root.append(cursor);
    const positions = [...new Set(shown.flatMap((one) => one.x.filter((_, index) => one.y[index] !== null)))].sort((a, b) => a - b);
    const leave = () => { cursor.setAttribute("visibility", "hidden"); hideTip(); };
    const move = (event) => {
      if (!positions.length) return;
      const at = event.clientX - root.getBoundingClientRect().left;
      const near = positions.reduce((best, value) => (Math.abs(x(value) - at) < Math.abs(x(best) - at) ? value : best));
      cursor.setAttribute("x1", x(near));
      cursor.setAttribute("x2", x(near));
      cursor.setAttribute("visibility", "visible");
      const rows = shown.map((one) => [one, one.x.indexOf(near)]).filter(([one, index]) => index >= 0 && one.y[index] !== null);
      const spread = (one, index) => (one.low ? ` (${shownAs(one.low[index])} to ${shownAs(one.high[index])})` : "");
      showTip(event, `${block.x.label} ${number(near)}`,
        tipTable(rows.map(([one, index]) => [tint(one.index), one.name, shownAs(one.y[index]) + spread(one, index)])));
    };
    root.addEventListener("pointermove", move);
    root.addEventListener("pointerdown", move);
    root.addEventListener("pointerleave", leave);
    return [root];
  }

  const place = drawing(draw);
  const legend = el("div", { class: "legend" }, block.series.map((one, index) => el("button", {
    type: "button", "aria-pressed": String(!hidden.has(one.name)),
    onclick: (event) => {
      if (!hidden.delete(one.name)) hidden.add(one.name);
      event.currentTarget.setAttribute("aria-pressed", String(!hidden.has(one.name)));
      place.redraw();
    },
  }, svg("svg", { viewBox: "-6 -6 12 12", style: "width:13px;height:13px" }, svg("path", { d: MARKERS[index % MARKERS.length], fill: tint(index) })), one.name)));
  figure.append(place);
  if (block.series.length > 1) figure.append(legend);
  return figure;
}
