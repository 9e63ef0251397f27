// Scales, round numbers along them, and the two axes of a chart.

const MARGIN = { right: 12, top: 8, bottom: 40 };

function extent(values) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (value === null || value === undefined) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return low > high ? [0, 1] : [low, high];
}

function ticks(low, high, count, whole) {
  const raw = (high - low || 1) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw));
  let step = power * ([1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999) || 10);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) {
    found.push(Number(value.toPrecision(12)));
  }
  return found;
}

function padded([low, high], fromZero) {
  if (fromZero) return [Math.min(0, low), Math.max(high * 1.06, high === 0 ? 1 : high)];
  const space = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
  return [low - space, high + space];
}

const scale = ([low, high], start, end) => (value) => start + ((value - low) / (high - low || 1)) * (end - start);

function short(value, asPercent) {
  if (asPercent) return `${Number((100 * value).toPrecision(4))}%`;
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(3))}G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
  if (size > 0 && size < 1e-3) return value.toExponential(0);
  return String(Number(value.toPrecision(4)));
}

// The scale of y, and where the axis of x begins: right of the longest number.
function yAxis(place, range, label, width, height, asPercent) {
  const y = scale(range, height - MARGIN.bottom, MARGIN.top);
  const values = ticks(range[0], range[1], Math.max(2, Math.floor(height / 48)));
  const left = 30 + 6.8 * Math.max(...values.map((value) => short(value, asPercent).length), 1);
  for (const value of values) {
    place.append(
      svg("line", { class: "gridline", x1: left, x2: width - MARGIN.right, y1: y(value), y2: y(value) }),
      svg("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, short(value, asPercent)));
  }
  const middle = (MARGIN.top + height - MARGIN.bottom) / 2;
  place.append(svg("text", { class: "label", "text-anchor": "middle", transform: `translate(11 ${middle}) rotate(-90)` }, label));
  return [y, left];
}

function xLabel(place, label, left, width, height) {
  place.append(svg("text", { class: "label", x: (left + width - MARGIN.right) / 2, y: height - 5, "text-anchor": "middle" }, label));
}

function xAxis(place, range, label, left, width, height, whole) {
  const x = scale(range, left, width - MARGIN.right);
  const bottom = height - MARGIN.bottom;
  place.append(svg("line", { class: "axis", x1: left, x2: width - MARGIN.right, y1: bottom, y2: bottom }));
  for (const value of ticks(range[0], range[1], Math.max(2, Math.floor(width / 70)), whole)) {
    place.append(svg("text", { x: x(value), y: bottom + 16, "text-anchor": "middle" }, short(value)));
  }
  xLabel(place, label, left, width, height);
  return x;
}
