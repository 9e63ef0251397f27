// Tables that sort by a click on a head.

function renderTable(block, key) {
  const order = choice(`${key}.order`, { column: null, down: false });
  const figure = framed(block);
  const numeric = block.heads.map((_, column) => block.rows.length > 0 && block.rows.every((row) => typeof row[column] !== "string"));
  // In a column with fractions whole numbers have as many digits as the others: 79.0 below 85.5.
  const fractions = block.heads.map((_, column) => numeric[column] && block.rows.some((row) => !Number.isInteger(row[column] ?? 0)));
  const shown = (cell, column) => (fractions[column] && Math.abs(cell) >= 1 && Math.abs(cell) < 10 ** block.digits
    ? cell.toPrecision(block.digits) : number(cell, block.digits));
  const heads = block.heads.map((head, column) => el("th", { class: numeric[column] ? "number" : "", scope: "col" }, el("button", {
    type: "button",
    onclick: () => {
      order.down = order.column === column ? !order.down : numeric[column];
      order.column = column;
      sort();
    },
  }, head)));
  const body = el("tbody", {});

  function sort() {
    const rows = [...block.rows];
    if (order.column !== null) {
      const at = order.column;
      const empty = (value) => value === null || value === "";
      rows.sort((a, b) => {
        if (empty(a[at]) || empty(b[at])) return empty(a[at]) - empty(b[at]);
        const less = numeric[at] ? a[at] - b[at] : String(a[at]).localeCompare(String(b[at]), "en", { numeric: true });
        return order.down ? -less : less;
      });
    }
    heads.forEach((head, column) => {
      if (column === order.column) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    body.replaceChildren(...rows.map((row) => el("tr", {}, row.map((cell, column) =>
      el("td", { class: numeric[column] ? "number" : "" }, typeof cell === "string" ? cell : shown(cell, column))))));
  }

  sort();
  figure.append(el("div", { class: "scroll", tabindex: 0 }, el("table", { class: "data" }, el("thead", {}, el("tr", {}, heads)), body)));
  return figure;
}
