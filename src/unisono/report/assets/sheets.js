// Contact sheets: rows of thumbnails out of one picture, and what each row has in common; and whole pictures.

const SIZE = 44;

function thumbnail(name, index, size, extra = {}) {
  const sprite = page.assets[name];
  const factor = size / Math.max(sprite.width, sprite.height);
  const [width, height] = [sprite.width * factor, sprite.height * factor];
  const [stepX, stepY] = [sprite.cell_width * factor, sprite.cell_height * factor];
  const rows = Math.ceil(sprite.count / sprite.columns);
  return el("span", {
    ...extra,
    class: `thumb sprite-${name} ${sprite.pixels ? "pixels" : ""} ${extra.class || ""}`,
    style: `width:${width}px;height:${height}px;background-size:${stepX * sprite.columns}px ${stepY * rows}px;` +
      `background-position:-${(index % sprite.columns) * stepX}px -${Math.floor(index / sprite.columns) * stepY}px`,
  });
}

function renderSheet(block) {
  const figure = framed(block);
  const own = page.assets[block.sprite].width;
  const size = own > 64 ? own : SIZE;  // series, and images that were searched
  figure.append(el("div", { class: "sheet" }, block.rows.map((row) => {
    const members = row.members.map((index, position) => thumbnail(block.sprite, index, size,
      { class: row.marks ? (row.marks[position] ? "same" : "other") : "", title: row.titles ? row.titles[position] : null }));
    const name = el("div", { class: "name" }, row.name, row.detail ? el("small", {}, row.detail) : null);
    const head = row.query === undefined ? name : el("div", { class: "query" }, thumbnail(block.sprite, row.query, size), name);
    return [head, el("div", { class: "members", tabindex: 0 }, members)];
  })));
  return figure;
}

function renderPicture(block) {
  const figure = framed(block);
  figure.append(el("div", { class: "picture", tabindex: 0 }, el("img", { src: block.source, alt: block.words })));
  return figure;
}
