// A row per name: a dot with its deviation, and a diamond for the number it is compared with.

const ROW_HEIGHT = 26;

function renderDots(block) {
  const figure = framed(block);

  function draw(width) {
    const height = MARGIN.top + ROW_HEIGHT * block.rows.length + MARGIN.bottom;
    const bottom = height - MARGIN.bottom;
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${block.title}: ${block.x.label}` });
    const left = Math.min(0.45 * width, 14 + 6.8 * Math.max(...block.rows.map((row) => row.name.length)));
    const letters = Math.floor((left - 14) / 6.8);
    const x = xAxis(root, padded(extent(block.rows.flatMap((row) => [...reach(row), row.reference]))), block.x.label, left, width, height);
    root.append(svg("line", { class: "axis", x1: left, x2: left, y1: MARGIN.top, y2: bottom }));
    block.rows.forEach((row, position) => {
      const middle = MARGIN.top + ROW_HEIGHT * (position + 0.5);
      const name = row.name.length > letters ? `${row.name.slice(0, letters - 1)}…` : row.name;
      root.append(
        svg("text", { x: left - 8, y: middle + 4, "text-anchor": "end" }, name),
        svg("line", { class: "gridline", x1: left, x2: width - MARGIN.right, y1: middle, y2: middle }));
      if (row.reference !== null) root.append(diamond(x(row.reference), middle));
      if (row.value !== null) {
        const [low, high] = reach(row);
        root.append(
          svg("line", { x1: x(low), x2: x(high), y1: middle, y2: middle, stroke: colour(0, 1), "stroke-width": 2 }),
          svg("circle", { cx: x(row.value), cy: middle, r: 5, fill: colour(0, 1) }));
      }
      const catcher = svg("rect", { x: 0, width, y: middle - ROW_HEIGHT / 2, height: ROW_HEIGHT, fill: "transparent" });
      const show = (event) => showTip(event, row.name, tipTable([
        [colour(0, 1), "here", row.value === null ? "" : `${number(row.value)}${row.deviation ? ` ± ${number(row.deviation, 2)}` : ""}`],
        ...(row.reference === null ? [] : [[null, block.reference, number(row.reference)]]),
      ]));
      catcher.addEventListener("pointermove", show);
      catcher.addEventListener("pointerdown", show);
      catcher.addEventListener("pointerleave", hideTip);
      root.append(catcher);
    });
    return [root];
  }

  figure.append(drawing(draw));
  return figure;
}

const reach = (row) => (row.value === null ? [] : [row.value - (row.deviation || 0), row.value + (row.deviation || 0)]);

function diamond(x, y) {
  return svg("path", { class: "diamond", d: `M${x - 6} ${y}L${x} ${y - 6}L${x + 6} ${y}L${x} ${y + 6}Z` });
}
